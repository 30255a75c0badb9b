"""What one incarnation makes of its renewals, notices and troubles, with the database played by hand."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import PersistenceError, StorageReplaced
from coterie.kernel.clock import SystemClock
from coterie.kernel.supervisor import Supervisor
from coterie.ownership import peer_notices
from coterie.ownership.admission import Definition
from coterie.ownership.directory import Directory
from coterie.ownership.membership import Membership
from coterie.settings import Settings
from coterie.storage.interface import Grant, Presences, Renewal, Sighting, checksum
from coterie.transport.requests import Routes
from tests.unit.ownership.rows import runner, seat, view
from tests.unit.ownership.test_eviction import until
from tests.unit.ownership.test_lease_session import Here, trouble
from tests.unit.ownership.test_seats import fail

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from coterie.ownership.seats import Tenure
    from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow

SHARD = "shard:default:0"
LEADER = "singleton:mayor"
SETTINGS = {"url": "sqlite://", "shards": 1, "lease_renew": "0.1s", "lease_ttl": "60s"}


class Database:
    """One shard, and whoever is registered. `fails` has what the next call of a name raises."""

    witnessed = True
    leases_only = False
    generation = 1

    def __init__(self) -> None:
        self.seats: dict[str, SeatRow] = {SHARD: seat(SHARD, epoch=0)}
        self.runners: list[RunnerRow] = []
        self.leaves = False
        self.fails: dict[str, list[Exception]] = {}
        self.calls: list[str] = []
        self.evicted = False

    def ownership(self, _: str) -> Any:
        return self._open()

    def presence(self, _: str) -> Any:
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Database]:
        yield self

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if self.fails.get(call):
            raise self.fails[call].pop(0)

    async def agree(self, values: Any) -> Any:
        return values

    async def view(self) -> ClusterSnapshot:
        self._note("view")
        return msgspec.structs.replace(view(self.runners, self.seats.values()), stamp=self.stamp)

    @property
    def stamp(self) -> str:
        return str(sorted(self.seats.values(), key=lambda each: each.name))

    async def register(self, me: Any, seats: Any, *, ttl_s: float) -> None:
        del seats, ttl_s
        self.runners.append(runner(me.id, knows=me.knows))

    async def declare(self, seats: Any) -> None:
        self._note("declare")
        for each in seats:
            self.seats[each.name] = msgspec.structs.replace(self.seats[each.name], fingerprint=each.fingerprint)

    async def define(self, seats: Any) -> bool:
        self._note("define")
        if self.evicted:
            return False
        for each in seats:
            self.seats[each.name] = seat(each.name, epoch=0, fingerprint=each.fingerprint)
            self.runners = [
                msgspec.structs.replace(row, knows={**row.knows, each.name: each.fingerprint}) for row in self.runners
            ]
        return True

    async def renew(self, *, ttl_s: float) -> Renewal | None:
        del ttl_s
        held = {each.name: each.epoch for each in self.seats.values() if each.holder == "me"}
        others = tuple(Sighting(each.id, 1, False, each.leaving) for each in self.runners if each.id != "me")
        now = datetime(2025, 1, 1, tzinfo=UTC)
        return Renewal(1, self.leaves, others, checksum(held), self.stamp, now, self.generation)

    async def leaving(self, _: str) -> bool:
        self._note("leaving")
        return True

    async def acquire(self, names: Sequence[str]) -> list[Grant]:
        self._note("acquire")
        grants = []
        for name in names:
            if self.seats[name].holder is None:
                row = self.seats[name] = msgspec.structs.replace(
                    self.seats[name], holder="me", epoch=self.seats[name].epoch + 1
                )
                grants.append(Grant(name, row.epoch, True))
        return grants

    async def release(self, name: str, epoch: int) -> bool:
        self._note("release")
        assert self.seats[name].epoch == epoch
        self.seats[name] = msgspec.structs.replace(self.seats[name], holder=None)
        return True

    async def presences(self, runners: Sequence[str]) -> Presences:
        return Presences("start 1", frozenset(runners), dict.fromkeys(runners, 1))

    async def leave(self) -> None:
        self._note("leave")


class Wires:
    """Nobody can be reached; what is told is remembered."""

    address = "127.0.0.1:9"

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def on_lost(self, _: object) -> None:
        pass

    def connected(self, _: object) -> bool:
        return False

    async def probe(self, _: object) -> str:
        return "silent"

    def notify(self, peer: Any, route: int, body: bytes) -> None:
        del route
        notice = peer_notices.decode(body)
        assert notice is not None
        self.said.append((peer.incarnation, notice.kind))


class NearBy(Here):
    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass


class Occupant:
    def __init__(self) -> None:
        self.log: list[str] = []

    async def drain(self) -> None:
        self.log.append("drain")

    def abandon(self) -> None:
        self.log.append("abandon")


class Member:
    def __init__(self, *definitions: Definition, **settings: str) -> None:
        self.database = Database()
        for each in definitions:
            self.database.seats[each.seat] = seat(each.seat, epoch=0, fingerprint=each.fingerprint)
        self.wires = Wires()
        self.occupants: dict[str, Occupant] = {}
        self.failovers = 0
        self.bad: set[str] = set()

        async def read() -> ClusterSnapshot:
            raise AssertionError("nobody asks")

        self.directory = Directory(read)
        self.membership = Membership(
            Settings.load({**SETTINGS, **settings}, environ={}),
            incarnation="me",
            name="me",
            storage=self.database,  # type: ignore[arg-type] # a stand-in, as are the next
            transport=self.wires,  # type: ignore[arg-type]
            routes=Routes(),
            aside=NearBy(),
            clock=SystemClock(),
            directory=self.directory,
            definitions=definitions,
            occupy=self._occupy,
            wake=lambda _: None,
            failed_over=self._failed_over,
            host="here",
            process="1",
            supervisor=Supervisor(),
        )

    def _occupy(self, tenure: Tenure) -> Occupant:
        if tenure.seat in self.bad:
            raise KeyError(tenure.seat)
        self.occupants[tenure.seat] = Occupant()
        return self.occupants[tenure.seat]

    def _failed_over(self) -> None:
        self.failovers += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Membership]:
        async with self.membership:
            await asyncio.wait_for(self.membership.ready(), 20)
            yield self.membership


def holds(stage: Member, name: str = SHARD) -> bool:
    return stage.membership.tenure(name) is not None


async def test_it_takes_what_is_free_and_is_ready_when_nothing_is_missing() -> None:
    stage = Member()
    assert stage.membership.missing
    async with stage.running() as membership:
        assert holds(stage)
        assert membership.missing == ""
        assert not membership.is_leaving
    assert stage.occupants[SHARD].log == ["abandon"], "stopping without a farewell cuts off what runs"
    assert membership.ended.cancelled()


async def test_leaving_drains_gives_back_and_says_goodbye() -> None:
    stage = Member()
    async with stage.running() as membership:
        await membership.leave()
        assert membership.is_leaving
    assert stage.occupants[SHARD].log == ["drain"]
    assert [each for each in stage.database.calls if each in ("leaving", "release", "leave")] == [
        "leaving",
        "release",
        "leave",
    ]


async def test_who_cannot_say_that_it_leaves_drains_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coterie.ownership")
    stage = Member()
    async with stage.running() as membership:
        stage.database.fails["leaving"] = [trouble("refused")]
        await membership.leave()
    assert "could not be marked as leaving" in caplog.text
    assert (stage.occupants[SHARD].log, stage.database.seats[SHARD].holder) == (["drain"], None)


async def test_a_farewell_that_cannot_be_said_is_left_to_the_lease(caplog: pytest.LogCaptureFixture) -> None:
    stage = Member()
    async with stage.running() as membership:
        stage.database.fails["leave"] = [StorageReplaced(doing="test", problem="test")]
        await membership.leave()
    assert "could not deregister" in caplog.text


async def test_one_that_is_asked_to_leave_by_a_mark_in_its_row_hands_over_and_stays() -> None:
    stage = Member()
    async with stage.running() as membership:
        stage.database.leaves = True
        stage.database.runners = [runner("me", leaving=True)]
        await until(lambda: membership.is_leaving and not holds(stage))
        assert stage.database.seats[SHARD].holder is None
        passes = stage.database.calls.count("leaving")
        await until(lambda: membership._renewals > 3)
        assert stage.database.calls.count("leaving") == passes == 1, "it is begun once"
        assert "leave" not in stage.database.calls
        assert not holds(stage), "and takes nothing any more"


async def test_after_a_failover_everything_is_given_up_and_taken_anew(caplog: pytest.LogCaptureFixture) -> None:
    stage = Member()
    async with stage.running() as membership:
        first = stage.occupants[SHARD]
        stage.database.generation = 2
        await until(lambda: stage.failovers and holds(stage))
        tenure = membership.tenure(SHARD)
        assert tenure is not None
        assert (first.log, tenure.epoch) == (["abandon"], 2)
        assert membership.vitals.failed_over_s is not None
        assert "may be missing" in caplog.text
        renewals = membership._renewals
        await until(lambda: membership._renewals > renewals + 1)
        assert stage.failovers == 1, "it is told once"


@pytest.mark.parametrize("what", ["stamp", "member", "leaving", "seats", "nothing"])
async def test_the_tables_are_read_again_if_a_renewal_shows_that_something_has_changed(what: str) -> None:
    stage = Member()
    async with stage.running() as membership:
        await until(lambda: not membership._stale and not membership._wake.is_set())
        renewal = await stage.database.renew(ttl_s=1.0)
        assert renewal is not None
        changes: dict[str, dict[str, Any]] = {
            "stamp": {"stamp": "another"},
            "member": {"others": (Sighting("new", 1, False, False),)},
            "leaving": {"leaving": True},
            "seats": {"held": checksum({SHARD: 99})},
            "nothing": {},
        }
        membership._leaving = True  # nothing is handed over here
        membership._compare(msgspec.structs.replace(renewal, **changes[what]), 0)
        assert membership._stale is (what != "nothing")


async def test_what_a_renewal_meets_is_raised_by_the_next_pass_which_is_supervised() -> None:
    stage = Member()
    async with stage.running() as membership:
        saw, membership._watch.saw = membership._watch.saw, fail  # type: ignore[method-assign]
        await until(membership._supervisor.failing)
        membership._watch.saw = saw  # type: ignore[method-assign]
        renewals = membership._renewals
        await until(lambda: membership._renewals > renewals + 2)
        assert holds(stage)


async def test_one_that_resigns_gives_back_at_once_and_says_for_how_long() -> None:
    mayor = Definition(seat=LEADER, group="default", fingerprint="v1")
    stage = Member(mayor)
    async with stage.running() as membership:
        await until(lambda: holds(stage, LEADER))
        assert membership.excluded() == {}
        await membership.resign(LEADER, cause="failed", error="boom")
        assert not holds(stage, LEADER)
        exclusion, left_s = membership.excluded()[LEADER]
        assert (exclusion.cause, exclusion.error) == ("failed", "boom")
        assert left_s is not None
        assert 0 < left_s <= 10
        await membership.resign(SHARD, cause="refused")
        assert membership.excluded()[SHARD][1] is None, "as long as it lives"
        await membership.resign(SHARD)  # which is not held any more
        assert stage.database.calls.count("release") == 2


async def test_one_that_resigns_offers_the_seat_to_the_next_in_order() -> None:
    stage = Member()
    async with stage.running() as membership:
        stage.database.runners.append(runner("other"))
        await until(lambda: membership._plans.order(SHARD) and len(membership._plans.order(SHARD)) == 2)
        await membership.resign(SHARD)
        assert ("other", "offer") in stage.wires.said


@pytest.mark.parametrize(("name", "epoch", "is_ours"), [(SHARD, 1, True), (SHARD, 2, False), (LEADER, 1, False)])
async def test_only_what_is_held_at_that_epoch_is_resigned_when_another_asks(
    name: str, epoch: int, is_ours: bool
) -> None:
    stage = Member()
    async with stage.running() as membership:
        assert membership._asked_to_resign(name, epoch) is is_ours
        if is_ours:
            await until(lambda: not holds(stage))
        else:
            assert holds(stage)


async def test_one_that_cannot_be_occupied_is_given_back_and_left_alone_for_a_while() -> None:
    stage = Member()
    stage.bad.add(SHARD)
    async with stage.membership:
        await until(lambda: SHARD in stage.membership.excluded() and stage.database.seats[SHARD].holder is None)
        assert stage.membership.excluded()[SHARD][0].cause == "failed"


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_why_it_is_over_is_told_once(is_replaced: bool) -> None:
    stage = Member()
    async with stage.running() as membership:
        error = StorageReplaced(doing="test", problem="test")
        membership._over(error if is_replaced else "evicted")
        assert stage.occupants[SHARD].log == ["abandon"]
        membership._over("something else")
    if is_replaced:
        assert membership.ended.exception() is error
    else:
        assert membership.ended.result() == "evicted"


async def test_without_trust_or_a_session_nothing_is_taken() -> None:
    stage = Member()
    async with stage.running() as membership:
        calls = stage.database.calls.count("acquire")
        membership.trust.connected = False
        assert not await membership._acquire()
        await membership._acquire_some([SHARD])
        membership.trust.connected = True
        membership.trust.end()
        assert not await membership._acquire()
        assert stage.database.calls.count("acquire") == calls


async def test_a_pass_that_fails_is_made_again_with_the_next_renewal(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "coterie.ownership")
    stage = Member()
    stage.database.fails["acquire"] = [trouble("refused")]
    async with stage.running():
        assert holds(stage)
    assert "seats could not be settled" in caplog.text


async def test_what_is_defined_later_is_declared_and_taken_and_the_others_are_told() -> None:
    stage = Member()
    async with stage.running() as membership:
        stage.database.fails["define"] = [trouble("refused")]
        membership.define(Definition(seat=LEADER, group="default", fingerprint="v1", takeover_delay_s=3.0))
        await until(lambda: holds(stage, LEADER))
        assert stage.database.calls.count("define") == 2, "one that failed is tried again"
        assert membership._undeclared == {}


async def test_c3_evictions_come_before_all_writes_of_a_pass() -> None:
    """One that froze inside a commit holds up all writes on SQLite until it is evicted."""
    stage = Member()

    async def evict_expired() -> None:
        stage.database.fails.clear()

    async with stage.running() as membership:
        membership._failure_detector.evict_expired = evict_expired  # type: ignore[method-assign]
        stage.database.fails["define"] = [trouble("refused")] * 1000
        membership.define(Definition(seat=LEADER, group="default", fingerprint="v1", takeover_delay_s=3.0))
        await until(lambda: holds(stage, LEADER))
        assert stage.database.calls.count("define") == 1


async def test_one_that_was_evicted_declares_nothing() -> None:
    stage = Member()
    async with stage.running() as membership:
        stage.database.evicted = True
        membership.define(Definition(seat=LEADER, group="default", fingerprint="v1"))
        await until(lambda: "define" in stage.database.calls)
        assert set(membership._undeclared) == {LEADER}
        assert LEADER not in stage.database.seats


async def test_an_older_definition_comes_back_when_nobody_has_the_current_one() -> None:
    stage = Member(Definition(seat=LEADER, group="default", fingerprint="v1"))
    stage.database.seats[LEADER] = seat(LEADER, epoch=0, fingerprint="v2")
    async with stage.running():
        await until(lambda: holds(stage, LEADER))
        assert stage.database.seats[LEADER].fingerprint == "v1"


async def test_when_trust_runs_out_everything_is_given_up_and_comes_back_with_the_next_renewal() -> None:
    stage = Member(lease_ttl="3s", lease_margin="2s")
    async with stage.running() as membership:
        renew = stage.database.renew

        async def silent(*, ttl_s: float) -> Renewal | None:
            raise PersistenceError(doing="test", problem=f"{ttl_s}", outcome="refused")

        stage.database.renew = silent  # type: ignore[method-assign]
        renewals = membership._renewals
        await until(lambda: not holds(stage))
        assert stage.occupants[SHARD].log == ["abandon"]
        stage.database.renew = renew  # type: ignore[method-assign]
        await until(lambda: membership._renewals > renewals and holds(stage))
        tenure = membership.tenure(SHARD)
        assert tenure is not None
        assert tenure.epoch >= 2, "it was given back first"


async def test_who_hears_of_an_offer_or_of_a_new_runner_looks_at_once() -> None:
    stage = Member()
    async with stage.running() as membership:
        membership._wake.clear()
        membership._offered("shard:default:9", 4)
        assert membership._wake.is_set()
        membership._wake.clear()
        membership._greet(type("Peer", (), {"incarnation": "new"})())
        assert membership._wake.is_set()
        assert stage.wires.said == [("new", "look")]
