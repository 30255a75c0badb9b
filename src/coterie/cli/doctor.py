"""`coterie doctor`: checks settings, database, clocks, ports and versions, and says what to do."""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from coterie.cli import examining
from coterie.cli.asking import NO, NOBODY, YES
from coterie.cli.findings import Finding, as_objects, concluded, counts, shown
from coterie.cli.options import common, settings_for
from coterie.cli.showing import Screen, as_json, tell
from coterie.errors import ConfigurationError, CoterieError, PersistenceError
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.settings.secret import redacted_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.settings import Settings


@click.command()
@click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
@common
def command(url: str | None, as_json: bool, colour: bool | None) -> int:
    """Check settings, database, clocks, ports and versions.

    Exit 1 if there is a problem; remarks are none. In a pod, TERMINATION_GRACE_PERIOD_SECONDS tells it how long the
    pod may take to end.

    \b
    Example:
      coterie doctor --url postgresql://app@db.internal/app --json
    """
    examination = Examination(url)
    asyncio.run(examination.run())
    code = examination.code
    if as_json:
        tell(_document(examination))
    else:
        tell(f"{examination.where}\n\n{shown(Screen(colour=colour), examination.findings)}")
        tell(concluded(examination.findings, code))
    return code


class Examination:
    """One round through all checks: what cannot be reached keeps nobody from the others.

    Args:
        url: The database, if it is not that of the environment.
    """

    def __init__(self, url: str | None) -> None:
        self.findings: list[Finding] = []
        self.where = "this machine"
        self._url = url
        self._is_nobody_there = False
        self._runs_here = False

    @property
    def code(self) -> int:
        """How the command ends."""
        if self._is_nobody_there:
            return NOBODY
        return NO if counts(self.findings)[0] else YES

    async def run(self) -> None:
        """Look at everything. What the log would warn of on the way is a remark, once."""
        with _warnings() as heard:
            await self._run(heard)

    async def _run(self, heard: list[str]) -> None:
        try:
            settings = settings_for(self._url)
        except ConfigurationError as error:
            self.findings.append(Finding("settings", error.message, "bad", error.hint))
            return
        self.where = f"cluster {settings.name} on {redacted_url(settings.url)}"
        self.findings += examining.settings_of(settings)
        self.findings += examining.certificates(settings, to_datetime(SystemClock().wall_ns()))
        try:
            is_usable = await self._database(settings)
            said = {each.says for each in self.findings}
            self.findings += [Finding("database", text, "warn") for text in dict.fromkeys(heard) if text not in said]
            if is_usable:
                await self._cluster(settings)
        except PersistenceError as error:
            self._is_nobody_there = True
            self.findings.append(Finding("database", error.message, "bad", error.hint))
        except CoterieError as error:
            self.findings.append(Finding("database", error.message, "bad", error.hint))
        self.findings += examining.ports(settings, runs_here=self._runs_here)
        self.findings += examining.kubernetes(settings, os.environ)

    async def _database(self, settings: Settings) -> bool:
        """Look at the database itself; whether a program of this version can work with what is in it."""
        from coterie.kernel.clock import SystemClock
        from coterie.kernel.ids import new_incarnation
        from coterie.kernel.random import Chance
        from coterie.storage.engines import file_of, open_storage

        file, chance = file_of(settings), Chance()
        if file is not None and not file.exists():
            self._is_nobody_there = True
            hint = "coterie run starts one; --url or COTERIE_URL names another database"
            self.findings.append(Finding("database", f"there is no cluster at {file}", "bad", hint))
            return False
        storage = open_storage(
            settings, incarnation=new_incarnation(chance), clock=SystemClock(), chance=chance, check_schema=False
        )
        async with storage:
            applied, pending = await storage.schema.applied(), await storage.schema.pending()
            server = await storage.inspection.server()
        self.findings += examining.database(server, applied, pending)
        return bool(applied) and all(step.phase == "post" for step in pending)

    async def _cluster(self, settings: Settings) -> None:
        """Ask the runners."""
        from coterie.cluster import Cluster
        from coterie.transport.identity import host_id

        cluster = Cluster(settings=settings)
        async with cluster.connect():
            facts = await cluster._acting().gathering.look()  # noqa: SLF001 this house's own
        rows, told = facts.view.runners, facts.runners
        self._runs_here = any(row.host_id == host_id() for row in rows)
        for check in (examining.clocks, examining.runners, examining.versions):
            self.findings += check(rows, told)
        self.findings += examining.unreadable(told)


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Hear what is logged as a warning, instead of whoever else would."""
    heard: list[str] = []
    log, handler = logging.getLogger("coterie"), logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    propagated, log.propagate = log.propagate, False
    log.addHandler(handler)
    try:
        yield heard
    finally:
        log.removeHandler(handler)
        log.propagate = propagated


def _document(examination: Examination) -> str:
    problems, remarks = counts(examination.findings)
    return as_json(
        {
            "where": examination.where,
            "checks": as_objects(examination.findings),
            "problems": problems,
            "remarks": remarks,
        }
    )
