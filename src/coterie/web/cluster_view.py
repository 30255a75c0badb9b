"""What the web application shows of a cluster; the only module of this package that accesses the cluster."""

from __future__ import annotations

from contextvars import Context
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from coterie.errors import NotStarted
from coterie.kernel.service import State
from coterie.kernel.supervisor import Seated
from coterie.observe.health import BOUNDS, Reason, judge, liveness
from coterie.settings.secret import redacted_url

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from coterie.client import Client
    from coterie.kernel.supervisor import MakeWork
    from coterie.observe.facts import ClusterFacts
    from coterie.observe.health import Health
    from coterie.observe.pages import ViewReader
    from coterie.observe.view import View
    from coterie.settings import Settings, WebAccess
    from coterie.settings.secret import Secret
    from coterie.web.calls.offer import Offer

PROBED_S = 0.5
"""Time limit of a probe's database read, and the age up to which facts are reused. Kubernetes waits only a second."""

FRESH_S = 1.0
"""The same for readers of the whole cluster: a dozen concurrent requests cause one read."""


class WebView(Protocol):
    """What the application needs from a cluster."""

    @property
    def token(self) -> Secret | None:
        """The token that clients on other machines need; None: they see no details."""
        ...

    @property
    def version(self) -> str:
        """The version of this library."""
        ...

    @property
    def web(self) -> WebAccess | None:
        """The setting of this name; "off": there is no page."""
        ...

    @property
    def redacted(self) -> bool:
        """Whether texts and payloads of the program are hidden."""
        ...

    @property
    def offer(self) -> Offer | None:
        """What can be called over HTTP; None: nothing."""
        ...

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        ...

    @property
    def runner(self) -> str | None:
        """The name of the runner that answers; None: a client, or it is not started."""
        ...

    def unstarted(self) -> tuple[Reason, ...]:
        """Why it has not started yet; empty if it has. Does no I/O."""
        ...

    def failing(self) -> tuple[Reason, ...]:
        """What may soon end this process; empty: nothing. Does no I/O."""
        ...

    async def unready(self) -> tuple[Reason, ...]:
        """Why no work should be sent here; empty if it is ready. Raises nothing; takes no longer than `PROBED_S`."""
        ...

    async def health(self) -> Health:
        """The health of the whole cluster, at most `FRESH_S` old."""
        ...

    async def view(self, pages: Collection[str], *, within_s: float = FRESH_S) -> View:
        """Pages of the read model, from facts at most `within_s` old; redacted without texts of the program."""
        ...

    async def status(self) -> str:
        """The text of `coterie status`."""
        ...

    def here(self) -> Client:
        """The runner or client in use.

        Raises:
            NotStarted: It is not running yet.
            ShuttingDown: It has stopped.
        """
        ...

    async def facts(self) -> ClusterFacts:
        """The facts, at most `FRESH_S` old if they can be read in time."""
        ...

    def supervise_feed(self, make: MakeWork) -> asyncio.Task[None]:
        """Run the sampling of the feed as a standing task, until it returns or the cluster begins to stop here.

        Raises:
            CoterieError: It is not running.
        """
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """The metrics of this process as text, and its content type."""
        ...


