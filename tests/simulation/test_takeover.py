"""How soon and how rarely seats change hands, simulated: INV-F4 to F6, E5, R3, L1 to L3, M1, M8, M16, m1 to m3."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from coterie import ConfigurationError, PersistenceError
from coterie.ownership.admission import Definition
from coterie.runner import NoOccupant
from coterie.storage.sqlite.ownership import SqliteOwnership
from tests.simulation.seat_cluster import MARGIN_S, RENEW_S, TTL_S, staged
from tests.simulation.workloads.seats import DRAIN_S, agreed
from tests.support.history.ownership import Gone, Grant, HeldAgain, check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie.testing.simulation import Runner
    from tests.simulation.seat_cluster import SimulatedSeats

MAILER = "singleton:mailer"
LOST_S = TTL_S + 2 * RENEW_S + 2
ENDS: dict[str, tuple[Callable[[Runner], object], float]] = {
    "killed": (lambda runner: runner.kill(), LOST_S),
    "frozen": (lambda runner: runner.freeze(), LOST_S),
    "blocked": (lambda runner: runner.block("30s"), LOST_S),
    "cut off from the database": (lambda runner: runner.cut("storage"), LOST_S),
    "stopped": (lambda runner: runner.stop(), 1.0),
}


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("end", ENDS)
async def test_inv_f5_what_a_runner_held_that_is_gone_is_held_again_in_time(end: str) -> None:
    """INV-F5, B1, B2, M16: TTL, two renewals and 2 s after a loss; a second after a clean stop."""
    act, within_s = ENDS[end]
    async with staged(fair=True) as stage:
        victim = stage.sim.runners[0]
        gone = Gone(victim.incarnation, stage.sim.loop.now_ns, round(within_s * 1e9))
        act(victim)
        await stage.sim.advance(within_s + 2)
        assert gone.runner not in {row.holder for row in stage.seats.values()}
        events: list[Grant | Gone] = [*(Grant(*grant) for grant in stage.grants()), gone]
        events.sort(key=lambda event: event.at_ns)
        check(events, HeldAgain())


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize(
    ("own", "values"),
    [({"shards": 7}, ("7", "6")), ({"lease_ttl": timedelta(seconds=5)}, ("5s", "6s"))],
)
async def test_inv_f6_a_runner_that_disagrees_refuses_to_start_and_is_granted_nothing(
    own: Any, values: tuple[str, str]
) -> None:
    """INV-F6, F6, incident 21: the error names both values."""
    async with staged(runners=2) as stage:
        before = stage.seats
        with pytest.raises(ConfigurationError) as caught:
            await stage.sim.start(1, **own)
        assert f"is {values[0]} here, and {values[1]} in cluster" in str(caught.value)
        await stage.sim.advance(10)
        assert stage.seats == before
        assert len(stage.rows("select 1 from runners")) == 2


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("alone", [True, False], ids=["one", "all"])
async def test_inv_e5_runners_that_do_not_reach_each_other_keep_what_they_hold(alone: bool) -> None:
    """INV-E5: the database is the only arbiter."""
    async with staged() as stage:
        before, began_ns = stage.seats, stage.sim.loop.now_ns
        for runner in stage.sim.runners[: 1 if alone else None]:
            runner.cut("peers")
        await stage.sim.advance(25)
        assert stage.seats == before
        assert stage.grants(since_ns=began_ns) == []


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("down_s", [0.5, 3, 20])
async def test_inv_r3_after_a_restart_of_the_database_everything_is_written_to_again(down_s: float) -> None:
    """INV-R3: within 5 s, whether leases were trusted all the time or not."""
    async with staged(fair=True) as stage:
        stage.sim.restart_storage(down=down_s)
        await stage.sim.advance(down_s)
        (last,) = stage.rows("select max(seq) from history")[0]
        written = "select distinct name from history where what = 'saved' and seq > ?"
        await stage.sim.wait_until(lambda: len(stage.rows(written, last)) == len(stage.seats), within="5s")


@pytest.mark.simulated(seeds=6)
async def test_m1_an_outage_longer_than_every_lease_evicts_nobody() -> None:
    """M1: whoever returns first sees that all others have run out, and takes that for no proof."""
    async with staged() as stage:
        before = [runner.incarnation for runner in stage.sim.runners]
        for down_s in (8, 15):
            stage.sim.restart_storage(down=down_s)
            await stage.sim.advance(down_s + 10)
            await stage.settle()
        assert [runner.incarnation for runner in stage.sim.runners] == before


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("back", [1, 2, 3])
async def test_of_runners_that_were_all_killed_those_that_come_back_own_everything_and_are_not_ready_before(
    back: int,
) -> None:
    """At once if each old address refuses; a machine that is silent is waited for until its lease is over."""
    async with staged(fair=True) as stage:
        await stage.sim.advance(TTL_S)
        for each in stage.sim.runners:
            each.kill()
        comers = stage.sim.runners[:back]
        for each in comers:
            each.start()
        silent_s = 0 if back == 3 else TTL_S
        for _ in range(round((silent_s + 1.5 * RENEW_S + 1) / 0.05)):
            await stage.sim.advance(0.05)
            ready = [each for each in comers if each.real.facts().is_ready]
            left = {row.holder for row in stage.seats.values()} - {each.incarnation for each in comers}
            assert not (ready and left), f"{ready} are ready, and {left} hold seats"
        assert len(ready) == back


@pytest.mark.simulated(seeds=8)
@pytest.mark.parametrize("reach", [True, False], ids=["reached", "silent"])
async def test_m1_one_that_starts_when_the_database_is_back_evicts_nobody(reach: bool) -> None:
    """M1: it has met nobody, finds all locks free and all leases over, and its peers may be silent to it."""
    async with staged(runners=2) as stage:
        before = [each.incarnation for each in stage.sim.runners]
        stage.sim.restart_storage(down=15)
        await stage.sim.advance(14.9)
        stage.sim.start(1)
        if not reach:
            stage.sim.runners[2].cut("peers")
        await stage.sim.advance(20)
        assert [each.incarnation for each in stage.sim.runners[:2]] == before


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("by_s", [10.0, -10.0])
async def test_m1_a_step_of_the_databases_clock_moves_nothing(by_s: float) -> None:
    """M1: forward every lease has run out at once, back none will for long."""
    async with staged() as stage:
        before = stage.seats
        stage.sim.database.step_clock(by_s)
        await stage.sim.advance(30)
        assert stage.seats == before


@pytest.mark.simulated(seeds=4)
async def test_m1_a_clock_set_back_does_not_keep_the_dead_alive() -> None:
    """M1, F5: a counter that stands still for twice the TTL is enough, whatever the database's clock says."""
    async with staged(fair=True) as stage:
        dead = stage.sim.runners[0]
        dead.freeze()
        stage.sim.database.step_clock(-3600)
        await stage.sim.wait_until(lambda: not stage.held_by(dead), within=2 * TTL_S + 2 * RENEW_S + 1)


