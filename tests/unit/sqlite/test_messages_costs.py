"""What hot work on messages costs, counted by SQLite: beside a million that are done what it costs without them."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.storage import migrations
from coterie.storage.contracts.messages import Commit, Insert, Message, Setback, StateChange, Suspected, Suspicion
from coterie.storage.interface import Claim, Registration
from coterie.storage.sqlite import message_writes, messages, seats
from coterie.storage.sqlite.database import open_file
from coterie.storage.sqlite.store import Scope
from tests.support.finished_messages import fill_sqlite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    Work = Callable[[apsw.Connection], object]

NOW = Scope("default", 1_800_000_000_123_456_789)
DAY_S = 86_400.0
RUNNER, SEATS = "a" * 32, [f"shard:default:{number}" for number in range(256)]
CLAIM = Claim(RUNNER, SEATS[7], 1)
GROUP = 100
"""Messages that are there for each piece of work, and of a group."""

OLD = """
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)
insert into messages (
    cluster, id, seat, entity_type, entity_id, method, digest, status, sent_at_ns, due_at_ns, completed_at_ns, payload
)
select 'default', printf('%032x', n), 'shard:default:9', 'Account', 'alice', 'add', x'', 1, n, n, n, x'' from numbers;
"""
"""Done long ago, with ids before all others."""


def message(number: int, *, entity: int | None = None, **more: Any) -> Message:
    """One whose id comes after all others, to an entity that had some before."""
    name = f"entity-{3 * (number if entity is None else entity) + 1}"
    given = {"entity_type": "Account1", "entity_id": name, "method": "add", "payload": b"p", **more}
    return Message(id=f"f{number:031x}", seat=CLAIM.seat, **given)


HERE = [message(number, key=f"old {number}") for number in range(GROUP)]
NEW = [message(GROUP + number, key=f"new {number}") for number in range(GROUP)]
END = Commit(CLAIM, HERE[0].id, b"reply")
KEPT = {"retention_s": DAY_S, "key_retention_s": 7 * DAY_S}
BY_KEY = {"entity_type": "Account1", "entity_id": HERE[-1].entity_id, "method": "add", "key": "old 99"}

HOT: Mapping[str, Work] = {
    "insert": lambda c: message_writes.insert(c, NOW, [Insert(NEW[0])]),
    "insert, a group": lambda c: message_writes.insert(c, NOW, [Insert(message(GROUP + n)) for n in range(GROUP)]),
    "insert, a group with keys": lambda c: message_writes.insert(c, NOW, [Insert(each) for each in NEW]),
    "insert what is there": lambda c: message_writes.insert(c, NOW, [Insert(HERE[0])]),
    "insert a key that is there": lambda c: message_writes.insert(
        c, NOW, [Insert(message(500, entity=99, key="old 99"))]
    ),
    "end": lambda c: message_writes.commit(c, NOW, [END]),
    "end, a group": lambda c: message_writes.commit(c, NOW, [Commit(CLAIM, each.id, b"reply") for each in HERE]),
    "end, with state and a send": lambda c: message_writes.commit(
        c, NOW, [Commit(CLAIM, HERE[0].id, b"reply", StateChange("e", b"state", 0), (NEW[0],))]
    ),
    "setback": lambda c: message_writes.setback(c, NOW, Setback(CLAIM, HERE[0].id, 1, "boom", 1.0)),
    "sweep of all seats": lambda c: messages.due(c, NOW, dict.fromkeys(SEATS), ahead_s=0.0, most=100),
    "next due of a seat": lambda c: messages.due(c, NOW, {CLAIM.seat: None}, ahead_s=DAY_S, most=1),
    "fetch": lambda c: messages.fetch(c, NOW, [each.id for each in HERE]),
    "takeover": lambda c: messages.suspect(c, NOW, CLAIM, {"Account1": 1, "Account2": 1}, loss_limit=3),
    "mark": lambda c: messages.mark(c, NOW, CLAIM, HERE[0].id, Suspicion.ALONE),
    "result by id": lambda c: messages.look(c, NOW, [HERE[0].id]),
    "result by key": lambda c: messages.find(c, NOW, **BY_KEY),
    "cancel": lambda c: messages.cancel(c, NOW, HERE[0].id, CLAIM, reply=b"cancelled"),
    "backlog": lambda c: messages.backlog(c, NOW, most=100, dead_most=1000),
    "purge of a batch": lambda c: messages.purge(c, NOW, after="", **KEPT, most=GROUP),
    "purge past the last": lambda c: messages.purge(c, NOW, after=HERE[0].id, **KEPT, most=1000),
}

DONE = {
    "end": ["written"],
    "end, a group": ["written"] * GROUP,
    "end, with state and a send": ["written"],
    "setback": "written",
    "takeover": Suspected(GROUP, ()),
    "cancel": True,
    "purge of a batch": (GROUP, f"{GROUP:032x}"),
}
"""What some of it returns if it does what it should."""
ROWS = {
    **dict.fromkeys((name for name in HOT if "a group" in name or "purge" in name), GROUP),
    **dict.fromkeys(("fetch", "takeover"), GROUP),
    "sweep of all seats": len(SEATS),
    "end, with state and a send": 3,
}
"""How many rows, or seats, a piece of work looks for: one unless told."""
DEEPER = 12
"""Pages more for each of them, as trees are up to two pages higher, and a write goes down several of them."""
TIMES = {"insert, a group with keys": 5}
"""How many times as long it may take, 3 unless told: beside a million each key lies on a page of its own."""
NOISE_S = 50e-6


@dataclass(frozen=True)
class Cost:
    """What SQLite did: operations of its machine, rows of walks, and pages that it looked at."""

    steps: int
    walked: int
    pages: int


class MeasuredFile:
    """A file with our tables, and what work on it costs; nothing of the work stays."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        with connection:
            self._set_up()

    def _set_up(self) -> None:
        for migration in migrations.load("coterie.storage.sqlite.migrations"):
            self._connection.execute(migration.sql)
        me = Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
        seats.register(self._connection, NOW, me)
        self._connection.executemany(
            'insert into seats (cluster, name, "group", holder, epoch, effective_from_ns) values (?, ?, ?, ?, 1, 0)',
            [("default", seat, "default", RUNNER) for seat in SEATS],
        )

    def fill(self, count: int) -> None:
        """Store messages that are done."""
        fill_sqlite(self._connection, count, now_ns=NOW.now_ns)

    def outcome(self, work: Work) -> object:
        """What it returns beside a few messages that are pending and a few that are old."""
        self._connection.execute("begin immediate")
        try:
            message_writes.insert(self._connection, NOW, [Insert(each) for each in HERE])
            self._connection.execute(OLD, {"count": GROUP})
            return work(self._connection)
        finally:
            self._connection.execute("rollback")

    def cost(self, work: Work) -> Cost:
        """What SQLite counts."""
        seen: list[Mapping[str, int]] = []
        pages: list[int] = []

        def counted(connection: apsw.Connection) -> None:
            pages.append(self._pages())
            connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: seen.append(event["stmt_status"]))
            work(connection)
            connection.trace_v2(0, None)
            pages.append(self._pages())

        self.outcome(counted)
        steps, walked = (
            sum(each[f"SQLITE_STMTSTATUS_{name}"] for each in seen) for name in ("VM_STEP", "FULLSCAN_STEP")
        )
        return Cost(steps, walked, pages[1] - pages[0])

    def seconds(self, work: Work) -> float:
        """How long it takes."""
        instants: list[float] = []

        def timed(connection: apsw.Connection) -> None:
            instants.append(time.perf_counter())
            work(connection)
            instants.append(time.perf_counter())

        self.outcome(timed)
        return instants[1] - instants[0]

    def _pages(self) -> int:
        counters = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
        return sum(self._connection.status(counter)[0] for counter in counters)


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Callable[[], MeasuredFile]]:
    """Opens new files."""
    opened: list[apsw.Connection] = []

    def open_next() -> MeasuredFile:
        opened.append(open_file(tmp_path / f"{len(opened)}.db"))
        return MeasuredFile(opened[-1])

    yield open_next
    for connection in opened:
        connection.close()


