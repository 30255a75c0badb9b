"""Runners that were never met: reached, seen to renew, or evicted, with the database and the network played by hand."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import PersistenceError, RunnerUnavailable
from coterie.ownership.directory import Directory
from coterie.ownership.failure_detector import FailureDetector, LeaseWatch
from coterie.ownership.liveness import Rule
from coterie.storage.interface import Presences, Sighting
from tests.unit.ownership.rows import runner, view

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from coterie.storage.interface import RunnerRow
    from coterie.transport.interface import PeerAddress, Presence

MS = 1_000_000
HERE = "here"
FREE = Presences("start 1", frozenset(), {"old": 7}, up_s=60.0)
HELD = msgspec.structs.replace(FREE, held=frozenset({"old"}))
OVER = msgspec.structs.replace(FREE, expired=frozenset({"old"}))
GONE = msgspec.structs.replace(FREE, gone=frozenset({"old"}))


class EvictionCase:
    """The dedicated session, the network, and what became of the runner that is called old."""

    address = "127.0.0.1:9"
    directory: Directory
    lose: Callable[[str, str], None]

    def __init__(self, found: Presences, presence: Presence = "silent") -> None:
        self.found = found
        self.presence: Presence | Exception | None = presence
        self.sessions = 1
        self.looks: list[list[str]] = []
        self.probed: list[str] = []
        self.connections: list[str] = []
        self.unreachable = False
        self.spares = False
        self.held_up: set[str] = set()
        self.lost = False
        self.evicted: list[tuple[str, int, bool]] = []
        self.gone: list[str] = []
        self.reached: list[str] = []
        self.clock_ns = 0

    def now_ns(self) -> int:
        """Time passes with each question."""
        self.clock_ns += MS
        return self.clock_ns

    # The session

    async def ask(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self)

    async def presences(self, runners: Sequence[str]) -> Presences:
        self.looks.append(list(runners))
        if self.lost:
            raise PersistenceError(doing="test", problem="test", outcome="unreachable")
        return self.found

    async def evict(self, victim: str, *, counter: int, expired: bool) -> bool:
        if victim in self.held_up:
            raise PersistenceError(doing="test", problem=f"{victim} is held up", outcome="refused")
        self.evicted.append((victim, counter, expired))
        return not self.spares

    # The network

    def on_lost(self, listener: Callable[[str, str], None]) -> None:
        self.lose = listener

    async def probe(self, peer: PeerAddress) -> Presence:
        self.probed.append(peer.incarnation)
        if isinstance(self.presence, Exception):
            raise self.presence
        if self.presence is None:
            await asyncio.Event().wait()
        assert self.presence is not None
        return self.presence

    async def connect(self, peer: PeerAddress) -> None:
        if self.unreachable:
            raise RunnerUnavailable(runner=peer.incarnation, problem="test", sent=False, target="")
        self.connections.append(peer.incarnation)

    def connected(self, peer: PeerAddress) -> bool:
        return peer.incarnation in self.connections


@asynccontextmanager
async def evicting(world: Any, *others: RunnerRow) -> AsyncIterator[FailureDetector]:
    """Watches old, and others if there are any."""

    async def read() -> Any:
        raise AssertionError("nobody asks")

    directory = world.directory = Directory(read)
    directory.learn(view([runner("me"), *(others or (runner("old"),))], []))
    found = FailureDetector(
        "me",
        host_id=HERE,
        transport=world,
        directory=directory,
        lease_keeper=world,
        watch=LeaseWatch(ttl_ns=6000 * MS, gap_ns=3000 * MS),
        rule=Rule(pause_ns=30 * MS, ttl_s=6.0),
        now_ns=world.now_ns,
        reached=lambda peer: world.reached.append(peer.incarnation),
        gone=world.gone.append,
    )
    try:
        yield found
    finally:
        await found.stop()


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    ("found", "presence", "expired"),
    [(FREE, "refused", False), (FREE, "other", False), (OVER, "silent", True), (OVER, "stranger", True)],
)
async def test_one_that_died_before_we_started_is_evicted_with_the_counter_that_was_seen(
    found: Presences, presence: Presence, expired: bool
) -> None:
    world = EvictionCase(found, presence)
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, expired)]


async def test_where_the_kernel_knows_no_address_is_asked() -> None:
    world = EvictionCase(GONE, "present")
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, False)]
    assert world.probed == []


async def test_an_address_that_never_answers_is_silent_after_a_while() -> None:
    world = EvictionCase(OVER)
    world.presence = None
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, True)]


async def test_loopback_of_another_host_is_not_asked() -> None:
    """What listens there is somebody else's."""
    world = EvictionCase(OVER, "refused")
    async with evicting(world, msgspec.structs.replace(runner("old"), host_id="elsewhere")) as watching:
        await watching.check_neighbours()
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, True)]
    assert world.probed == []


