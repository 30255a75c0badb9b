"""Detects runners that are gone, and evicts them: by their lease [M1], or at once by two witnesses [M2].

    the connection to a peer breaks ─▶ does its address refuse, or answer as another incarnation?   (witness 2)
                                       is its session's lock gone, on the same start of the server? (witness 1)
                                            both: evict now · otherwise: look again for a while, then its lease decides
    a runner that was never met     ─▶ look at its lock, probe its address, look again: `liveness` decides

Unreachability alone changes nothing: the database is the only arbiter.

By lease: a runner may be evicted whose counter did not change while we could have seen it change [M1]. After an outage
of the database, or a step of its clock, all leases have expired at once, and the first runner to return must not
conclude that all others are dead. So only an observer's own observation counts: the time between its own successful
renewals, while none of them was late.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.kernel import metrics
from coterie.kernel.service import Tasks
from coterie.ownership.directory import peer_of
from coterie.ownership.liveness import Look, series
from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from coterie.ownership.directory import Directory
    from coterie.ownership.lease_thread import LeaseKeeper
    from coterie.ownership.liveness import Rule
    from coterie.storage.interface import RunnerRow, Sighting
    from coterie.transport.interface import PeerAddress, Presence, Transport


@dataclass(frozen=True, slots=True)
class Suspect:
    """A runner that may be evicted if its counter is unchanged and, if `expired`, its lease has expired."""

    id: str
    counter: int
    expired: bool
    """Whether the eviction requires an expired lease. False: the counter stood still so long that no clock matters."""


class LeaseWatch:
    """What one runner has seen of the others' leases, over its own successful renewals.

    Args:
        ttl_ns: How long a counter must stand still before an expired lease is believed; twice that before any is.
        gap_ns: Two renewals of our own that are further apart prove nothing about the time between: we could not
            renew, or were paused, and so perhaps were all others.

    Promise:
        No outage and no step of a clock makes a runner a suspect that renews again when the database is back.
        A runner that has died is a suspect TTL and two renewals after its death at the latest, if ours are on time.
    """

    def __init__(self, *, ttl_ns: int, gap_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._gap_ns = gap_ns
        self._sent_ns: int | None = None
        self._seen: dict[str, _Seen] = {}

    def saw(self, others: Iterable[Sighting], *, sent_ns: int, got_ns: int) -> None:
        """A renewal of our own has succeeded, and has shown the leases of all others."""
        passed_ns = self._passed_ns(sent_ns)
        late_ns = got_ns - sent_ns
        self._seen = {each.id: self._after(each, passed_ns=passed_ns, late_ns=late_ns) for each in others}
        self._sent_ns = sent_ns

    def evictable(self) -> list[Suspect]:
        """The runners that may be evicted, by the last observation."""
        return [
            Suspect(runner, seen.counter, expired=seen.still_ns < 2 * self._ttl_ns)
            for runner, seen in sorted(self._seen.items())
            if seen.still_ns >= (self._ttl_ns if seen.expired else 2 * self._ttl_ns)
        ]

    def has_moved(self, runner: str) -> bool:
        """Whether a runner has renewed its lease since we first saw it."""
        seen = self._seen.get(runner)
        return seen is not None and seen.moved

    def _passed_ns(self, sent_ns: int) -> int:
        """The time since our previous renewal, as far as it counts."""
        gap_ns = 0 if self._sent_ns is None else sent_ns - self._sent_ns
        return gap_ns if gap_ns <= self._gap_ns else 0

    def _after(self, sighting: Sighting, *, passed_ns: int, late_ns: int) -> _Seen:
        before = self._seen.get(sighting.id)
        if before is None or before.counter != sighting.counter:
            # It was read at some moment before the answer came, so the time until then is not counted.
            return _Seen(sighting.counter, -late_ns, sighting.expired, moved=before is not None)
        return _Seen(sighting.counter, before.still_ns + passed_ns, sighting.expired, before.moved)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A counter, how long it is known to be unchanged, whether the lease has expired, whether it ever changed."""

    counter: int
    still_ns: int
    expired: bool
    moved: bool


log = logging.getLogger("coterie.ownership")

_ALL_MOST = 32
"""With up to this many runners, each keeps a connection to all others …"""
_NEIGHBOURS = 8
"""… with more, to the next ones in the order of ids: a crash is still noticed by several."""
_LOOKS_S = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0)
"""Pauses before each look at a suspect: the server takes some milliseconds to notice that a session is gone."""


