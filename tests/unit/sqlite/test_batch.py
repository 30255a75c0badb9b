"""Groups whose members share statements: what they leave behind, and when they go one by one after all [M3]."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import PersistenceError
from coterie.storage.contracts.messages import Commit, Insert, Message, MessageFilter, Setback, StateChange
from coterie.storage.group_commit import Group
from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap, Registration, StateSave
from coterie.storage.sqlite import seats, states
from coterie.storage.sqlite import storage as engine
from coterie.storage.sqlite.store import Scope, repeated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    import apsw

    from coterie.storage.interface import Write
    from coterie.storage.sqlite import SqliteStorage
    from tests.unit.sqlite.conftest import Opener

RUNNER = "a" * 32
CLAIMS = [Claim(RUNNER, f"shard:default:{number}", 1) for number in range(3)]
LOST = Claim(RUNNER, "shard:default:0", 2)
UNANSWERED = Claim("b" * 32, "shard:default:0", 1)


@pytest.fixture
async def storage(new: Opener) -> AsyncIterator[SqliteStorage]:
    """One with a runner that holds three seats."""
    async with new(settings={"audit": True}) as storage:
        await storage._main.transact(_hold, doing="take seats")
        yield storage


def _hold(connection: apsw.Connection) -> None:
    seats.register(
        connection, Scope("default", 0), Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
    )
    connection.executemany(
        'insert into seats (cluster, name, "group", holder, epoch, effective_from_ns) values (?, ?, ?, ?, 1, 0)',
        [("default", claim.seat, "default", RUNNER) for claim in CLAIMS],
    )


def id_of(number: int) -> str:
    return f"{number:032x}"


def message(number: int, *, key: str | None = None, delay_s: float = 0.0) -> Message:
    return Message(
        id=id_of(number),
        seat=CLAIMS[number % 3].seat,
        entity_type="Account",
        entity_id="alice",
        method="add",
        payload=b"%d" % number,
        key=key,
        delay_s=delay_s,
    )


def end(
    number: int, *, version: int | None = None, state: StateChange | None = None, claim: Claim | None = None
) -> Commit:
    if version is not None:
        state = StateChange(f"state-{number}", b"%d" % version, version)
    return Commit(claim or CLAIMS[number % 3], id_of(number), b"reply %d" % number, state)


async def statuses(storage: SqliteStorage) -> dict[int, str]:
    return {int(row.id, 16): row.status for row in await storage.messages.list(MessageFilter(), most=1000)}


async def committed(storage: SqliteStorage, *group: Write) -> list[Any]:
    """As the group writer does, but with a group that is known."""
    loop = asyncio.get_running_loop()
    return list(await storage._commit(Group([(write, loop.create_future()) for write in group])))


async def with_states(storage: SqliteStorage, *, count: int) -> None:
    """Store the first states of so many, and for each of them one more message."""
    await committed(storage, *(Insert(message(number)) for number in range(2 * count)))
    assert await committed(storage, *(end(number, version=0) for number in range(count))) == ["written"] * count


def is_forbidden(*_: object) -> Any:
    raise AssertionError("they went one by one")


async def test_what_is_alike_goes_together(storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    await committed(storage, *(Insert(message(number)) for number in range(6)))
    await committed(storage, *(end(number, version=0) for number in range(2)))  # the first states
    await committed(storage, *(Insert(message(number)) for number in (10, 11)))
    monkeypatch.setattr(engine, "_one_by_one", is_forbidden)
    again = [Commit(CLAIMS[n % 3], id_of(10 + n), b"ok", StateChange(f"state-{n}", b"new", 1)) for n in range(2)]
    group: list[Write] = [
        *again,
        Insert(message(20, delay_s=60)),
        end(2),
        KvPut("k", b"v", 1),
        Insert(message(21, key="k")),
        end(3),
    ]
    told = await committed(storage, *group)
    assert [told[0], told[1], told[3], told[6]] == ["written"] * 4
    for receipt, wait_s in ((told[2], 60), (told[5], 0)):
        assert (receipt.fresh, (receipt.due_at - receipt.now).total_seconds()) == (True, wait_s)
    assert await statuses(storage) == {
        **dict.fromkeys([0, 1, 2, 3, 10, 11], "done"),
        **dict.fromkeys([4, 5, 20, 21], "pending"),
    }
    (row,) = await storage.messages.look([id_of(2)])
    assert row.reply == b"reply 2"
    loaded = await storage.states.load(CLAIMS[0], "state-0")
    assert loaded is not None
    assert (loaded.value, loaded.version) == (b"new", 2)
    entry = await storage.kv.get("k")
    assert entry is not None
    assert entry.value == b"v"
    monkeypatch.undo()
    assert await committed(storage, end(2)) == ["written"], "asked again, it is known by its epoch and reply"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (end(3, claim=LOST), "fenced"),
        (end(3, claim=UNANSWERED), "fenced"),
        (end(99), "gone"),
        (end(3, version=7), "stale"),
    ],
    ids=["another epoch", "another runner", "gone", "stale"],
)
async def test_one_that_is_refused_has_written_nothing_and_its_neighbours_all(
    storage: SqliteStorage, wrong: Commit, told: str
) -> None:
    """C1, M3: also what stands before it."""
    await committed(storage, *(Insert(message(number)) for number in range(6)))
    results = await committed(storage, end(0), Insert(message(7)), wrong, end(1))
    assert [results[0], results[2], results[3]] == ["written", told, "written"]
    assert results[1].fresh
    expected = {0: "done", 1: "done", **dict.fromkeys([2, 3, 4, 5, 7], "pending")}
    assert await statuses(storage) == expected


@pytest.mark.parametrize("count", [2, 63, 64, 65, 150, 500])
async def test_groups_of_any_size_are_stored_and_ended_as_they_are(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    monkeypatch.setattr(engine, "_one_by_one", is_forbidden)
    told = await committed(storage, *(Insert(message(number, delay_s=number % 2)) for number in range(count)))
    assert [each.id for each in told] == [id_of(number) for number in range(count)]
    assert await committed(storage, *(end(number) for number in range(count))) == ["written"] * count
    rows = await storage.messages.look([id_of(number) for number in range(count)])
    assert {int(row.id, 16): (row.payload, row.reply, row.status) for row in rows} == {
        number: (b"%d" % number, b"reply %d" % number, "done") for number in range(count)
    }
    assert all((row.due_at - row.sent_at).total_seconds() == int(row.id, 16) % 2 for row in rows)


@pytest.mark.parametrize("count", [2, 63, 64, 65, 150])
async def test_the_states_of_groups_of_any_size_change_as_they_should(
    storage: SqliteStorage, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    await with_states(storage, count=count)
    monkeypatch.setattr(engine, "_one_by_one", is_forbidden)
    changes = [
        end(count + number, state=StateChange(f"state-{number}", b"new %d" % number, 1)) for number in range(count)
    ]
    assert await committed(storage, *changes) == ["written"] * count
    asked = "select key, value, version, epoch, seat from states"
    stored = await storage._main.read(lambda c: c.execute(asked).fetchall(), doing="look")
    assert sorted(stored) == sorted(
        (f"state-{n}", b"new %d" % n, 2, 1, CLAIMS[(count + n) % 3].seat) for n in range(count)
    )


@pytest.mark.parametrize(
    ("version", "claimed"), [(2, 1), (1, 2)], ids=["of another version", "claimed by a newer epoch"]
)
async def test_a_state_that_is_stale_is_not_written_and_its_neighbours_are_once(
    storage: SqliteStorage, version: int, claimed: int
) -> None:
    """M3: also those that stand before it."""
    await with_states(storage, count=3)
    claim = "update states set epoch = ? where key = 'state-1'"
    await storage._main.transact(lambda c: c.execute(claim, (claimed,)), doing="claim it")
    versions = [1, version, 1]
    changes = [end(3 + n, state=StateChange(f"state-{n}", b"new", versions[n])) for n in range(3)]
    assert await committed(storage, *changes) == ["written", "stale", "written"]
    asked = "select value, version from states order by key"
    stored = await storage._main.read(lambda c: c.execute(asked).fetchall(), doing="look")
    assert stored == [(b"new", 2), (b"0", 1), (b"new", 2)]
    assert await statuses(storage) == {**dict.fromkeys([0, 1, 2, 3, 5], "done"), 4: "pending"}


TRIGGER = """
create table audited (id text);
create trigger audit_sent after insert on messages begin insert into audited values (new.id); end;
create trigger audit_done after update of status on messages begin insert into audited values (new.id); end;
"""


async def test_inv_d4_rows_that_a_trigger_writes_do_not_count_as_messages_stored_or_ended(
    storage: SqliteStorage,
) -> None:
    await storage._main.transact(lambda connection: connection.execute(TRIGGER).get, doing="audit")
    await committed(storage, Insert(message(1, key="k")))
    again, new = await committed(storage, Insert(message(2, key="k")), Insert(message(3)))
    assert (again.fresh, again.id, new.fresh) == (False, id_of(1), True)
    assert await committed(storage, end(2), end(3)) == ["gone", "written"]


async def test_a_row_that_the_table_refuses_undoes_its_whole_group(storage: SqliteStorage) -> None:
    """M3: then the group writer runs them one by one, and nobody sees a neighbour's error."""
    wrong: Any = "no bytes"
    bad = Insert(msgspec.structs.replace(message(1), payload=wrong))
    with pytest.raises(PersistenceError) as caught:
        await committed(storage, KvPut("k", b"v", 1), Insert(message(0)), bad, Insert(message(2)))
    assert caught.value.outcome == "refused"
    assert await statuses(storage) == {}
    writes = [storage.groups.submit(each) for each in (Insert(message(0)), bad, Insert(message(2)))]
    told = await asyncio.gather(*writes, return_exceptions=True)
    assert isinstance(told[1], PersistenceError)
    assert await statuses(storage) == dict.fromkeys([0, 2], "pending")