async def test_our_own_address_is_near_whatever_host_it_was() -> None:
    """A container that was started again has another network namespace, and often the same address."""
    found = msgspec.structs.replace(FREE, up_s=0.0)
    world = EvictionCase(found, "other")
    world.address = "10.0.0.5:7651"
    row = msgspec.structs.replace(runner("old"), host_id="elsewhere", address="10.0.0.5:7651")
    async with evicting(world, row) as watching:
        await watching.check_neighbours()
        await until(lambda: world.gone)
        assert len(world.looks) == 3, "no second look was needed"


async def test_one_that_answers_is_met_and_kept_in_touch_with() -> None:
    world = EvictionCase(FREE, "present")
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.reached)
        assert watching.met("old")
        assert world.connections == ["old"]
        looks = len(world.looks)
        world.connections.clear()
        await watching.check_neighbours()
        await until(lambda: world.connections)
        assert len(world.looks) == looks + 1, "one that was met is not examined"
    assert not world.evicted


async def test_one_that_renews_is_alive_although_it_cannot_be_reached() -> None:
    world = EvictionCase(FREE, "silent")
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: len(world.looks) > 2)
        assert not watching.met("old")
        world.found = msgspec.structs.replace(OVER, counters={"old": 8})
        await until(lambda: watching.met("old"))
        await until(lambda: not watching._connecting)
    assert not world.evicted


async def test_one_whose_lock_is_held_is_looked_at_until_it_is_free() -> None:
    """The server takes some milliseconds to notice that a session is gone."""
    world = EvictionCase(HELD, "refused")
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: len(world.looks) > 4)
        assert not world.evicted
        world.found = FREE
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, False)]


async def test_one_that_leaves_meanwhile_is_left_alone() -> None:
    world = EvictionCase(HELD, "silent")
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.probed)
        world.found = Presences("start 1", frozenset(), {})
        await until(lambda: not watching._connecting)
    assert not world.evicted


@pytest.mark.parametrize("trouble", ["database", "network"])
async def test_what_fails_is_tried_again_with_the_next_pass(trouble: str) -> None:
    world = EvictionCase(FREE, "present")
    world.unreachable = trouble == "network"
    async with evicting(world) as watching:
        if trouble == "database":
            world.presence = PersistenceError(doing="test", problem="test", outcome="unreachable")
        await watching.check_neighbours()
        await until(lambda: world.probed and not watching._connecting)
        assert not watching.met("old")
        world.unreachable, world.presence = False, "present"
        await watching.check_neighbours()
        await until(lambda: watching.met("old"))


async def test_of_many_runners_those_beyond_the_neighbours_are_asked_only_if_their_lock_is_free() -> None:
    """All of forty are killed: whoever starts first finds them all."""
    ids = [f"r{number:02}" for number in range(40)]
    dead = {"r20", "r30"}
    found = Presences("start 1", frozenset(ids) - dead, dict.fromkeys(ids, 7), up_s=60.0)
    world = EvictionCase(found, "refused")
    async with evicting(world, *map(runner, ids)) as watching:
        await watching.check_neighbours()
        await until(lambda: set(world.gone) == dead)
        far = set(ids) - dead - {each for each in world.looks[0] if each in world.probed}
        assert not far & set(world.probed)
    assert sorted(world.evicted) == [(each, 7, False) for each in sorted(dead)]


async def test_one_of_many_that_answers_is_met_without_a_connection() -> None:
    ids = [f"r{number:02}" for number in range(40)]
    found = Presences("start 1", frozenset(ids) - {"r30"}, dict.fromkeys(ids, 7), up_s=60.0)
    world = EvictionCase(found, "present")
    async with evicting(world, *map(runner, ids)) as watching:
        await watching.check_neighbours()
        await until(lambda: watching.met("r30"))
        assert "r30" not in world.connections
    assert not world.evicted