def dearer(name: str, beside: Cost, alone: Cost) -> bool:
    """Whether something costs more beside others than alone, by more than higher trees explain."""
    pages = alone.pages + DEEPER * ROWS.get(name, 1)
    return beside.steps > 1.02 * alone.steps + 20 or beside.walked > alone.walked or beside.pages > pages


@pytest.mark.parametrize(
    "count", [20_000, pytest.param(1_000_000, marks=[pytest.mark.nightly, pytest.mark.timeout(900)])]
)
def test_beside_finished_messages_hot_work_costs_what_it_does_alone(
    book: Callable[[], MeasuredFile], count: int
) -> None:
    """In what SQLite counts; at night beside a million, and then in time too: by turns, medians."""
    full, empty = book(), book()
    full.fill(count)
    for name, work in HOT.items():
        outcome = full.outcome(work)
        assert outcome == empty.outcome(work) == DONE.get(name, outcome), name
        beside, alone = full.cost(work), empty.cost(work)
        print(f"\n{name:28} {beside}, alone {alone}", end="")
        assert not dearer(name, beside, alone), f"{name}: {beside}, alone {alone}"
        if count < 1_000_000:
            continue
        times = [(full.seconds(work), empty.seconds(work)) for _ in range(101)]
        beside_s, alone_s = (statistics.median(taken) for taken in zip(*times, strict=True))
        print(f", {1e6 * beside_s:.0f} µs, alone {1e6 * alone_s:.0f} µs, {beside_s / alone_s:.2f} times", end="")
        assert beside_s <= TIMES.get(name, 3) * alone_s + NOISE_S, f"{name}: {beside_s} s, alone {alone_s} s"


