"""What the web shows of a cluster: the one place of this room that looks into one."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from coterie.errors import NotStarted
from coterie.kernel.service import State
from coterie.observe.health import BOUNDS, Reason, judge, liveness

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from coterie.client import Client
    from coterie.observe.health import Health
    from coterie.observe.pages import ViewReader
    from coterie.observe.view import View
    from coterie.settings import Settings
    from coterie.settings.secret import Secret

PROBED_S = 0.5
"""How long a probe may look at the database, and how old the facts may be that it need not look at anew. Kubernetes
waits for a second by default: whoever looks that long is late."""

FRESH_S = 1.0
"""The same for whoever looks at the whole: a dozen who look at once do not ask a dozen times."""


class WebView(Protocol):
    """What the application needs to know."""

    @property
    def token(self) -> Secret | None:
        """What others than this machine need; None: they see no details."""
        ...

    @property
    def version(self) -> str:
        """Of this library."""
        ...

    def unstarted(self) -> tuple[Reason, ...]:
        """Why it has not started yet; empty: it has. Asks nobody."""
        ...

    def failing(self) -> tuple[Reason, ...]:
        """What may soon end this process; empty: nothing. Asks nobody."""
        ...

    async def unready(self) -> tuple[Reason, ...]:
        """Why no work is to be sent here; empty: it may. Raises nothing, and takes no longer than `PROBED_S`."""
        ...

    async def health(self) -> Health:
        """How the whole cluster stands, at most a moment ago."""
        ...

    async def view(self, pages: Collection[str]) -> View:
        """Pages of the read model, at most a moment old, without texts of the program."""
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """What was counted in this process, as text, and what kind of text."""
        ...


class ClusterView:
    """What is seen of a cluster through the runner or client of this process.

    Args:
        settings: Of the cluster.
        present: What it acts through just now, or has until it stopped; None: it was not started.
    """

    def __init__(self, settings: Settings, present: Callable[[], Client | None]) -> None:
        self._settings = settings
        self._present = present
        self._viewing: tuple[Client, ViewReader] | None = None

    @property
    def token(self) -> Secret | None:
        """The setting `http_token`."""
        return self._settings.http_token

    @property
    def version(self) -> str:
        """Of this library."""
        return version("coterie")

    def unstarted(self) -> tuple[Reason, ...]:
        """Until it is registered. It stays started while it drains: a start that ends is no start that hangs."""
        here = self._present()
        if here is None or here.state in (State.NEW, State.STARTING):
            return (self._not_yet(here),)
        return ()

    def failing(self) -> tuple[Reason, ...]:
        """Standing tasks of a runner that keep failing."""
        here = self._present()
        local = None if here is None else here.facts()
        return () if local is None else liveness(local)

    async def unready(self) -> tuple[Reason, ...]:
        """By what this process knows of itself, and what it last found in the database."""
        here = self._present()
        if here is None or here.state in (State.NEW, State.STARTING):
            return (self._not_yet(here),)
        if here.facts() is None:
            return () if here.state is State.RUNNING else (_wrong(here.what, "it has stopped"),)
        return await here.gathering.readiness(within_s=PROBED_S)

    async def health(self) -> Health:
        """As `cluster.health()`, but for many who ask at once."""
        gathering = self._here().gathering
        recent = await gathering.recent(within_s=FRESH_S)
        fresh = recent.facts is not None and recent.age_s <= FRESH_S
        return judge(recent.facts) if fresh and recent.facts is not None else await gathering.health()

    async def view(self, pages: Collection[str]) -> View:
        """For many who ask at once, too: they share one gathering."""
        from coterie.observe.pages import ViewReader  # for those who look

        here = self._here()
        if self._viewing is None or self._viewing[0] is not here:
            self._viewing = here, ViewReader(here)
        return await self._viewing[1].look(pages, within_s=FRESH_S, texts=False)

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Gauges are set now, counters stand as they are."""
        from coterie.observe.gauges import sample
        from coterie.observe.prometheus import text  # 70 ms, for those who scrape

        here = self._present()
        local = None if here is None else here.facts()
        if here is not None and local is not None:
            sample(local, await self._known(here))
        return text(accept)

    async def _known(self, here: Client) -> Health | None:
        """How the cluster stands, unless that is not known just now: a scrape does not wait for it."""
        if here.state is not State.RUNNING:
            return None
        recent = await here.gathering.recent(within_s=FRESH_S)
        return judge(recent.facts) if recent.facts is not None and recent.age_s <= BOUNDS.age_s else None

    def _here(self) -> Client:
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
