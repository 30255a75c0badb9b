"""One incarnation's membership in the cluster: it registers, settles which seats it holds, and leaves.

Every event triggers `settle`, one pass at a time: a renewal (each second), a notice of a peer, a released seat, an
evicted runner. A pass brings the held seats closer to the target, by what the tables say.
"""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

from coterie.errors import PersistenceError, StorageReplaced
from coterie.kernel import chaos, metrics
from coterie.kernel.ids import Seat
from coterie.kernel.service import Service
from coterie.ownership import admission
from coterie.ownership.admission import Definition
from coterie.ownership.directory import peer_of
from coterie.ownership.failure_detector import FailureDetector, LeaseWatch
from coterie.ownership.lease import LeasePolicy, LeaseTimes
from coterie.ownership.lease_thread import LeaseKeeper, retry_until_done
from coterie.ownership.peer_notices import PeerNotices
from coterie.ownership.rebalance import Rebalance
from coterie.ownership.runner_health import RunnerHealth
from coterie.ownership.seats import HeldSeats, Trust
from coterie.storage.interface import Registration
from coterie.transport.interface import Route

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from datetime import timedelta

    from coterie.kernel.clock import Clock
    from coterie.kernel.supervisor import Supervisor
    from coterie.ownership.directory import Directory
    from coterie.ownership.exclusion import Cause, Exclusion
    from coterie.ownership.lease_thread import SideLoop
    from coterie.ownership.seats import Occupy, Tenure
    from coterie.settings import Settings
    from coterie.storage.interface import ClusterSnapshot, Renewal, SeatRow, Storage
    from coterie.transport.interface import PeerAddress, Transport
    from coterie.transport.requests import Routes

log = logging.getLogger("coterie.ownership")

_FAREWELL_S = 5.0
"""Limit, beyond the drain, for deregistering in the database: then the process exits, and the lease decides."""


_GRANTS_MOST = 500
"""Seats that are acquired in one statement: renewals wait for it, and so does the loop that occupies them."""


_AGAIN_S = 0.1
"""Polling interval of a runner that is not ready yet: others take their share without notifying it first."""

_SILENT_RENEWALS = 3
"""After this many renewals without an answer the database counts as silent."""


