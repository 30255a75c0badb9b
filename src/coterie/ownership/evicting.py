"""Finds runners that are gone, and evicts them: by their lease [M1], or at once by two witnesses [M2].

    the connection to a peer breaks ─▶ does its address refuse, or answer as another incarnation?   (witness 2)
                                       is its session's lock gone, on the same start of the server? (witness 1)
                                            both: evict now · otherwise: look again for a while, then its lease decides

Unreachability alone moves nothing: the database is the only arbiter.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.kernel import meters
from coterie.kernel.tasks import Tasks
from coterie.ownership.directory import peer_of
from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from coterie.ownership.directory import Directory
    from coterie.ownership.keeping import Keeping
    from coterie.ownership.watching import Watch
    from coterie.storage.interface import RunnerRow
    from coterie.transport.interface import PeerAddress, Transport

log = logging.getLogger("coterie.ownership")

_ALL_MOST = 32
"""Up to so many runners everybody keeps a connection to everybody …"""
_NEIGHBOURS = 8
"""… beyond, to the next ones in the order of ids: a crash is still seen by several."""
_LOOKS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0)
"""Pauses before each look at a suspect: the server takes some milliseconds to notice that a session is gone."""


class Evicting:
    """Watches the other runners. All methods belong to the runner's loop.

    Args:
        me: Our incarnation.
        host_id: Where loopback leads to for us.
        reached: Told when a runner was reached for the first time.
        gone: Told after each runner that is not there any more.
    """

    def __init__(
        self,
        me: str,
        *,
        host_id: str,
        transport: Transport,
        directory: Directory,
        keeping: Keeping,
        watch: Watch,
        reached: Callable[[PeerAddress], None],
        gone: Callable[[str], None],
    ) -> None:
        self._me = me
        self._host_id = host_id
        self._transport = transport
        self._directory = directory
        self._keeping = keeping
        self._watch = watch
        self._told_reached = reached
        self._gone = gone
        self._tasks = Tasks("watching other runners")
        self._reached: set[str] = set()
        self._seen: dict[str, str] = {}  # runner -> the start of the server on which its lock was seen
        self._looked = 0  # at which of our sessions we last looked at the locks
        self._suspects: set[str] = set()
        self._connecting: set[str] = set()
        self._over = False
        transport.on_lost(self._lost)

    async def stop(self) -> None:
        """Watch no more: the connections that break from now on are our own doing."""
        self._over = True
        await self._tasks.stop()

    async def evict_expired(self) -> None:
        """Evict those whose lease has run out."""
        for suspect in self._watch.evictable():
            why = "its lease has run out"
            if await self._evict(suspect.id, counter=suspect.counter, expired=suspect.expired, why=why):
                self._gone(suspect.id)  # one that was spared is looked at again with the next renewal

    async def look_around(self) -> None:
        """Have a connection to our neighbours, and remember that their locks were held."""
        neighbours = self._neighbours()
        for runner in neighbours:
            peer = peer_of(runner)
            if runner.id not in self._connecting and not (
                runner.id in self._reached and self._transport.connected(peer)
            ):
                self._connecting.add(runner.id)
                self._tasks.spawn(self._connect(peer), name=f"connect to {runner.name}")
        known = {runner.id for runner in self._directory.runners}
        self._reached &= known
        self._seen = {runner: server for runner, server in self._seen.items() if runner in known}
        new = [runner.id for runner in neighbours if runner.id not in self._seen]
        if self._looked != self._keeping.sessions:
            new = [runner.id for runner in neighbours]
        if new:
            sessions = self._keeping.sessions
            found = await self._keeping.ask(lambda session: session.presences(new))
            self._seen.update(dict.fromkeys(found.held, found.server))
            self._looked = sessions

    def _neighbours(self) -> Sequence[RunnerRow]:
        others = sorted((r for r in self._directory.runners if r.id != self._me), key=lambda r: (r.id < self._me, r.id))
        return others if len(others) < _ALL_MOST else others[:_NEIGHBOURS]

    async def _connect(self, peer: PeerAddress) -> None:
        try:
            new = peer.incarnation not in self._reached and await self._transport.probe(peer) == "present"
            await self._transport.connect(peer)
            if new:
                self._reached.add(peer.incarnation)
                self._told_reached(peer)
        except (RunnerUnavailable, SendTimeout, ShuttingDown):
            pass  # tried again with the next renewal; whether it lives is for the database to say
        finally:
            self._connecting.discard(peer.incarnation)

    def _lost(self, incarnation: str, problem: str) -> None:
        del problem
        runner = self._directory.runner(incarnation)
        if self._over or runner is None or incarnation in self._suspects or not self._may_bear_witness(runner):
            return
        self._suspects.add(incarnation)
        self._tasks.spawn(self._examine(runner), name=f"examine {runner.name}")

    def _may_bear_witness(self, runner: RunnerRow) -> bool:
        """Whether a refusal at its address means something: it was reached before, and loopback leads to it."""
        here = runner.host_id == self._host_id
        return runner.id in self._reached and (here or not is_loopback(runner.address))

    async def _examine(self, runner: RunnerRow) -> None:
        peer = peer_of(runner)
        try:
            for pause_s in _LOOKS_S:
                await asyncio.sleep(pause_s)
                if self._directory.runner(runner.id) is None or self._transport.connected(peer):
                    return
                if (counter := await self._dead(runner)) is not None:
                    await self._evict(runner.id, counter=counter, expired=False, why="its process is gone")
                    self._gone(runner.id)  # evicted by us or by another observer: either way there is work
                    return
        except (PersistenceError, ShuttingDown) as error:
            log.info("runner %s is left to its lease: %s", runner.name, error)
        finally:
            self._suspects.discard(runner.id)

    async def _dead(self, runner: RunnerRow) -> int | None:
        """The counter of its lease if both witnesses say that it is dead. The locks are read after the refusal."""
        presence = await self._transport.probe(peer_of(runner))
        if presence not in ("refused", "other"):
            return None
        found = await self._keeping.ask(lambda session: session.presences([runner.id]))
        if runner.id in found.held or self._seen.get(runner.id) != found.server:
            return None
        return found.counters.get(runner.id)

    async def _evict(self, victim: str, *, counter: int, expired: bool, why: str) -> bool:
        runner = self._directory.runner(victim)
        gone = await self._keeping.ask(lambda session: session.evict(victim, counter=counter, expired=expired))
        if gone:
            meters.EVICTIONS.of("lease" if expired else "process").value += 1
            name = victim if runner is None else runner.name
            log.warning("runner %s was evicted: %s", name, why, extra={"about": victim})
        return gone