class ClusterView:
    """A cluster as seen by the runner or client of this process.

    Args:
        settings: Settings of the cluster.
        present: Returns the client or runner in use, or last used before it stopped; None: it was not started.
        offer: What can be called over HTTP; None: nothing.
    """

    def __init__(self, settings: Settings, present: Callable[[], Client | None], *, offer: Offer | None = None) -> None:
        self._settings = settings
        self._present = present
        self.offer = offer
        self._viewing: tuple[Client, ViewReader] | None = None

    @property
    def token(self) -> Secret | None:
        """The setting `http_token`."""
        return self._settings.http_token

    @property
    def version(self) -> str:
        """The version of this library."""
        return version("coterie")

    @property
    def web(self) -> WebAccess | None:
        """The setting `web`."""
        return self._settings.web

    @property
    def redacted(self) -> bool:
        """The setting `redact`."""
        return self._settings.redact

    @property
    def cluster(self) -> str:
        """The setting `name`."""
        return self._settings.name

    @property
    def runner(self) -> str | None:
        """The name of the runner of this process."""
        here = self._present()
        local = None if here is None else here.facts()
        return None if local is None else local.name

    def unstarted(self) -> tuple[Reason, ...]:
        """Unstarted until it is registered. It stays started while it drains: a drain is not a hanging start."""
        here = self._present()
        if here is None or here.state in (State.NEW, State.STARTING):
            return (self._not_yet(here),)
        return ()

    def failing(self) -> tuple[Reason, ...]:
        """Background tasks of a runner that keep failing."""
        here = self._present()
        local = None if here is None else here.facts()
        return () if local is None else liveness(local)

    async def unready(self) -> tuple[Reason, ...]:
        """Judged by what this process knows of itself, and what it last read from the database."""
        here = self._present()
        if here is None or here.state in (State.NEW, State.STARTING):
            return (self._not_yet(here),)
        if here.facts() is None:
            return () if here.state is State.RUNNING else (_wrong(here.what, "it has stopped"),)
        return await here.collector.readiness(within_s=PROBED_S)

    async def health(self) -> Health:
        """As `cluster.health()`, but concurrent requests share one read."""
        return judge(await self.facts())

    async def view(self, pages: Collection[str], *, within_s: float = FRESH_S) -> View:
        """Concurrent requests share one read."""
        from coterie.observe.pages import ViewReader  # imported on first use

        here = self.here()
        if self._viewing is None or self._viewing[0] is not here:
            self._viewing = here, ViewReader(here)
        return await self._viewing[1].read(pages, within_s=within_s, texts=not self.redacted)

    async def status(self) -> str:
        """As the command prints it into a pipe."""
        from coterie.cli.commands.status import piped  # the words of the command, which is not loaded otherwise

        seen = await self.view(["overview"])
        where = f"cluster {self._settings.name} on {redacted_url(self._settings.url)}"
        return piped(seen.data["overview"], where=where, now=seen.at)

    async def facts(self) -> ClusterFacts:
        """Concurrent requests share one read."""
        collector = self.here().collector
        recent = await collector.recent(within_s=FRESH_S)
        fresh = recent.facts is not None and recent.age_s <= FRESH_S
        return recent.facts if fresh and recent.facts is not None else await collector.collect()

    def supervise_feed(self, make: MakeWork) -> asyncio.Task[None]:
        """As a task of the client or runner in use, in a context of its own: a request, with its span, ends before."""
        here = self.here()
        seated = Seated("the page", lambda: None)  # one that keeps failing ends, and does not end the runner
        return here.tasks.supervise(
            make, name="feed the page", supervisor=here.supervisor, seated=seated, context=Context()
        )

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Gauges are set now; counters are reported as they are."""
        from coterie.observe.gauges import sample
        from coterie.prometheus import text  # takes 70 ms: imported when first scraped

        here = self._present()
        local = None if here is None else here.facts()
        if here is not None and local is not None:
            sample(local, await self._known(here))
        return text(accept)

    async def _known(self, here: Client) -> Health | None:
        """The health of the cluster, or None if it is not known just now: a scrape does not wait for it."""
        if here.state is not State.RUNNING:
            return None
        recent = await here.collector.recent(within_s=FRESH_S)
        return judge(recent.facts) if recent.facts is not None and recent.age_s <= BOUNDS.age_s else None

    def here(self) -> Client:
        """The one that `present` returns, if it runs."""
        here = self._present()
        if here is None:
            raise NotStarted(what=f"cluster {self._settings.name!r}")
        here.require_running()
        return here

    def _not_yet(self, here: Client | None) -> Reason:
        if here is None:
            return _wrong(f"cluster {self._settings.name}", "it is not started")
        return _wrong(here.what, f"it is not ready: {here.missing}")


def _wrong(what: str, problem: str) -> Reason:
    return Reason(status="unhealthy", what=what, problem=problem)