class FailureDetector:
    """Watches the other runners. All methods must be called on the runner's loop.

    Args:
        me: Our incarnation.
        host_id: Identifies our host for loopback addresses.
        rule: Judges runners that were never met.
        now_ns: A steady clock.
        reached: Called when a runner was reached for the first time.
        gone: Called with each runner that is gone.
    """

    def __init__(
        self,
        me: str,
        *,
        host_id: str,
        transport: Transport,
        directory: Directory,
        lease_keeper: LeaseKeeper,
        watch: LeaseWatch,
        rule: Rule,
        now_ns: Callable[[], int],
        reached: Callable[[PeerAddress], None],
        gone: Callable[[str], None],
    ) -> None:
        self._me = me
        self._host_id = host_id
        self._transport = transport
        self._directory = directory
        self._lease_keeper = lease_keeper
        self._watch = watch
        self._rule = rule
        self._now_ns = now_ns
        self._told_reached = reached
        self._gone = gone
        self._tasks = Tasks("watching other runners")
        self._reached: set[str] = set()
        self._seen: dict[str, str] = {}  # runner -> the start of the server on which its lock was seen
        self._looked = 0  # the number of our session with which we last looked at the locks
        self._suspects: set[str] = set()
        self._connecting: set[str] = set()
        self._counters: dict[str, int] = {}  # of runners that were never met, as first seen
        self._renewed: set[str] = set()  # those whose counter has moved since
        self._over = False
        transport.on_lost(self._lost)

    async def stop(self) -> None:
        """Stop watching: connections that break from now on are our own doing."""
        self._over = True
        await self._tasks.stop()

    async def evict_expired(self) -> None:
        """Evict runners whose lease has expired; raises the first error when all were tried.

        All are tried: on SQLite the one that holds up the eviction of the others may be among them, frozen inside a
        commit, and only its own eviction ends it [C3].
        """
        problem: PersistenceError | None = None
        for suspect in self._watch.evictable():
            why = "its lease has run out"
            try:
                if await self._evict(suspect.id, counter=suspect.counter, expired=suspect.expired, why=why):
                    self._gone(suspect.id)  # one that was spared is checked again with the next renewal
            except PersistenceError as error:
                problem = problem or error
        if problem is not None:
            raise problem

    def met(self, runner: str) -> bool:
        """Whether a runner was seen alive: it was reached, or has renewed its lease since we first saw it."""
        return runner in self._reached or runner in self._renewed or self._watch.has_moved(runner)

    async def check_neighbours(self) -> None:
        """Connect to our neighbours, and remember that their locks were held. Examine runners that were never met."""
        neighbours = self._neighbours()
        for runner in neighbours:
            if not self.met(runner.id):
                self._begin(runner, self._meet(runner, connect=True))
            elif not (runner.id in self._reached and self._transport.connected(peer_of(runner))):
                self._begin(runner, self._connect(peer_of(runner)))
        known = {runner.id for runner in self._directory.runners}
        self._reached &= known
        self._counters = {runner: counter for runner, counter in self._counters.items() if runner in known}
        self._renewed &= known
        self._seen = {runner: server for runner, server in self._seen.items() if runner in known}
        new = [runner.id for runner in neighbours if runner.id not in self._seen]
        if self._looked != self._lease_keeper.sessions:
            new = [runner.id for runner in neighbours]
        beyond = known - {self._me} - {runner.id for runner in neighbours}
        new += sorted(runner for runner in beyond if not self.met(runner))
        if new:
            sessions = self._lease_keeper.sessions
            found = await self._lease_keeper.ask(lambda session: session.presences(new))
            self._seen.update(dict.fromkeys(found.held, found.server))
            self._looked = sessions
            for runner in self._directory.runners:
                if runner.id in beyond and runner.id in new and runner.id not in found.held:
                    self._begin(runner, self._meet(runner, connect=False))

    def _begin(self, runner: RunnerRow, work: Coroutine[Any, Any, None]) -> None:
        """Start work about a runner, unless some is in progress."""
        if runner.id in self._connecting:
            work.close()
        else:
            self._connecting.add(runner.id)
            self._tasks.spawn(work, name=f"meet {runner.name}")

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
            pass  # retried with the next renewal; whether it lives is for the database to say
        finally:
            self._connecting.discard(peer.incarnation)

    async def _meet(self, runner: RunnerRow, *, connect: bool) -> None:
        """Find out whether a runner that was never met is alive: reach it, see it renew its lease, or evict it.

        Args:
            connect: Keep the connection. Otherwise its address is probed only while its lock is free.
        """
        first: Look | None = None
        pauses_s = itertools.chain(_LOOKS_S[1:], itertools.repeat(_LOOKS_S[-1]))
        try:
            while (look := await self._observe(runner)) is not None and not self.met(runner.id):
                first = series(first, look)
                presence: Presence | None = None
                if look.lock != "gone" and (connect or look.lock == "free"):
                    presence = await self._ask(runner)
                    if (look := await self._observe(runner)) is None:  # after the probe, as with `_dead`
                        return
                    first = series(first, look)
                verdict = self._rule.judge(first, look, presence, near=self._is_near(runner))
                if verdict == "alive":
                    await self._introduce(runner, connect=connect)
                    return
                if verdict != "unknown":
                    await self._evict_unmet(runner, look.counter, expired=verdict == "lapsed")
                    return
                second_ns = first.at_ns + self._rule.pause_ns - self._now_ns()
                pause_s = min(next(pauses_s), self._rule.pause_ns / 3e9)
                await asyncio.sleep(min(pause_s, second_ns / 1e9) if second_ns > 0 else pause_s)
        except (PersistenceError, RunnerUnavailable, SendTimeout, ShuttingDown):
            pass  # retried with the next renewal
        finally:
            self._connecting.discard(runner.id)

    async def _evict_unmet(self, runner: RunnerRow, counter: int, *, expired: bool) -> None:
        why = "its lease has run out and nothing is left of it" if expired else "its process is gone"
        await self._evict(runner.id, counter=counter, expired=expired, why=why)
        self._gone(runner.id)  # evicted by us or by another observer: either way there is work

    async def _observe(self, runner: RunnerRow) -> Look | None:
        at_ns = self._now_ns()
        found = await self._lease_keeper.ask(lambda session: session.presences([runner.id]))
        look = Look.of(runner.id, found, at_ns=at_ns)
        counter = self._counters.setdefault(runner.id, found.counters.get(runner.id, 0))
        if look is not None and look.counter != counter:
            self._renewed.add(runner.id)
        return look

    async def _ask(self, runner: RunnerRow) -> Presence | None:
        """What answers at its address; None: from here the address leads elsewhere."""
        if not self._leads_there(runner):
            return None
        try:
            async with asyncio.timeout(self._rule.pause_ns / 3e9):
                return await self._transport.probe(peer_of(runner))
        except TimeoutError:
            return "silent"

    async def _introduce(self, runner: RunnerRow, *, connect: bool) -> None:
        peer = peer_of(runner)
        if connect:
            await self._transport.connect(peer)
        self._reached.add(peer.incarnation)
        self._told_reached(peer)

    def _is_near(self, runner: RunnerRow) -> bool:
        """Whether our kernel knows if a process listens at its address."""
        return runner.host_id == self._host_id or runner.address == self._transport.address

    def _leads_there(self, runner: RunnerRow) -> bool:
        return runner.host_id == self._host_id or not is_loopback(runner.address)

    def _lost(self, incarnation: str, problem: str) -> None:
        del problem
        runner = self._directory.runner(incarnation)
        if self._over or runner is None or incarnation in self._suspects or not self._may_bear_witness(runner):
            return
        self._suspects.add(incarnation)
        self._tasks.spawn(self._examine(runner), name=f"examine {runner.name}")

    def _may_bear_witness(self, runner: RunnerRow) -> bool:
        """Whether a refusal at its address means something: it was reached before, and loopback leads to it."""
        return runner.id in self._reached and self._leads_there(runner)

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
            log.info("runner %s could not be examined; it is evicted when its lease expires: %s", runner.name, error)
        finally:
            self._suspects.discard(runner.id)

    async def _dead(self, runner: RunnerRow) -> int | None:
        """The counter of its lease if both witnesses say that it is dead. The locks are read after the refusal."""
        presence = await self._transport.probe(peer_of(runner))
        if presence not in ("refused", "other"):
            return None
        found = await self._lease_keeper.ask(lambda session: session.presences([runner.id]))
        if runner.id in found.held or self._seen.get(runner.id) != found.server:
            return None
        return found.counters.get(runner.id)

    async def _evict(self, victim: str, *, counter: int, expired: bool, why: str) -> bool:
        runner = self._directory.runner(victim)
        gone = await self._lease_keeper.ask(lambda session: session.evict(victim, counter=counter, expired=expired))
        if gone:
            metrics.EVICTIONS.of("lease" if expired else "process").value += 1
            name = victim if runner is None else runner.name
            log.warning("runner %s was evicted: %s", name, why, extra={"about": victim})
        return gone
