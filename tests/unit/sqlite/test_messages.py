"""Messages in a file: how their rows are found, what the audit notes, and instants between two microseconds."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.storage import migrations
from coterie.storage.contracts.messages import Commit, Insert, Message, MessageFilter, Setback, StateChange, Suspected
from coterie.storage.interface import Claim, Registration
from coterie.storage.sqlite import message_writes, messages, seats, states
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.store import Scope, repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.unit.sqlite.conftest import Opener

NOW = Scope("c", 1_800_000_000_123_456_789)
AUDITED = Scope(NOW.cluster, NOW.now_ns, audit=True)
RUNNER, SEAT = "a" * 32, "shard:default:1"
CLAIM = Claim(RUNNER, SEAT, 1)
LOST = Claim(RUNNER, SEAT, 2)

FILL = """
with recursive numbers (n) as (select 0 union all select n + 1 from numbers where n < 2 * :each + 999)
insert into messages (
    cluster, id, seat, entity_type, entity_id, method, key, digest, status, sent_at_ns, due_at_ns, completed_at_ns,
    payload
)
select
    'c', printf('%032x', n), 'shard:default:' || (n % 100), 'Account', n % 500, 'add', iif(n % 5, null, n), x'', status,
    n * 1000, n * 1000, iif(status = 0, null, n * 1000), zeroblob(50)