PLANTS = [
    ("end", "complete", "and id = :id", "and +id = :id"),
    ("end, a group", "complete_all", "and id = ended", "and +id = ended"),
    ("setback", "fail", "and id = :id", "and +id = :id"),
    ("insert a key that is there", "find", "and entity_id = :entity_id", "and +entity_id = :entity_id"),
    ("sweep of all seats", "due", "and status = 0", "and +status = 0"),
    ("next due of a seat", "due", "and status = 0", "and +status = 0"),
    ("fetch", "fetch", "and id in", "and +id in"),
    ("takeover", "suspect", "and status = 0", "and +status = 0"),
    ("result by id", "look", "and id in", "and +id in"),
    ("result by key", "find", "and entity_id = :entity_id", "and +entity_id = :entity_id"),
    ("cancel", "cancel", "and id = :id", "and +id = :id"),
    ("backlog", "backlog", "m indexed by messages_pending", "m not indexed"),
    ("purge of a batch", "purge", "and id <= :last", ""),
    ("purge past the last", "last_of", "and id > :after", "and +id > :after"),
]
"""Statements that find their rows by no index, as `+` hides a column from all of them, or look too far."""


@pytest.mark.parametrize(("name", "statement", "old", "new"), PLANTS)
def test_a_walk_is_seen(
    book: Callable[[], MeasuredFile], monkeypatch: pytest.MonkeyPatch, name: str, statement: str, old: str, new: str
) -> None:
    """That the test above can fail."""
    full, empty = book(), book()
    full.fill(2_000)
    assert old in messages.SQL[statement]
    monkeypatch.setitem(messages.SQL, statement, messages.SQL[statement].replace(old, new))
    assert dearer(name, full.cost(HOT[name]), empty.cost(HOT[name]))