@pytest.mark.simulated(seeds=6)
async def test_inv_f4_an_answer_that_comes_late_prolongs_nothing() -> None:
    """INV-F4: trust counts from the moment before the renewal was sent. Judged at each grant."""
    async with staged() as stage:
        for _ in range(3):
            late = stage.sim.runners[stage.sim.loop.seed % 3]
            stage.sim.database.weather.latency_ns = 400_000_000  # so that a renewal is under way
            await stage.sim.advance(4)
            late.freeze()
            stage.sim.database.weather.latency_ns = 200_000
            await stage.sim.advance(TTL_S - MARGIN_S - 0.5)
            late.cut("storage")
            late.thaw()
            await stage.sim.advance(LOST_S)
            late.heal()
            await stage.settle()


@pytest.mark.simulated(seeds=4)
@pytest.mark.parametrize("by_s", [0.0, 10.0])
async def test_inv_f4_only_a_clock_set_forward_makes_a_silent_runner_without_its_lock_dead_too_early(
    by_s: float,
) -> None:
    """INV-F4, the exception: frozen, its session lost, and judged by a newcomer. Its late writes are refused."""
    async with staged(runners=1, fair=True) as stage:
        silent = stage.sim.runners[0]
        silent.freeze()
        stage.sim.restart_storage(down=0.1)
        await stage.sim.advance(0.2)
        stage.sim.database.step_clock(by_s)
        stage.sim.start(1)
        await stage.sim.wait_until(lambda: not stage.held_by(silent), within=TTL_S + RENEW_S)
        assert bool(stage.believed_by(silent)) is (by_s > 0)
        silent.thaw()
        await stage.sim.advance(LOST_S)
        await stage.settle()


@pytest.mark.simulated(seeds=6)
async def test_inv_f4_the_margin_covers_a_clock_that_runs_slow() -> None:
    """INV-F4: by a tenth, while the others' run fast."""
    async with staged() as stage:
        slow, *others = stage.sim.runners
        slow.drift(-100_000)
        for each in others:
            each.drift(50_000)
        for _ in range(2):
            slow.cut("storage")
            await stage.sim.wait_until(lambda: not stage.held_by(slow), within="20s")
            slow.heal()
            await stage.settle()