async def test_what_the_fence_refuses_is_noted_once(storage: SqliteStorage) -> None:
    """The group is undone before it is done one by one, and so are its notes."""
    await committed(storage, *(Insert(message(number)) for number in range(3)))
    await committed(storage, end(0, claim=LOST), end(1), end(2))
    found = await storage._main.read(
        lambda c: c.execute("select note from audit where kind = 'refused'").fetchall(), doing="look"
    )
    assert found == [(id_of(0),)]


async def test_a_message_or_key_that_is_there_is_told_of(storage: SqliteStorage) -> None:
    """M4: an own id counts as fresh, the key of another does not; those beside them are stored."""
    await committed(storage, Insert(message(0, key="k")))
    told = await committed(storage, Insert(message(0, key="k")), Insert(message(2)))
    assert [(each.id, each.fresh) for each in told] == [(id_of(0), True), (id_of(2), True)]
    told = await committed(storage, Insert(message(1, key="k")), Insert(message(3)))
    assert [(each.id, each.fresh) for each in told] == [(id_of(0), False), (id_of(3), True)]
    assert await statuses(storage) == dict.fromkeys([0, 2, 3], "pending")


@pytest.mark.parametrize(
    ("group", "meets"),
    [
        (
            [Insert(message(1)), Insert(message(2, key="k")), Insert(message(3, key="l")), end(4), end(5, version=1)],
            False,
        ),
        ([Insert(message(1, key="k")), Insert(message(2, key="k"))], True),
        ([Insert(message(1)), end(1)], True),
        ([end(1), end(1)], True),
        ([Setback(CLAIMS[0], id_of(1), 1, "boom", None), end(1)], True),
        ([end(1, version=1), StateSave(CLAIMS[1], "state-1", b"", 1)], True),
        ([Commit(CLAIMS[0], None, sends=(message(1, key="k"),)), Insert(message(2, key="k"))], True),
        ([Commit(CLAIMS[0], None, sends=(message(1),)), Commit(CLAIMS[0], None, sends=(message(2),))], False),
    ],
    ids=["strangers", "keys", "insert and end", "ends", "setback and end", "states", "sent keys", "senders"],
)
def test_those_that_are_about_one_row_are_in_different_runs(group: Sequence[Write], meets: bool) -> None:
    runs = engine._runs(group)
    assert [place for run in runs for place in run] == [*range(len(group))]
    assert len(runs) == (2 if meets else 1)