# One that was met, and whose connection breaks: both witnesses must say that it is dead.


@asynccontextmanager
async def met(world: EvictionCase, row: RunnerRow | None = None) -> AsyncIterator[FailureDetector]:
    """Old was reached, its lock was seen, and its connection has just broken."""
    world.found, world.presence = HELD, "present"
    async with evicting(world, row or runner("old")) as watching:
        await watching.check_neighbours()
        await until(lambda: world.reached and not watching._connecting)
        world.connections.clear()
        world.looks.clear()
        world.probed.clear()
        yield watching


@pytest.mark.parametrize("presence", ["refused", "other"])
async def test_two_witnesses_are_enough(presence: Presence) -> None:
    world = EvictionCase(HELD)
    async with met(world):
        world.found, world.presence = FREE, presence
        world.lose("old", "reset")
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, False)]
    assert len(world.looks) == 1


@pytest.mark.parametrize("presence", ["silent", "stranger", "present"])
async def test_an_address_that_does_not_refuse_is_no_witness(presence: Presence) -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.found, world.presence = FREE, presence
        world.lose("old", "reset")
        await until(lambda: len(world.probed) >= 3)
        assert watching._suspects == {"old"}
        assert not world.looks, "its lock is not even looked at"
    assert not world.evicted


async def test_a_lock_that_is_held_is_looked_at_again_until_it_is_free() -> None:
    world = EvictionCase(HELD)
    async with met(world):
        world.presence = "refused"
        world.lose("old", "reset")
        await until(lambda: len(world.looks) >= 3)
        assert not world.evicted
        world.found = FREE
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, False)]


async def test_a_free_lock_on_another_start_of_the_server_proves_nothing() -> None:
    world = EvictionCase(HELD)
    async with met(world):
        world.found, world.presence = msgspec.structs.replace(FREE, server="start 2"), "refused"
        world.lose("old", "reset")
        await until(lambda: len(world.looks) >= 3)
    assert not world.evicted


async def test_one_whose_row_is_gone_already_is_not_evicted() -> None:
    world = EvictionCase(HELD)
    async with met(world):
        world.found, world.presence = Presences("start 1", frozenset(), {}), "refused"
        world.lose("old", "reset")
        await until(lambda: len(world.looks) >= 2)
    assert not world.evicted


async def test_one_that_comes_back_is_suspected_no_more() -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.found, world.presence = FREE, "silent"
        world.lose("old", "reset")
        await until(lambda: world.probed)
        world.connections.append("old")
        await until(lambda: not watching._suspects)
        world.connections.clear()
        world.presence = "refused"
        world.lose("old", "reset once more")
        await until(lambda: world.gone)
    assert world.evicted == [("old", 7, False)]


async def test_one_that_has_left_meanwhile_is_suspected_no_more() -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.presence = "silent"
        world.lose("old", "reset")
        await until(lambda: world.probed)
        world.directory.learn(view([runner("me")], []))
        await until(lambda: not watching._suspects)
        probed = len(world.probed)
        world.lose("old", "reset")
        assert not watching._suspects, "nobody of that name is known"
    assert len(world.probed) == probed
    assert not world.evicted


async def test_one_that_another_observer_evicted_is_work_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    world = EvictionCase(HELD)
    world.spares = True
    async with met(world):
        world.found, world.presence = FREE, "refused"
        world.lose("old", "reset")
        await until(lambda: world.gone)
    assert not [each for each in caplog.records if "was evicted" in each.message], "it was not evicted by us"


async def test_without_the_database_a_suspect_is_left_to_its_lease(caplog: pytest.LogCaptureFixture) -> None:
    world = EvictionCase(HELD)
    caplog.set_level("INFO", logger="coterie.ownership")
    async with met(world) as watching:
        world.presence, world.lost = "refused", True
        world.lose("old", "reset")
        await until(lambda: not watching._suspects)
        assert "runner old could not be examined; it is evicted when its lease expires" in caplog.text
        assert len(world.looks) == 1
    assert not world.evicted


