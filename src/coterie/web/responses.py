"""Response bodies as JSON: ids are strings, instants are RFC 3339 in UTC, durations are seconds. Pure."""

from __future__ import annotations

import hashlib
from datetime import UTC
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.exceptions import HTTPException

from coterie.durable.token import MalformedToken
from coterie.errors import (
    AlreadyResolved,
    AlreadyUndone,
    ConfigurationError,
    CoterieError,
    DeferredMismatch,
    InvalidArgument,
    KeyConflict,
    MalformedMessage,
    MessageExpired,
    UnknownEntity,
    WorkflowEnded,
    WorkflowNotFailed,
    WorkflowNotFound,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from coterie.cron.api import CronInfo
    from coterie.observe.facts import ClusterFacts, LocalFacts
    from coterie.observe.health import Health, Reason
    from coterie.observe.view import View
    from coterie.singletons.api import SingletonInfo


class HttpRefusal(HTTPException):
    """A request that is refused: what is wrong, what to do, and further fields of the response body."""

    def __init__(
        self, status: int, problem: str, hint: str = "", *, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, problem, headers=headers)
        self.body = refusal(problem, hint) | more


def instant(at: datetime | None) -> str | None:
    """An instant; None stays None."""
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def probe(word: str, reasons: Iterable[Reason] | None = None) -> dict[str, Any]:
    """The body of a probe: a status word, and the reasons for clients that may see them."""
    return {"status": word} | ({} if reasons is None else {"reasons": [reason(each) for each in reasons]})


def reason(why: Reason) -> dict[str, Any]:
    """One reason."""
    told = {"status": why.status, "what": why.what, "problem": why.problem, "hint": why.hint}
    return told | ({} if why.runner is None else {"runner": why.runner})


def refusal(problem: str, hint: str = "") -> dict[str, Any]:
    """The body of an error response."""
    return {"error": problem} | ({"hint": hint} if hint else {})


_STATUSES: Mapping[type[CoterieError], int] = {
    InvalidArgument: 400,
    MalformedMessage: 400,
    DeferredMismatch: 400,
    MalformedToken: 400,
    ConfigurationError: 400,
    MessageExpired: 404,
    UnknownEntity: 404,
    WorkflowNotFound: 404,
    AlreadyResolved: 409,
    KeyConflict: 409,
    WorkflowEnded: 409,
    WorkflowNotFailed: 409,
    AlreadyUndone: 409,
}


def status_of(error: CoterieError) -> int:
    """The status of a request that has failed so; 503: it may be tried again later."""
    return next((status for kind, status in _STATUSES.items() if isinstance(error, kind)), 503)


def health(judged: Health) -> dict[str, Any]:
    """Everything that `cluster.health()` knows, without payloads."""
    return {
        "status": judged.status,
        "at": instant(judged.at),
        "reasons": [reason(each) for each in judged.reasons],
        "runners": {"count": judged.runners, "healthy": judged.healthy_runners, "list": _runners(judged.facts)},
        "shards": {"count": judged.shards, "owned": judged.owned_shards},
        "entities": judged.entities,
        "singletons": [_singleton(each) for each in judged.facts.singletons],
        "crons": [_cron(each) for each in judged.facts.crons],
        "messages": {"overdue_s": _overdue_s(judged.facts), "dead": judged.facts.dead},
    }


def view(seen: View) -> bytes:
    """Pages of the read model as JSON, as `observe/view.py` describes them."""
    return msgspec.json.encode(seen)


def etag(seen: View) -> str:
    """Changes with what the pages show, whenever and by whichever process they were read."""
    digest = hashlib.blake2b(msgspec.json.encode(seen.data), digest_size=12)
    return f'W/"{digest.hexdigest()}"'


def unknown(*reasons: Reason) -> dict[str, Any]:
    """The body of `health` when the health could not be determined: why, what is known here, and no figures."""
    return {"status": "unhealthy", "at": None, "reasons": [reason(each) for each in reasons]}


def _overdue_s(facts: ClusterFacts) -> float:
    return 0.0 if facts.oldest is None else facts.oldest.late_s


def _runners(facts: ClusterFacts) -> list[dict[str, Any]]:
    known = ((row, facts.runners.get(row.id)) for row in facts.view.runners)
    return [{"id": row.id, "name": row.name, "answered": said is not None, **_said(said)} for row, said in known]


def _said(said: LocalFacts | None) -> dict[str, Any]:
    """The facts of a runner; empty if it did not reply. Missing figures are never reported as zeros."""
    if said is None:
        return {}
    return {
        "version": said.version,
        "ready": said.is_ready,
        "draining": said.is_draining,
        "up_s": said.up_s,
        "seats": said.seats,
        "entities": sum(said.entities.values()),
        "waiting": said.waiting,
        "running": said.running,
        "loop_lag_s": said.loop_lag_s,
        "storage_s": said.storage_s,
        "clock_offset_s": said.clock_offset_s,
        "lease_left_s": said.lease_left_s,
        "memory_bytes": said.memory_bytes,
    }


def _singleton(info: SingletonInfo) -> dict[str, Any]:
    """A singleton, without the progress and error texts of its body: those belong to the program."""
    interval = info.expected_interval
    return {
        "name": info.name,
        "leader": info.leader,
        "epoch": info.epoch,
        "alive_at": instant(info.alive_at),
        "progress_at": instant(info.last_heartbeat_at),
        "last_run_at": instant(info.last_run_at),
        "runs": info.run_count,
        "expected_interval_s": None if interval is None else interval.total_seconds(),
        "ok": not info.problem,
    }


def _cron(info: CronInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "schedule": info.schedule,
        "timezone": info.timezone,
        "runner": info.runner,
        "epoch": info.epoch,
        "last_run_at": instant(info.last_run_at),
        "next_at": instant(info.next_at),
        "paused_at": instant(info.paused_at),
        "runs": info.run_count,
        "ok": not info.problem,
    }