from (select n, iif(n < :each, 1, iif(n < 2 * :each, 0, 2)) as status from numbers);
"""


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    """Our tables in memory, with a runner that holds a seat."""
    opened = open_memory()
    for migration in migrations.load("coterie.storage.sqlite.migrations"):
        opened.execute(migration.sql)
    me = Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
    seats.register(opened, NOW, me)
    opened.execute(
        'insert into seats (cluster, name, "group", holder, epoch, effective_from_ns) values (?, ?, ?, ?, 1, 0)',
        ("c", SEAT, "default", RUNNER),
    )
    yield opened
    opened.close()


def message(number: int, *, key: str | None = None, due_at: datetime | None = None, delay_s: float = 0.0) -> Message:
    return Message(
        id=f"{number:032x}",
        seat=SEAT,
        entity_type="Account",
        entity_id="alice",
        method="add",
        payload=b"",
        key=key,
        due_at=due_at,
        delay_s=delay_s,
    )


def inserted(connection: apsw.Connection, *numbers: int, scope: Scope = NOW) -> None:
    for number in numbers:
        assert message_writes.insert(connection, scope, [Insert(message(number))])[0].fresh


# How rows are found

BY_ID = {
    "receipt",
    "pending",
    "complete",
    "complete_all",
    "completed",
    "fail",
    "failed",
    "put_off",
    "fetch",
    "lose",
    "mark",
    "look",
    "cancel",
    "revive",
    "remove",
    "discard",
}
BY_OTHERS = {
    "find": ["INDEX messages_key (cluster=? AND entity_type=? AND entity_id=? AND method=? AND key=?)"],
    "paused": ["SEARCH pauses USING PRIMARY KEY (cluster=? AND kind=?)"],
    "due": ["COVERING INDEX messages_pending (cluster=? AND seat=? AND (due_at_ns,id)>(?,?) AND due_at_ns<?)"],
    "backlog": [
        "COVERING INDEX messages_pending (cluster=?)",
        "SEARCH m USING COVERING INDEX messages_pending (cluster=? AND seat>?)",
        "SEARCH m USING COVERING INDEX messages_pending (cluster=? AND seat=? AND due_at_ns<?)",
        "INDEX sqlite_autoindex_messages_1 (cluster=? AND id=?)",
    ],
    "count_dead": ["COVERING INDEX messages_dead (cluster=?)"],
    "suspect": [
        "INDEX sqlite_autoindex_messages_1 (cluster=? AND id=?)",
        "COVERING INDEX messages_pending (cluster=? AND seat=? AND due_at_ns<?)",
    ],
    "lost_at": ["SEARCH seats USING PRIMARY KEY (cluster=? AND name=?)"],
    "begun_alone": ["INDEX messages_pending (cluster=? AND seat=?)"],
    "chosen": ["INDEX sqlite_autoindex_messages_1 (cluster=? AND id>?)"],
    "chosen_newest": ["INDEX sqlite_autoindex_messages_1 (cluster=? AND id<?)"],
    "chosen_pending": ["INDEX messages_pending (cluster=?)"],
    "chosen_dead": ["INDEX messages_dead (cluster=?)"],
    "chosen_tagged": [
        "SEARCH t USING COVERING INDEX message_tags_value (cluster=? AND name=? AND value=?)",
        "SEARCH m USING INDEX sqlite_autoindex_messages_1 (cluster=? AND id=?)",
    ],
    "revive_entity": ["INDEX messages_dead (cluster=?)"],
    "hasten": ["INDEX messages_pending (cluster=?)"],
    "last_of": ["INDEX sqlite_autoindex_messages_1 (cluster=? AND id>?)"],
    "purge": ["INDEX sqlite_autoindex_messages_1 (cluster=? AND id>? AND id<?)"],
    "insert": [],
    "cancel_free": [
        "INDEX sqlite_autoindex_messages_1 (cluster=? AND id=?)",
        "SEARCH s USING PRIMARY KEY (cluster=? AND name=?)",
    ],
}


def plan(connection: apsw.Connection, name: str) -> list[str]:
    """How a statement reaches the messages."""
    statement = messages.SQL[name]
    bindings: Any = dict.fromkeys(re.findall(r":(\w+)", statement), 1) | {"ids": "[]"}
    if name in ("insert", "complete_all"):
        statement = repeated(statement, 64)
        bindings = ("",) * (2 + 64 * (11 if name == "insert" else 3))
    steps = [str(row[3]) for row in connection.execute(f"explain query plan {statement}", bindings)]
    assert not [step for step in steps if step.startswith("SCAN messages")], (name, steps)
    return [step.removeprefix("SEARCH messages USING ") for step in steps if step.startswith("SEARCH")]


@pytest.mark.parametrize(("each", "analyzed"), [(0, False), (100_000, False), (100_000, True)])
def test_every_statement_finds_its_messages_by_an_index(connection: apsw.Connection, each: int, analyzed: bool) -> None:
    """STACK's trap: what ends a message finds it by its id, never among the pending ones. SQLite by itself never
    analyzes, so the plans of a backlog are those of an empty table; should somebody analyze, they stay."""
    if each:
        connection.execute(FILL, {"each": each})
    if analyzed:
        connection.execute("analyze")
    assert {*BY_ID, *BY_OTHERS} == {*messages.SQL}
    for name in BY_ID:
        assert plan(connection, name) == ["INDEX sqlite_autoindex_messages_1 (cluster=? AND id=?)"], name
    for name, searches in BY_OTHERS.items():
        assert plan(connection, name) == searches, name


def test_plans_do_not_depend_on_values(connection: apsw.Connection) -> None:
    """Otherwise the fence is prepared anew for each seat, which takes longer than all the rest of a commit."""
    prepared: list[int] = []

    def note(*_: object) -> int:
        prepared.append(1)
        return apsw.SQLITE_OK

    connection.set_authorizer(note)  # it is asked about each part of a statement that is prepared
    states.held(connection, "c", CLAIM)
    assert prepared
    prepared.clear()
    for number in range(5):
        states.held(connection, "c", Claim(f"{number}", f"shard:default:{number}", number))
    assert not prepared


# Commits of unknown outcome


@pytest.mark.parametrize("part", ["reply", "state", "sends"])
def test_what_another_run_of_the_handler_left_behind_is_not_this_commit(connection: apsw.Connection, part: str) -> None:
    """0.6, INV-D2: "written" means that these bytes are stored, not others under the same epoch."""
    inserted(connection, 1)
    first = Commit(CLAIM, message(1).id, b"one", StateChange("e", b"one", 0), (message(11),))
    assert message_writes.commit(connection, NOW, [first]) == ["written"]
    assert message_writes.commit(connection, NOW, [first]) == ["written"]
    other = {
        "reply": Commit(CLAIM, first.message, b"two", first.state, first.sends),
        "state": Commit(CLAIM, first.message, first.reply, StateChange("e", b"two", 0), first.sends),
        "sends": Commit(CLAIM, first.message, first.reply, first.state, (message(12),)),
    }
    assert message_writes.commit(connection, NOW, [other[part]]) == ["gone"]


def test_a_commit_that_happened_is_written_also_after_later_ones(connection: apsw.Connection) -> None:
    inserted(connection, 1, 2)
    commits = [Commit(CLAIM, message(n + 1).id, b"", StateChange("e", b"%d" % n, n)) for n in range(2)]
    assert [message_writes.commit(connection, NOW, [each]) for each in commits * 2] == [["written"]] * 4


# The audit


@pytest.mark.parametrize("audit", [True, False])
async def test_what_the_fence_refuses_is_noted_if_that_is_set(new: Opener, audit: bool) -> None:
    async with new(settings={"audit": audit}) as storage:
        await storage.messages.insert(message(1))
        first = message(1).id
        assert await storage.messages.commit(Commit(LOST, first)) == "fenced"
        assert await storage.messages.commit(Commit(LOST, state=StateChange("e", b"", 0))) == "fenced"
        assert await storage.messages.setback(Setback(LOST, first, 1, "boom", None)) == "fenced"
        assert not await storage.messages.cancel(first, LOST, reply=b"cancelled")
        assert await storage.messages.suspect(LOST, {"Account": 1}, loss_limit=1) == Suspected(0, ())
        sql = "select kind, runner, seat, epoch, note from audit order by id"
        rows = await storage._main.read(lambda connection: connection.execute(sql).fetchall(), doing="look")
    noted = [("refused", RUNNER, SEAT, 2, about) for about in (first, "e", first, first, "suspects")]
    assert rows == (noted if audit else [])


def test_a_commit_that_happened_is_no_refusal_for_the_audit(connection: apsw.Connection) -> None:
    """The seat is lost by now, and an earlier try did it."""
    inserted(connection, 1)
    write = Commit(CLAIM, message(1).id, b"ok")
    assert message_writes.commit(connection, AUDITED, [write]) == ["written"]
    connection.execute("update seats set epoch = 2")
    assert message_writes.commit(connection, AUDITED, [write]) == ["written"]
    assert message_writes.commit(connection, AUDITED, [Commit(CLAIM, message(1).id, b"other")]) == ["fenced"]
    assert connection.execute("select count(*) from audit").get == 1


# Instants


def test_a_mark_is_exact_although_datetimes_know_microseconds_only(connection: apsw.Connection) -> None:
    """A message that was seen is not seen again, and none is left out."""
    inserted(connection, 1, 2)
    inserted(connection, 3, scope=Scope("c", NOW.now_ns + 200))
    after, seen = None, []
    while rows := messages.due(connection, NOW, {SEAT: after}, ahead_s=0, most=1).rows:
        seen.append(int(rows[0].id, 16))
        after = (rows[0].due_at, rows[0].id)
    assert seen == [1, 2, 3]


@pytest.mark.parametrize(
    ("due_at", "delay_s"),
    [
        (datetime.max.replace(tzinfo=UTC), 0.0),
        (datetime.min.replace(tzinfo=UTC), 0.0),
        (None, 1e300),
        (None, float("inf")),
    ],
)
def test_an_instant_that_the_file_cannot_hold_is_the_last_or_first_that_it_can(
    connection: apsw.Connection, due_at: datetime | None, delay_s: float
) -> None:
    receipt = message_writes.insert(connection, NOW, [Insert(message(1, due_at=due_at, delay_s=delay_s))])[0]
    is_due = bool(messages.due(connection, NOW, {SEAT: None}, ahead_s=0, most=1).rows)
    assert is_due == (due_at is not None and due_at.year == 1)
    assert receipt.due_at.year in (1970, 2262)


def test_what_is_revived_is_due_in_whole_microseconds_too(connection: apsw.Connection) -> None:
    inserted(connection, 1)
    message_writes.setback(connection, NOW, Setback(CLAIM, message(1).id, 1, "boom", None))
    assert messages.revive(connection, NOW, id=None, entity_type="Account", entity_id="alice") == 1
    due_at_ns = connection.execute("select due_at_ns from messages").get
    assert due_at_ns % 1000 == 0
    assert due_at_ns <= NOW.now_ns


# Retention


def test_a_purge_looks_no_further_than_it_is_told(connection: apsw.Connection) -> None:
    """m17: also past what is done and old."""
    connection.execute(FILL, {"each": 1000})
    count, after = messages.purge(connection, NOW, after="", retention_s=0, key_retention_s=0, most=100)
    assert (count, int(after, 16)) == (100, 99)
    assert len(messages.listed(connection, NOW, MessageFilter(status="done"), after=None, most=5000)) == 900
    count, after = messages.purge(connection, NOW, after=after, retention_s=0, key_retention_s=0, most=10_000)
    assert (count, after) == (900, "")
