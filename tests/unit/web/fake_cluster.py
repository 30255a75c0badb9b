"""A stand-in for what the web sees of a cluster."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from coterie.errors import NotStarted, ShuttingDown
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.observe.facts import ClusterFacts, LocalFacts
from coterie.observe.health import Health, Reason
from coterie.observe.pages import Pages
from coterie.observe.view import View as Viewed
from coterie.singletons.api import SingletonInfo
from coterie.storage.interface import ClusterSnapshot

if TYPE_CHECKING:
    from collections.abc import Collection

    from coterie.kernel.supervisor import MakeWork
    from coterie.settings import WebAccess
    from coterie.settings.secret import Secret
    from coterie.web.calls.offer import Offer

AT = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=UTC)
STUCK = Reason(
    status="unhealthy",
    what="singleton importer",
    problem="no progress for 74s (expected every 30s)",
    hint="coterie singletons resign importer moves it",
    runner="web-2",
)
SECRET_NOTE = "the body's own words"


def importer() -> SingletonInfo:
    return SingletonInfo(
        name="importer",
        group="default",
        leader="web-2",
        epoch=17,
        since_at=AT,
        last_run_at=AT,
        run_count=3,
        last_error=SECRET_NOTE,
        last_error_at=AT,
        last_heartbeat_at=AT,
        alive_at=None,
        note=SECRET_NOTE,
        done=None,
        total=None,
        expected_interval=timedelta(seconds=30),
        problem="no progress",
    )


def health(*reasons: Reason) -> Health:
    facts = ClusterFacts(
        now=AT,
        view=ClusterSnapshot(runners=(), seats=(), stamp=""),
        runners={"a" * 32: LocalFacts(runner="a" * 32, name="web-2")},
        singletons=(importer(),),
    )
    return Health(
        status=reasons[0].status if reasons else "healthy",
        reasons=reasons,
        at=AT,
        runners=2,
        healthy_runners=1,
        shards=100,
        owned_shards=99,
        entities=None,
        singletons=1,
        crons=0,
        facts=facts,
    )


class FakeWebView:
    """Shows what it is told to."""

    version = "1.2.3"

    cluster = "default"
    runner = "web-2"
    offer: Offer | None = None

    def __init__(self, token: Secret | None = None, *, web: WebAccess | None = None, redacted: bool = False) -> None:
        self.token = token
        self.web = web
        self.redacted = redacted
        self.why_unready: tuple[Reason, ...] = ()
        self.why_unstarted: tuple[Reason, ...] = ()
        self.what_fails: tuple[Reason, ...] = ()
        self.judged: Health | Exception = health()
        self.waits = asyncio.Event()
        self.waits.set()
        self.accepted = ""
        self.tasks = Tasks("fake")
        self.stopped = False

    def failing(self) -> tuple[Reason, ...]:
        return self.what_fails

    def unstarted(self) -> tuple[Reason, ...]:
        return self.why_unstarted

    async def unready(self) -> tuple[Reason, ...]:
        return self.why_unready

    async def health(self) -> Health:
        await self.waits.wait()
        if isinstance(self.judged, Exception):
            raise self.judged
        return self.judged

    async def view(self, pages: Collection[str], *, within_s: float = 1.0) -> Viewed:
        told = Pages(await self.health(), {}, texts=not self.redacted)
        data = {page: getattr(told, page)() for page in pages}
        return Viewed(revision=7, at=AT, runner="web-2", data=data)

    def here(self) -> Any:
        if self.stopped:
            raise ShuttingDown(what="runner web-2")
        raise NotStarted(what="runner web-2")

    async def facts(self) -> ClusterFacts:
        return (await self.health()).facts

    def supervise_feed(self, make: MakeWork) -> asyncio.Task[None]:
        if self.stopped:
            self.here()
        return self.tasks.supervise(make, name="feed", supervisor=Supervisor())

    async def stop(self) -> None:
        self.stopped = True
        await self.tasks.stop()

    async def status(self) -> str:
        return f"cluster default   {(await self.health()).status}"

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        self.accepted = accept
        return b"# EOF\n", "text/plain; version=0.0.4; charset=utf-8"