@pytest.mark.simulated(seeds=4)
async def test_m16_a_blocked_loop_costs_nothing_until_the_stall_limit_and_then_everything() -> None:
    """M16, incident 9: the lease is kept beside the loop, and a loop that stays blocked is replaced within 10 s."""
    async with staged(fair=True) as stage:
        blocked = stage.sim.runners[0]
        before = stage.seats
        await blocked.block("7s")
        await stage.sim.advance(3)
        assert stage.seats == before
        blocked.block("30s")
        replaced = {None, blocked.incarnation}
        await stage.sim.wait_until(lambda: not replaced & {row.holder for row in stage.seats.values()}, within="10s")


# Stopping


class NeverDone(NoOccupant):
    """Sits on a seat that it does not want to leave."""

    async def drain(self) -> None:
        await asyncio.Event().wait()


TROUBLES: dict[str, Callable[[SimulatedSeats, Runner], object]] = {
    "none": lambda _, __: None,
    "requests lost": lambda _, runner: runner.cut("storage", "requests"),
    "replies lost": lambda _, runner: runner.cut("storage", "replies"),
    "refused": lambda stage, _: stage.sim.restart_storage(down="10m"),
    "errors": lambda stage, _: setattr(stage.sim.database.weather, "error_before", 1.0),
    "no peers": lambda _, runner: runner.cut("peers"),
}


@pytest.mark.simulated(seeds=2)
@pytest.mark.parametrize("trouble", TROUBLES)
@pytest.mark.parametrize("stuck", [False, True], ids=["work ends", "work never ends"])
async def test_l1_a_stop_ends_within_its_limit_whatever_is_wrong(trouble: str, stuck: bool) -> None:
    """L1, F6, incident 6: the drain, 5 s for the farewell, and a moment to close what is open."""
    async with staged(runners=0) as stage:
        if stuck:
            stage.sim.occupy = lambda _: lambda _: NeverDone()
        await stage.sim.start(2)
        await stage.sim.wait_until(lambda: agreed(stage.sim))
        runner = stage.sim.runners[0]
        TROUBLES[trouble](stage, runner)
        stopping = asyncio.ensure_future(runner.stop())
        await stage.sim.wait_until(stopping.done, within=DRAIN_S + 7)
        assert runner.real.seats == []
        stage.sim.runners[1].kill()


@contextmanager
def failing(statement: str, *, times: int = 3) -> Iterator[None]:
    """Let the first tries of a runner's statement about itself fail."""
    right = getattr(SqliteOwnership, statement)
    left = list(range(times))

    async def fail(self: SqliteOwnership, *args: Any) -> Any:
        about_itself = statement != "leaving" or args == (self._me,)
        if left and about_itself:
            left.pop()
            raise PersistenceError(doing=statement, problem="simulated", outcome="refused")
        return await right(self, *args)

    with patch.object(SqliteOwnership, statement, fail):
        yield
    assert not left


@pytest.mark.simulated(seeds=3)
@pytest.mark.parametrize("statement", ["leaving", "release", "leave"])
async def test_l1_a_stop_whose_statements_fail_at_first_still_drains_releases_and_leaves(statement: str) -> None:
    """L1: an error costs no handler its last words, and nobody else a lease's time."""
    async with staged(runners=2) as stage:
        runner, other = stage.sim.runners
        incarnation, held = runner.incarnation, {name: stage.seats[name].epoch for name in stage.held_by(runner)}
        with failing(statement, times=1 if statement == "leaving" else 3):
            await runner.stop()
        assert stage.rows("select 1 from runners where id = ?", incarnation) == []
        assert held.items() <= dict(stage.rows("select name, released_epoch from seats")).items()
        await stage.sim.wait_until(lambda: len(stage.held_by(other)) == len(stage.seats), within="1s")


@pytest.mark.simulated(seeds=3)
async def test_a_drain_by_another_goes_on_after_an_error() -> None:
    async with staged(runners=2) as stage:
        drained, other = stage.sim.runners
        with failing("leaving", times=1):
            await other.spawn(stage.sim.cluster.runners.drain(drained.name))
            await stage.sim.wait_until(lambda: len(stage.held_by(other)) == len(stage.seats), within="10s")


# The plan


@pytest.mark.simulated(seeds=4)
async def test_m1_minor_a_free_seat_that_its_target_does_not_take_goes_to_the_next() -> None:
    """m1: 5 s later, and it stays there."""
    async with staged(fair=True) as stage:
        dead = stage.sim.runners[0]
        seat = stage.held_by(dead)[0]
        await dead.stop()
        await stage.settle()
        first = stage.sim.owner(seat)
        await first.spawn(membership(first).resign(seat, cause="refused"))
        (second,) = {each for each in stage.sim.runners if each.alive} - {first}
        await stage.sim.wait_until(lambda: stage.sim.owner(seat) is second, within="7s")
        await stage.sim.advance(20)
        assert stage.sim.owner(seat) is second