def test_those_of_a_run_share_a_batch_by_handler_and_ends_come_first() -> None:
    group: list[Write] = [
        Insert(message(1)),
        KvPut("k", b"1", 1),
        end(2),
        KvRemove("k"),
        Insert(message(3)),
        end(1),
        Insert(message(2)),
    ]
    assert engine._batches(group) == [[2], [0, 4], [1, 3], [5], [6]]


async def test_writes_about_one_row_happen_in_their_order(storage: SqliteStorage) -> None:
    """In one group: a message is stored and ended, a key set, removed and set again, beside others."""
    told = await committed(
        storage,
        KvPut("k", b"1", 1),
        Insert(message(0)),
        end(0),
        Insert(message(1)),
        KvRemove("k"),
        end(0),
        KvSwap("k", None, b"2", 2),
        end(1, version=0),
        end(2),
    )
    assert [told[place] for place in (0, 2, 4, 5, 6, 7, 8)] == [
        None,
        "written",
        True,
        "written",
        True,
        "written",
        "gone",
    ]
    assert (told[1].fresh, told[3].fresh) == (True, True)
    assert await statuses(storage) == {0: "done", 1: "done"}
    entry = await storage.kv.get("k")
    assert entry is not None
    assert entry.value == b"2"


async def test_the_fence_of_many_finds_its_rows_by_their_keys(storage: SqliteStorage) -> None:
    """STACK 1b: each seat is looked up, none is walked along."""
    asked = f"explain query plan {states.SQL['all_held']}"
    names = {"cluster": "default", "seats": "[]"}
    steps = await storage._main.read(lambda c: [str(row[3]) for row in c.execute(asked, names)], doing="explain")
    assert [step for step in steps if step.startswith("SCAN")] == ["SCAN asked VIRTUAL TABLE INDEX 1:"], steps
    assert [step for step in steps if step.startswith("SEARCH")] == [
        "SEARCH s USING PRIMARY KEY (cluster=? AND name=?)",
        "SEARCH r USING PRIMARY KEY (id=?)",
    ]


async def test_the_changes_of_many_states_find_their_rows_by_their_keys(storage: SqliteStorage) -> None:
    """None is walked along, however many there are."""
    asked = f"explain query plan {repeated(states.SQL['update_all'], 2)}"
    values = ("default", *("key", 1, 1, "seat", b"") * 2)
    steps = await storage._main.read(lambda c: [str(row[3]) for row in c.execute(asked, values)], doing="explain")
    assert steps == ["SCAN 2-ROW VALUES CLAUSE", "SEARCH states USING PRIMARY KEY (cluster=? AND key=?)"]
