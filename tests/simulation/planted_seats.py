"""Planted bugs of the ownership room, each with the scenario or workload that finds it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie import client, runner
from coterie.ownership import admission, membership, rebalance
from coterie.ownership.failure_detector import LeaseWatch
from coterie.ownership.lease import LeasePolicy
from coterie.ownership.lease_thread import retry_until_done
from coterie.ownership.membership import Membership
from coterie.ownership.seats import HeldSeat, HeldSeats, Tenure, Trust
from coterie.storage.interface import Claim
from coterie.storage.sqlite import seats
from coterie.testing import simulation
from coterie.testing.lease_thread import SimSideLoop
from tests.simulation import test_ownership, test_takeover
from tests.simulation.workloads import seats as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator, Mapping

    from coterie.ownership.lease import LeaseTimes
    from coterie.settings import Settings
    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.loop.nodes import Node

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


@contextmanager
def _lease_anchored_at_the_response() -> Iterator[None]:
    right = LeasePolicy.renewed
    with patch.object(LeasePolicy, "renewed", lambda self, _, now_ns: right(self, now_ns, now_ns)):
        yield


@contextmanager
def _epoch_reset_on_release() -> Iterator[None]:
    reset = seats.SQL["release"].replace("holder = null,", "holder = null, epoch = 0,")
    with patch.dict(seats.SQL, release=reset):
        yield


@contextmanager
def _leadership_kept_on_error() -> Iterator[None]:
    right = Trust.extend
    with patch.object(Trust, "extend", lambda self, until_ns: right(self, until_ns + 3600 * 10**9)):
        yield


@contextmanager
def _released_before_the_occupant_has_stopped() -> Iterator[None]:
    async def hasty(self: HeldSeats, seat: str, target: str | None) -> None:
        holding = self._held[seat]
        holding.tenure.ended = True
        await retry_until_done(lambda: self._release(seat, holding.tenure.epoch), what="the release")
        self._released(seat, holding.tenure.epoch, target)
        await holding.occupant.drain()
        self._held.pop(seat, None)

    with patch.object(HeldSeats, "move", hasty):
        yield


@contextmanager
def _incarnation_is_the_host_name() -> Iterator[None]:
    hosts: dict[int, tuple[object, str]] = {}
    right = simulation.Simulation._parts

    def parts(self: simulation.Simulation, node: Node) -> client.ClientParts:
        made = right(self, node)
        hosts[id(made.chance)] = made.chance, made.host
        return made

    def named(chance: object) -> str:
        return hosts[id(chance)][1].rjust(32, "0")

    with (
        patch.object(simulation.Simulation, "_parts", parts),
        patch.object(client, "new_incarnation", named),
        patch.object(runner, "new_incarnation", named),
    ):
        yield


class _InTheLoop(SimSideLoop):
    """Beside nothing: what should go on while the loop is blocked runs on that very loop."""

    def __init__(self, loop: SimLoop, node: Node) -> None:
        super().__init__(loop, node)
        self._thread = node


@contextmanager
def _heartbeat_in_the_loop() -> Iterator[None]:
    with patch.object(simulation, "SimSideLoop", _InTheLoop):
        yield


@contextmanager
def _outage_counted_as_silence() -> Iterator[None]:
    def passed_ns(self: LeaseWatch, sent_ns: int) -> int:
        return 0 if self._sent_ns is None else sent_ns - self._sent_ns

    with patch.object(LeaseWatch, "_passed_ns", passed_ns):
        yield


@contextmanager
def _unknown_grant_adopted() -> Iterator[None]:
    right = HeldSeats.compare

    def adopt(self: HeldSeats, table: Mapping[str, int]) -> None:
        right(self, table)
        for name, epoch in table.items():
            if self._owed.pop(name, None) is not None:
                tenure = Tenure(Claim(self._me, name, epoch), clean=True, trust=self._trust)
                self._held[name] = HeldSeat(tenure, self._occupy(tenure))

    with patch.object(HeldSeats, "compare", adopt):
        yield


@contextmanager
def _moved_at_first_sight() -> Iterator[None]:
    with patch.object(rebalance, "_STEADY", 0):
        yield


@contextmanager
def _acquired_before_owed_is_given_back() -> Iterator[None]:
    repay, acquire = HeldSeats.repay, Membership._acquire

    async def later(_: HeldSeats) -> None:
        return

    async def first(self: Membership) -> bool:
        acquired = await acquire(self)
        await repay(self._seats)
        return acquired

    with patch.object(HeldSeats, "repay", later), patch.object(Membership, "_acquire", first):
        yield


@contextmanager
def _no_margin() -> Iterator[None]:
    right = membership._times

    def times(settings: Settings) -> LeaseTimes:
        return replace(right(settings), margin_ns=0)

    with patch.object(membership, "_times", times):
        yield


@contextmanager
def _trust_not_asked_after_the_grant() -> Iterator[None]:
    right = HeldSeats.granted

    def granted(self: HeldSeats, grants: Any) -> list[tuple[str, int]]:
        with patch.object(Trust, "holds", True):
            return right(self, grants)

    with patch.object(HeldSeats, "granted", granted):
        yield


@contextmanager
def _ready_beside_the_seats_of_the_dead() -> Iterator[None]:
    with patch.object(rebalance.Rebalance, "missing", lambda *_: ""):
        yield


@contextmanager
def _one_look_is_enough() -> Iterator[None]:
    with patch.object(admission, "_SECOND_LOOK", 0.0):
        yield


async def _all_killed() -> None:
    await (
        test_takeover.test_of_runners_that_were_all_killed_those_that_come_back_own_everything_and_are_not_ready_before(
            2
        )
    )


async def _newcomer_after_an_outage() -> None:
    await test_takeover.test_m1_one_that_starts_when_the_database_is_back_evicts_nobody(reach=False)


PLANTED: tuple[Planted, ...] = (
    ("ready beside the seats of the dead", _ready_beside_the_seats_of_the_dead, _all_killed, ()),
    ("one look at a stranger is enough", _one_look_is_enough, _newcomer_after_an_outage, ()),
    (
        "lease anchored at the response",
        _lease_anchored_at_the_response,
        test_takeover.test_inv_f4_an_answer_that_comes_late_prolongs_nothing,
        ("INV-F4",),
    ),
    ("epoch reset on release", _epoch_reset_on_release, workload.main, ("INV-F1",)),
    ("leadership kept on error", _leadership_kept_on_error, workload.main, ("INV-F4",)),
    ("released before work has stopped", _released_before_the_occupant_has_stopped, workload.main, ("L1",)),
    (
        "incarnation is the host name",
        _incarnation_is_the_host_name,
        test_ownership.test_lock_16_who_starts_again_is_another_incarnation,
        (),
    ),
    (
        "heartbeat in the loop",
        _heartbeat_in_the_loop,
        test_takeover.test_m16_a_blocked_loop_costs_nothing_until_the_stall_limit_and_then_everything,
        (),
    ),
    (
        "outage counted as silence",
        _outage_counted_as_silence,
        test_takeover.test_m1_an_outage_longer_than_every_lease_evicts_nobody,
        (),
    ),
    (
        "unknown grant adopted",
        _unknown_grant_adopted,
        test_ownership.test_lock_15_m13_a_grant_whose_answer_was_lost_is_not_acted_upon,
        (),
    ),
    (
        "moved at first sight",
        _moved_at_first_sight,
        test_takeover.test_m2_minor_when_several_join_one_after_the_other_no_seat_moves_twice,
        (),
    ),
    (
        "acquired before owed was given back",
        _acquired_before_owed_is_given_back,
        test_ownership.test_lock_09_nothing_is_acquired_before_what_is_owed_was_given_back,
        (),
    ),
    ("no margin", _no_margin, test_takeover.test_inv_f4_the_margin_covers_a_clock_that_runs_slow, ("INV-F4",)),
    (
        "trust not asked after the grant",
        _trust_not_asked_after_the_grant,
        test_takeover.test_m3_minor_a_grant_that_comes_after_trust_has_ended_is_given_back,
        (),
    ),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