class Membership(Service):
    """A runner's membership from registration to its end.

    Args:
        settings: Lease, groups, weight, shards, drain.
        incarnation: The identity of this life.
        name: The runner's name, for display.
        transport: Started already: others can reach us before they know of us [M2].
        directory: Kept up to date from here.
        definitions: What this program defines besides shards.
        occupy: Makes the occupant of each seat that is acquired.
        wake: Called when there is something new to do on a seat, perhaps one that is not held here.
        failed_over: Called when commits that the database had acknowledged may be missing.
        gave_up: Called when all seats are given up at once: the lease is not trusted, or the membership is over.
        host: Identifies the host that loopback leads to.
        process: Identifies this process on its host.
        credentials: Its credentials, as fingerprints.
        supervisor: The supervisor of this process.

    Promise:
        A seat is occupied here only between its grant and its release, and while the lease is trusted. It ends
        within its limits, whatever the database does.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        incarnation: str,
        name: str,
        storage: Storage,
        transport: Transport,
        routes: Routes,
        aside: SideLoop,
        clock: Clock,
        directory: Directory,
        definitions: Sequence[Definition],
        occupy: Occupy,
        wake: Callable[[str], None],
        failed_over: Callable[[], None],
        gave_up: Callable[[], object] = lambda: None,
        host: str,
        process: str,
        credentials: str = "",
        supervisor: Supervisor,
    ) -> None:
        super().__init__(what=f"runner {name}")
        self.incarnation = incarnation
        self.name = name
        self.trust = Trust(clock)
        self.vitals = RunnerHealth(clock, silence_s=_SILENT_RENEWALS * settings.lease_renew.total_seconds())
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Why it is over; an exception if no other life can follow."""
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieves it
        self._settings = settings
        self._supervisor = supervisor
        self._host = host
        self._process = process
        self._credentials = credentials
        self._transport = transport
        self._aside = aside
        self._now_ns = clock.steady_ns
        self._directory = directory
        self._definitions = {definition.seat: definition for definition in definitions}
        self._lease_keeper = self._new_lease_keeper(storage, clock)
        self._seats = HeldSeats(
            incarnation,
            address=lambda: transport.address,
            lease_keeper=self._lease_keeper,
            trust=self.trust,
            occupy=occupy,
            released=self._released,
            refused=self._not_occupied,
        )
        self._watch = LeaseWatch(ttl_ns=_ns(settings.lease_ttl), gap_ns=3 * _ns(settings.lease_renew))
        self._failure_detector = FailureDetector(
            incarnation,
            host_id=self._host,
            transport=transport,
            directory=directory,
            lease_keeper=self._lease_keeper,
            watch=self._watch,
            rule=admission.rule(settings),
            now_ns=self._now_ns,
            reached=self._greet,
            gone=self._removed,
        )
        delays = {seat: round(each.takeover_delay_s * 1e9) for seat, each in self._definitions.items()}
        self._plans = Rebalance(incarnation, delays=delays)
        self._notices = PeerNotices(
            incarnation,
            transport=transport,
            directory=directory,
            offered=self._offered,
            refresh=self._refresh,
            wake=wake,
            resign=self._asked_to_resign,
        )
        self._renewals = 0
        self._stamp = ""
        self._stale = True
        self._generation = 0
        self._failed_over = failed_over
        self._gave_up = gave_up
        self._trouble: Exception | None = None  # raised outside of a pass: the next one raises it again
        self._leaving = False
        self._undeclared: dict[str, Definition] = {}
        self._moves: dict[str, asyncio.Task[None]] = {}
        self._wake = asyncio.Event()
        self._waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._settled = asyncio.Event()
        self._missing = "it has not taken all of its seats yet"
        self._again: asyncio.TimerHandle | None = None
        routes.register(Route.OWNERSHIP, self._notices)

    def _new_lease_keeper(self, storage: Storage, clock: Clock) -> LeaseKeeper:
        return LeaseKeeper(
            LeasePolicy(_times(self._settings)),
            open=lambda: storage.ownership(self.incarnation),
            presence=lambda: storage.presence(self.incarnation),
            aside=self._aside,
            trust=self.trust,
            clock=clock,
            ttl_s=self._settings.lease_ttl.total_seconds(),
            vitals=self.vitals,
            on_renewed=self._renewed,
            on_ended=self._over,
            supervisor=self._supervisor,
        )

    # Lifecycle

    async def ready(self) -> None:
        """Return when a pass has found nothing more to acquire, and every shard is held by a live runner."""
        await self._settled.wait()

    @property
    def missing(self) -> str:
        """What `ready` waits for."""
        return self._missing

    @property
    def is_leaving(self) -> bool:
        """Whether it releases all that it holds, because it stops or was asked to drain."""
        return self._leaving

    def tenure(self, seat: str) -> Tenure | None:
        """Our tenure of a seat; None if we do not hold it."""
        return self._seats.tenure(seat)

    async def leave(self, beside: Iterable[Callable[[], Awaitable[None]]] = ()) -> None:
        """Hand over everything, then deregister. Work that does not end in time is cut off; its new holder finds it.

        Args:
            beside: Drains what else runs in the name of this runner, while seats are handed over.
        """
        self.require_running()
        self._leaving = True
        try:
            async with asyncio.timeout(self._settings.drain.total_seconds() + _FAREWELL_S):
                await asyncio.gather(self._hand_over(), *(drain() for drain in beside))
                await retry_until_done(
                    lambda: self._lease_keeper.ask(lambda session: session.leave()), what="the deregistration"
                )
            self._notices.send_all("look")
        except (TimeoutError, PersistenceError) as error:
            log.warning(
                "runner %s could not deregister; its seats become free when its lease expires: %r", self.name, error
            )

    def define(self, definition: Definition) -> None:
        """Add a definition made after the start: the next pass declares its seat."""
        self._definitions[definition.seat] = definition
        self._undeclared[definition.seat] = definition
        self._plans.delay(definition.seat, round(definition.takeover_delay_s * 1e9))
        self._wake.set()

    async def resign(self, seat: str, *, cause: Cause = "resigned", error: str = "") -> None:
        """Release a seat now, to the next runner in order. This runner does not take it for a while (`exclusion`)."""
        tenure = self.tenure(seat)
        epoch = None if tenure is None else tenure.epoch
        self._plans.exclude(seat, self._now_ns(), cause=cause, error=error, epoch=epoch)
        if seat in self._seats:
            others = [runner for runner in self._plans.order(seat) if runner != self.incarnation]
            await asyncio.shield(self._begin_move(seat, others[0] if others else None))

    def excluded(self) -> Mapping[str, tuple[Exclusion, float | None]]:
        """The seats that this runner does not take now, and for how many seconds; None: as long as it lives."""
        now_ns = self._now_ns()
        found = self._plans.excluded(now_ns)
        return {
            seat: (each, None if each.until_ns is None else (each.until_ns - now_ns) / 1e9)
            for seat, each in found.items()
        }

    def _give_up(self, why: str) -> None:
        self._seats.give_up(why)
        self._gave_up()

    def _asked_to_resign(self, seat: str, epoch: int) -> bool:
        tenure = self.tenure(seat)
        if tenure is None or tenure.epoch != epoch:
            return False
        self.tasks.spawn(self.resign(seat), name=f"resign {seat}")
        return True

    async def _start(self) -> None:
        await self._aside.start()
        await admission.agree(self._settings, self._lease_keeper)
        await admission.register(
            self._me(), self._settings, self._lease_keeper, self._definitions.values(), self._now_ns
        )
        self._generation = self._lease_keeper.generation
        self._refresh()
        self.tasks.supervise(self._lease_keeper.live, name="watch the lease keeper", supervisor=self._supervisor)
        self.tasks.supervise(self._settle_on_wake, name="settle seats", supervisor=self._supervisor)
        self.tasks.supervise(self._end_with_trust, name="end with trust", supervisor=self._supervisor)

    def _me(self) -> Registration:
        assert self._transport.address is not None, "a runner listens"
        return Registration(
            id=self.incarnation,
            name=self.name,
            address=self._transport.address,
            host_id=self._host,
            groups=self._settings.groups,
            weight=self._settings.weight,
            version=version("coterie"),
            knows={seat: each.fingerprint for seat, each in self._definitions.items()},
            process=self._process,
            credentials=self._credentials,
        )

    async def _stop(self) -> None:
        self._give_up("the runner stops")
        if self._again is not None:
            self._again.cancel()
        await self._failure_detector.stop()
        await self._lease_keeper.close()
        await self._aside.stop()
        if not self.ended.done():
            self.ended.cancel()

    # What triggers a pass

    def _renewed(self, renewal: Renewal, sent_ns: int) -> None:
        try:
            self._compare(renewal, sent_ns)
        except Exception as error:  # noqa: BLE001 raised by the next pass, which is supervised
            self._trouble = error
        self._wake.set()

    def _compare(self, renewal: Renewal, sent_ns: int) -> None:
        self._renewals += 1
        self._compare_generation(renewal.generation)
        self._watch.saw(renewal.others, sent_ns=sent_ns, got_ns=self._now_ns())
        known = {(runner.id, runner.leaving) for runner in self._directory.runners}
        seen = {(other.id, other.leaving) for other in renewal.others} | {(self.incarnation, renewal.leaving)}
        if renewal.stamp != self._stamp or known != seen or renewal.held != self._seats.checksum:
            self._stale = True
        if renewal.leaving and not self._leaving:
            self._leaving = True
            self.tasks.supervise(self._hand_over, name="hand over", supervisor=self._supervisor)

    def _compare_generation(self, generation: int) -> None:
        """After a failover memory may hold what the database has lost: all of it is dropped and reloaded [M13]."""
        before, self._generation = self._generation, generation
        if before == generation:
            return
        log.critical(
            "the database is another server or timeline than before (generation %d): work that was acknowledged and not"
            " replicated may be missing; entities, leaders, crons and workflows of this runner are loaded anew",
            generation,
        )
        metrics.FAILOVERS.of().value += 1
        self.vitals.failed_over()
        self._give_up("the database has failed over")
        self._failed_over()
        self._stale = True

    def _refresh(self) -> None:
        """Something has changed: read the tables now."""
        self._stale = True
        self._wake.set()

    def _refresh_again(self) -> None:
        self._again = None
        self._refresh()

    def _removed(self, _: str) -> None:
        """A runner is gone: its seats are free, also for other runners."""
        self._refresh()
        self._notices.send_all("look")

    def _greet(self, peer: PeerAddress) -> None:
        """One of us two is new: what was settled without it is reconsidered at once."""
        self._notices.send(peer, "look")
        self._wake.set()

    def _over(self, reason: str | StorageReplaced) -> None:
        self._give_up(str(reason))
        if self.ended.done():
            return
        if isinstance(reason, StorageReplaced):
            self.ended.set_exception(reason)
        else:
            self.ended.set_result(reason)

    def _released(self, seat: str, epoch: int, target: str | None) -> None:
        runner = None if target is None else self._directory.runner(target)
        if runner is not None:
            self._notices.send(peer_of(runner), "offer", [(seat, epoch)])

    def _not_occupied(self, seat: str) -> None:
        """The occupant of a seat of ours could not start: another runner may be able to."""
        self._plans.exclude(seat, self._now_ns(), cause="failed")

    def _offered(self, seat: str, epoch: int) -> None:
        self._plans.offered(seat, epoch)
        self._wake.set()

    # A pass

    async def _settle_on_wake(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, asyncio.get_running_loop().create_future()
            try:
                await self._settle()
            except PersistenceError as error:
                self._stale = True  # statements that were sent may have taken effect
                log.info("seats could not be settled; the next renewal tries again: %s", error)
            except BaseException:
                self._refresh()  # likewise; and the cause of this pass is still pending
                raise
            finally:
                waiting.set_result(None)

    async def _passed(self) -> None:
        """Return after a pass that began after this call, whether it succeeded or not."""
        self._refresh()
        await asyncio.shield(self._waiting)

    async def _settle(self) -> None:
        trouble, self._trouble = self._trouble, None
        if trouble is not None:
            raise trouble
        await self._failure_detector.evict_expired()  # first: one of them may hold up all writes that follow [C3]
        await self._seats.repay()
        await self._define()
        if self._stale:
            self._stale = False
            self._seats.expect_view()
            reading = self._directory.begin_reading()
            self._learn(await self._lease_keeper.ask(lambda session: session.view()), reading)
        await self._failure_detector.check_neighbours()
        await self._readopt()
        if await self._acquire():
            return
        for seat, target in self._plans.give(self._seats.staying, renewals=self._renewals):
            self._begin_move(seat, target)
        self._missing = self._plans.missing(self._failure_detector.met)
        if not self._missing:
            self._settled.set()
        elif not self._settled.is_set() and self._again is None:
            self._again = asyncio.get_running_loop().call_later(_AGAIN_S, self._refresh_again)

    def _learn(self, view: ClusterSnapshot, reading: int) -> None:
        self._stamp = view.stamp
        self._directory.learn(view, reading=reading)
        self._plans.learn(view, now_ns=self._now_ns(), renewals=self._renewals)
        self._adopt(view.seats)
        self._seats.compare({seat.name: seat.epoch for seat in view.seats if seat.holder == self.incarnation})

    def _adopt(self, seats: Sequence[SeatRow]) -> None:
        """May hold the queues of others as well, if it has some of the group: what they allow is in their rows."""
        groups = {each.group for each in self._definitions.values() if Seat.is_queue(each.seat)}
        for seat in seats if groups else ():
            if seat.group in groups and Seat.is_queue(seat.name) and seat.name not in self._definitions:
                self.define(Definition(seat=seat.name, group=seat.group, fingerprint=seat.fingerprint))

    async def _define(self) -> None:
        """Declare what was defined after the start. If that fails, the next pass retries."""
        if not self._undeclared:
            return
        taken = dict(self._undeclared)
        declared = [each.declaration for each in taken.values()]
        if await self._lease_keeper.ask(lambda session: session.define(declared)):
            for seat in taken:
                self._undeclared.pop(seat, None)
            self._stale = True
            self._notices.send_all("look")

    async def _readopt(self) -> None:
        """Restore our older definition of a seat once no runner has the current one any more [M8]."""
        seats = self._plans.readopt(self._definitions)
        if seats:
            declared = [self._definitions[seat].declaration for seat in seats]
            await self._lease_keeper.ask(lambda session: session.declare(declared))
            self._refresh()

    @property
    def _may_take(self) -> bool:
        return not self._leaving and self.trust.connected and self.trust.holds

    async def _acquire(self) -> bool:
        """Take the free seats that should be ours. Returns: whether there were any."""
        if not self._may_take:
            return False
        wanted = self._plans.acquire(set(self._seats.staying) | self._moves.keys(), now_ns=self._now_ns())
        if not wanted:
            return False
        for first in range(0, len(wanted), _GRANTS_MOST):
            await self._acquire_some(wanted[first : first + _GRANTS_MOST])
        return True

    async def _acquire_some(self, wanted: Sequence[str]) -> None:
        """Acquire seats and occupy them. One statement at a time, so that renewals get their turn in between."""
        if not self._may_take:
            return
        if chaos.on:
            await chaos.point("ownership.before_acquire")
        grants = await self._lease_keeper.ask(lambda session: session.acquire(wanted))
        taken = self._seats.granted(grants)
        self._directory.learn_grants(self.incarnation, taken)
        self._stale = True
        if taken:
            self._notices.send_all("granted", taken)
            self._wake.set()  # otherwise others were faster, or it is not available: the next renewal looks again

    # Handing over

    async def _hand_over(self) -> None:
        """Hand over everything that is held."""
        try:
            await self._lease_keeper.ask(lambda session: session.leaving(self.incarnation))
        except PersistenceError as error:  # it only tells others not to plan with us: seats are drained all the same
            log.info(
                "runner %s could not be marked as leaving; its seats are drained all the same: %s", self.name, error
            )
        await self._passed()  # an acquire in flight has ended, and the plans are up to date
        for seat, target in self._plans.give(self._seats.staying, renewals=self._renewals, leaving=True):
            self._begin_move(seat, target)
        await asyncio.gather(*self._moves.values(), return_exceptions=True)

    def _begin_move(self, seat: str, target: str | None) -> asyncio.Task[None]:
        if seat not in self._moves:
            self._moves[seat] = self.tasks.spawn(self._seats.move(seat, target), name=f"move {seat}")
            self._moves[seat].add_done_callback(lambda _: self._moved(seat))
        return self._moves[seat]

    def _moved(self, seat: str) -> None:
        del self._moves[seat]
        if not self._moves:  # a pass after each of thousands would examine all of them each time
            self._wake.set()

    async def _end_with_trust(self) -> None:
        """Stop everything as soon as the lease is no longer trusted."""
        renew_s = self._settings.lease_renew.total_seconds()
        while True:
            await asyncio.sleep(self.trust.left_s if self.trust.holds else renew_s)
            if not self.trust.holds:
                self._give_up("the lease could not be renewed in time")


def _times(settings: Settings) -> LeaseTimes:
    return LeaseTimes(
        ttl_ns=_ns(settings.lease_ttl),
        renew_ns=_ns(settings.lease_renew),
        margin_ns=_ns(settings.lease_margin),
        stall_ns=_ns(settings.stall_limit),
    )


def _ns(duration: timedelta) -> int:
    return round(duration.total_seconds() * 1e9)