async def test_a_suspect_is_examined_once_at_a_time() -> None:
    world = EvictionCase(HELD)
    async with met(world):
        world.presence = None
        for _ in range(3):
            world.lose("old", "reset")
        await until(lambda: world.probed)
        assert len(world.probed) == 1


async def test_the_refusal_of_one_that_was_never_reached_means_nothing() -> None:
    world = EvictionCase(HELD, "refused")
    async with evicting(world) as watching:
        world.lose("old", "reset")
        assert not watching._suspects


async def test_connections_that_break_while_we_stop_are_our_own_doing() -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        await watching.stop()
        world.presence = "refused"
        world.lose("old", "reset")
        assert not watching._suspects


async def test_one_met_by_its_renewals_alone_is_connected_to_and_then_reached() -> None:
    world = EvictionCase(HELD, "silent")
    async with evicting(world) as watching:
        watching._watch.saw([Sighting("old", 7, False, False)], sent_ns=1, got_ns=2)
        watching._watch.saw([Sighting("old", 8, False, False)], sent_ns=3, got_ns=4)
        assert watching.met("old")
        await watching.check_neighbours()
        await until(lambda: world.connections and not watching._connecting)
        assert not world.reached, "whoever answers there did not say that it is this incarnation"
        world.connections.clear()
        world.presence = "present"
        await watching.check_neighbours()
        await until(lambda: world.reached == ["old"])


# By the lease alone


@pytest.mark.parametrize("spared", [False, True])
async def test_one_whose_lease_has_run_out_is_evicted_unless_the_database_spares_it(spared: bool) -> None:
    world = EvictionCase(HELD)
    world.spares = spared
    async with evicting(world) as watching:
        for second in range(0, 10_000, 1000):
            watching._watch.saw([Sighting("old", 7, True, False)], sent_ns=second * MS, got_ns=second * MS)
        await watching.evict_expired()
    assert world.evicted == [("old", 7, True)]
    assert world.gone == ([] if spared else ["old"]), "one that was spared is looked at again"


async def test_c3_each_whose_lease_has_run_out_is_tried_whatever_holds_up_the_eviction_of_another() -> None:
    """On SQLite that may be the next one itself, frozen inside a commit."""
    world = EvictionCase(HELD)
    world.held_up = {"a", "b"}
    async with evicting(world) as watching:
        for second in range(0, 10_000, 1000):
            sightings = [Sighting(each, 7, True, False) for each in ("a", "b", "c")]
            watching._watch.saw(sightings, sent_ns=second * MS, got_ns=second * MS)
        with pytest.raises(PersistenceError, match="a is held up"):
            await watching.evict_expired()
    assert world.evicted == [("c", 7, True)]


async def test_one_that_is_reached_and_connected_is_left_in_peace() -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.connections.append("old")
        await watching.check_neighbours()
        assert not watching._connecting
        assert (world.probed, world.looks) == ([], [])


async def test_one_thing_at_a_time_is_done_about_a_runner() -> None:
    world = EvictionCase(HELD)
    world.presence = None
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: world.probed)
        await watching.check_neighbours()
        assert len(watching._tasks) == 1
    assert world.probed == ["old"]


async def test_a_connection_that_fails_is_tried_again_with_the_next_pass() -> None:
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.unreachable = True
        await watching.check_neighbours()
        await until(lambda: not watching._connecting)
        world.unreachable = False
        await watching.check_neighbours()
        await until(lambda: world.connections)


async def test_one_that_leaves_while_its_address_is_asked_is_left_alone() -> None:
    world = EvictionCase(FREE, "refused")

    async def probe(peer: PeerAddress) -> Presence:
        world.found = Presences("start 1", frozenset(), {})
        return "refused"

    world.probe = probe  # type: ignore[method-assign]
    async with evicting(world) as watching:
        await watching.check_neighbours()
        await until(lambda: not watching._connecting)
    assert (world.evicted, world.gone) == ([], [])


async def test_a_suspect_that_shows_no_sign_either_way_is_left_to_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.ownership.failure_detector._LOOKS_S", (0.0, 0.0, 0.0))
    world = EvictionCase(HELD)
    async with met(world) as watching:
        world.presence = "refused"
        world.lose("old", "reset")
        await until(lambda: not watching._suspects)
        assert len(world.looks) == 3
    assert not world.evicted
