"""Cluster: where definitions, life and calls meet. Wires the rooms and chooses the engines."""

from __future__ import annotations

import dataclasses
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Self, Unpack

from coterie.durable.changes import KeyValues
from coterie.durable.keyvalue import KeyValueStore
from coterie.errors import NotStarted
from coterie.kernel.addresses import new_incarnation
from coterie.kernel.chance import Chance
from coterie.kernel.clock import Clock, SystemClock
from coterie.kernel.codec import codec_for
from coterie.kernel.service import Service
from coterie.settings import Settings, SettingsOverrides
from coterie.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from coterie.storage.interface import Storage


class Connection(Service):
    """One process's part in a cluster, as a client: storage and what stands on it."""

    def __init__(self, settings: Settings, storage: Storage, *, incarnation: str, clock: Clock, chance: Chance) -> None:
        super().__init__(what=f"cluster {settings.name!r}")
        self.incarnation = incarnation
        self.storage = storage
        self.values = KeyValues(storage.kv, clock=clock, chance=chance)

    async def _start(self) -> None:
        await self.storage.start()
        await self.values.start()

    async def _stop(self) -> None:
        await self.values.stop()
        await self.storage.stop()


acting: ContextVar[tuple[Cluster, Connection] | None] = ContextVar("coterie_acting", default=None)
"""For whom the cluster's methods act inside work, so that several runners can share one `Cluster` in a process."""


class Cluster:
    """A cluster as this program sees it: its settings, its definitions, and one running client.

    Args:
        url: `sqlite:///file.db`, `sqlite://` (memory, one process) or `postgresql://…`. Without it COTERIE_URL,
            without that the file `./coterie.db`.
        name: Several clusters may share a database under different names.
        settings: Ready-made settings; the other arguments override them.
        overrides: Any other setting by name.

    Example:
        ```python
        cluster = Cluster()
        async with cluster.connect():
            await cluster.kv.set("greeting", "hello")
        ```
    """

    kv: KeyValueStore[Any]

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        given: dict[str, Any] = {**overrides}
        given |= {key: value for key, value in (("url", url), ("name", name)) if value is not None}
        self.settings = Settings.load(given) if settings is None else dataclasses.replace(settings, **given)
        self.kv = KeyValueStore(lambda: self._acting().values, codec_for(Any))
        self._running: Connection | None = None

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Self]:
        """Take part as a client: it sends, it owns nothing. An empty database is set up on the way."""
        clock, chance = SystemClock(), Chance()
        incarnation = new_incarnation(chance)
        storage = open_storage(self.settings, incarnation=incarnation, clock=clock, chance=chance)
        connection = Connection(self.settings, storage, incarnation=incarnation, clock=clock, chance=chance)
        with self.acting_as(connection):
            async with connection:
                yield self

    @contextmanager
    def acting_as(self, connection: Connection) -> Iterator[Connection]:
        """Let this cluster's methods act through a connection, for whoever is not inside other work."""
        if self._running is not None:
            raise RuntimeError("this cluster is connected already: one running client for each Cluster object")
        self._running = connection
        try:
            yield connection
        finally:
            self._running = None

    def _acting(self) -> Connection:
        inside = acting.get()
        if inside is not None and inside[0] is self:
            return inside[1]
        if self._running is None:
            raise NotStarted(what=f"cluster {self.settings.name!r}")
        return self._running