@pytest.mark.simulated(seeds=8)
async def test_m2_minor_when_several_join_one_after_the_other_no_seat_moves_twice() -> None:
    """m2: a move must have been the answer for two renewals, by which everybody has seen the same members."""
    async with staged(runners=2, fair=True) as stage:
        began_ns = stage.sim.loop.now_ns
        for pause_s in (0.3, 0.7, 1.2):
            await stage.sim.start(1)
            await stage.sim.advance(pause_s)
        await stage.settle()
        moved = [seat for seat, *_ in stage.grants(since_ns=began_ns)]
        assert len(moved) == len(set(moved)) > 0


@pytest.mark.simulated(seeds=6)
async def test_m3_minor_a_grant_that_comes_after_trust_has_ended_is_given_back() -> None:
    """m3, incident 1: frozen in the middle of its acquire; nothing is done under that epoch."""
    async with staged(runners=0) as stage:
        late: list[tuple[str, int]] = []

        def freeze(seat: str, epoch: int, holder: str) -> None:
            late.append((seat, epoch))
            stage.sim.runners[0].freeze()

        stage.notes.on_grant = freeze
        await stage.sim.start(1)
        await stage.sim.wait_until(lambda: late)
        await stage.sim.advance(20)
        stage.notes.on_grant = None
        stage.sim.runners[0].thaw()
        await stage.settle()
        occupied = {
            (writer.tenure.seat, writer.tenure.epoch) for each in stage.notes.writers.values() for writer in each
        }
        assert not occupied & set(late)
        assert all(stage.seats[seat].epoch > epoch for seat, epoch in late)


def mailer(version: str = "1", *, delay_s: float = 0.0) -> Definition:
    return Definition(seat=MAILER, group="default", fingerprint=version, takeover_delay_s=delay_s)


@pytest.mark.simulated(seeds=4)
async def test_takeover_delay_is_waited_for_after_an_unclean_loss_only() -> None:
    async with staged(definitions=[mailer(delay_s=20)], fair=True) as stage:
        leader = stage.sim.leader("mailer")
        leader.stop()
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer") is not leader, within="1s")
        leader = stage.sim.leader("mailer")
        leader.kill()
        await stage.sim.wait_until(lambda: stage.seats[MAILER].holder is None, within="10s")
        await stage.sim.advance(19)
        assert stage.seats[MAILER].holder is None
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer"), within="3s")


@pytest.mark.simulated(seeds=4)
async def test_l3_a_new_definition_takes_over_and_the_old_one_returns_only_after_the_last_new_one() -> None:
    """L3, M8: candidates are those with the current fingerprint; never two holders (judged at each grant)."""
    async with staged(runners=2, definitions=[mailer("1")]) as stage:
        stage.sim.definitions = [mailer("2")]
        await stage.sim.start(2)
        *_, first, second = stage.sim.runners
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer") in (first, second), within="5s")
        leader = stage.sim.leader("mailer")
        other = second if leader is first else first
        leader.kill()
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer") is other, within="10s")
        await stage.sim.advance(30)
        assert stage.sim.leader("mailer") is other
        await other.stop()
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer") in stage.sim.runners[:2], within="5s")


# By will


@pytest.mark.simulated(seeds=4)
async def test_a_runner_drained_by_another_gives_up_everything_and_lives_on() -> None:
    async with staged(fair=True) as stage:
        drained, other, _ = stage.sim.runners
        incarnation = drained.incarnation
        await other.spawn(stage.sim.cluster.runners.drain(drained.name))
        await stage.sim.wait_until(lambda: not stage.held_by(drained), within="5s")
        await stage.sim.wait_until(lambda: all(row.holder for row in stage.seats.values()), within="1s")
        await other.stop()
        await stage.sim.advance(30)
        assert stage.held_by(drained) == []
        assert drained.alive
        assert drained.incarnation == incarnation
        await drained.stop()


@pytest.mark.simulated(seeds=4)
async def test_a_resigned_seat_goes_to_another_at_once_and_the_plan_may_bring_it_back_later() -> None:
    async with staged(fair=True, definitions=[mailer()]) as stage:
        leader = stage.sim.leader("mailer")
        await leader.spawn(membership(leader).resign(MAILER))
        await stage.sim.wait_until(lambda: stage.sim.leader("mailer") is not leader, within="1s")
        await stage.settle()


def membership(runner: Runner) -> Any:
    life = runner.real._life
    assert life is not None
    return life.membership
