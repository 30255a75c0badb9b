"""Summaries of failures: dead messages and jobs by error, crons whose last run failed. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from coterie.kernel.ids import EntityAddress
from coterie.observe.view import Failure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.cron.api import CronInfo
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.jobs import JobRow

_ATTEMPT = re.compile(r"attempt \d+: ")
_TYPE = re.compile(r"([A-Za-z_][\w.]*)(?=:|,|$)")


def messages(dead: Iterable[MessageInfo], *, texts: bool) -> tuple[Failure, ...]:
    """Dead messages, grouped by rpc and error; the most frequent first."""
    found: dict[tuple[str, str], list[MessageInfo]] = {}
    for each in dead:
        what = f"{EntityAddress.parse(each.entity).type}.{each.method}"
        error = worded(each.errors[-1].error if each.errors else "", texts=texts)
        found.setdefault((what, error), []).append(each)
    return tuple(
        Failure(
            kind="messages",
            what=what,
            count=len(alike),
            error=error,
            first_at=min(each.completed_at or each.sent_at for each in alike),
            last_at=max(each.completed_at or each.sent_at for each in alike),
            id=str(alike[-1].id),
        )
        for (what, error), alike in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def jobs(dead: Iterable[JobRow], *, texts: bool) -> tuple[Failure, ...]:
    """Dead jobs, grouped by task and error; the most frequent first."""
    found: dict[tuple[str, str], list[JobRow]] = {}
    for each in dead:
        error = worded(each.errors[-1].error if each.errors else "", texts=texts)
        found.setdefault((each.task, error), []).append(each)
    return tuple(
        Failure(
            kind="jobs",
            what=task,
            count=len(alike),
            error=error,
            first_at=min(each.ended_at or each.sent_at for each in alike),
            last_at=max(each.ended_at or each.sent_at for each in alike),
            id=max(each.id for each in alike),
        )
        for (task, error), alike in sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def crons(known: Iterable[CronInfo], *, texts: bool) -> tuple[Failure, ...]:
    """Crons whose last run failed."""
    return tuple(
        Failure(
            kind="cron",
            what=each.name,
            count=each.failures,
            error=worded(each.latest.errors[-1] if each.latest.errors else "", texts=texts),
            first_at=None,
            last_at=each.latest.ended_at,
            id=None,
        )
        for each in known
        if each.latest is not None and each.latest.outcome == "failed"
    )


def worded(error: str, *, texts: bool) -> str:
    """The first line of an error; without `texts` its type only, as the message may contain anything.

    >>> worded("attempt 2: ValueError: the secret is 7", texts=False)
    'ValueError'
    """
    line = _ATTEMPT.sub("", error.partition("\n")[0], count=1)
    if texts:
        return line
    found = _TYPE.match(line)
    return "" if found is None else found[1]
