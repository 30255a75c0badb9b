"""A whole cluster of plans comes to rest: everything held, fairly, and nothing moves any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.ownership.assignment import targets
from coterie.ownership.rebalance import Rebalance
from tests.unit.ownership.rows import runner, shards, view

if TYPE_CHECKING:
    from coterie.storage.interface import RunnerRow, SeatRow

S = 1_000_000_000


class Table:
    """The database, and a runner's plans for each member. A round is a second, and a renewal of everybody."""

    def __init__(self, rows: list[SeatRow]) -> None:
        self.rows = {row.name: row for row in rows}
        self.members: dict[str, RunnerRow] = {}
        self.plans: dict[str, Rebalance] = {}
        self.broken: set[str] = set()
        self.refusing: set[tuple[str, str]] = set()
        self.now = 0
        self.grants = 0

    def join(self, id: str) -> None:
        self.members[id] = runner(id)
        self.plans[id] = Rebalance(id, delays={})

    def end(self, id: str) -> None:
        del self.members[id], self.plans[id]
        for row in list(self.rows.values()):
            if row.holder == id:
                self.put(row, None)

    def put(self, row: SeatRow, holder: str | None) -> None:
        epoch = row.epoch + (holder is not None)
        self.grants += holder is not None
        self.rows[row.name] = msgspec.structs.replace(row, holder=holder, epoch=epoch)

    def held(self, id: str) -> set[str]:
        return {row.name for row in self.rows.values() if row.holder == id}

    def round(self, awake: list[str]) -> None:
        """Those who are awake, in this order, read the tables, take and hand over."""
        self.now += 1
        for me in awake:
            self.plans[me].learn(
                view(self.members.values(), self.rows.values()), now_ns=self.now * S, renewals=self.now
            )
        for me in awake:
            for name, target in self.plans[me].give(self.held(me), self.now):
                self.put(self.rows[name], None)
                if target in self.plans:
                    self.plans[target].offered(name, self.rows[name].epoch)
            for name in self.plans[me].acquire(self.held(me), self.now * S):
                if self.rows[name].holder is None and me not in self.broken and (me, name) not in self.refusing:
                    self.put(self.rows[name], me)

    @property
    def free(self) -> list[str]:
        return [row.name for row in self.rows.values() if row.holder is None]


events = st.lists(st.tuples(st.sampled_from(["join", "end"]), st.integers(0, 5), st.integers(0, 8)), max_size=6)


@settings(deadline=None, max_examples=60)
@given(events, st.randoms(use_true_random=False))
def test_a_cluster_comes_to_rest_whatever_came_and_went_REBAL_01(
    events: list[tuple[str, int, int]], chance: Any
) -> None:
    """Everybody sees another state of the tables, until nothing changes: then all is held, fairly, and stays so."""
    table = Table(shards(20))
    table.join("r0")
    for kind, number, rounds in events:
        who = f"r{number}"
        if kind == "join" and who not in table.members:
            table.join(who)
        elif kind == "end" and who in table.members and len(table.members) > 1:
            table.end(who)
        for _ in range(rounds):
            awake = [each for each in table.members if chance.random() < 0.7]
            table.round(chance.sample(awake, len(awake)))
    for _ in range(2):
        for _ in range(12):
            table.round(chance.sample(list(table.members), len(table.members)))
        table.now += 600  # whoever slept for so long that others took its seats is trusted again [m1]
    sizes = [len(table.held(each)) for each in table.members]
    assert table.free == []
    assert max(sizes) - min(sizes) <= 1
    grants = table.grants
    for _ in range(12):
        table.round(list(table.members))
    assert table.grants == grants


def test_a_join_moves_each_seat_at_most_once_and_within_three_rounds_m2() -> None:
    table = Table(shards(20))
    for each in ("r0", "r1", "r2"):
        table.join(each)
    table.round(list(table.members))
    assert (table.free, table.grants) == ([], 20)
    table.join("r3")
    for _ in range(3):
        table.round(list(table.members))
    assert (len(table.held("r3")), table.free, table.grants) == (5, [], 25)


def test_a_runner_that_takes_nothing_costs_its_seats_one_wait_and_no_more_m1() -> None:
    """Without memory each round of patience would be followed by the next move to it, for ever."""
    table = Table(shards(20))
    for each in ("r0", "r1", "r2", "r3"):
        table.join(each)
    table.broken.add("r3")
    rounds_with_free = 0
    for _ in range(300):
        table.round(list(table.members))
        rounds_with_free += bool(table.free)
    assert table.free == []
    assert rounds_with_free <= 12
    assert table.grants == 20


def test_a_leader_that_refuses_is_not_offered_the_seat_again_and_again_m1() -> None:
    rows = shards(4)
    table = Table(rows)
    for each in ("r0", "r1"):
        table.join(each)
    table.refusing = {("r0", row.name) for row in rows if targets(table.members.values(), rows)[row.name] == "r0"}
    rounds_with_free = 0
    for _ in range(300):
        table.round(list(table.members))
        rounds_with_free += bool(table.free)
    assert table.free == []
    assert rounds_with_free <= 12
