"""Keys and values on SQLite beyond the contract: ranges, order, expiry, plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from coterie.storage import migrations
from coterie.storage.interface import Entry, KvPut, KvRemove, KvSwap
from coterie.storage.sqlite import kv
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.store import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

NOW = Scope("default", 1_800_000_000 * 10**9)
HOSTILE = [
    "",
    "a",
    "a%",
    "a_",
    "aa",
    "%",
    "_",
    "'",
    '"',
    "\0",
    "a\0b",
    "\x7f",
    "\x80",
    "\u07ff",
    "\u0800",
    "\ud7ff",
]
HOSTILE += [
    "\ue000",
    "\uffff",
    "\U00010000",
    "\U0010ffff",
    "\U0010ffff\U0010ffff",
    "é",
    "e\u0301",
    "A",
    "Å",
    "😀",
    "z",
]

# Astral characters and the ends of ranges, where UTF-16 order, code points and bytes disagree.
keys = st.text(
    st.sampled_from("ab%_\0\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U00010000\U0010fffe\U0010ffff"), max_size=4
)


def fresh() -> apsw.Connection:
    connection = open_memory()
    for step in migrations.load("coterie.storage.sqlite.migrations"):
        connection.execute(step.sql).fetchall()
    return connection


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    opened = fresh()
    yield opened
    opened.close()


def put(connection: apsw.Connection, key: str, *, ttl_s: float | None = None, scope: Scope = NOW) -> None:
    kv.write(connection, scope, KvPut(key, key.encode(), 1, ttl_s))


def swap(connection: apsw.Connection, write: KvSwap, *, scope: Scope = NOW) -> bool:
    swapped: bool = kv.write(connection, scope, write)
    return swapped


def later(seconds: float) -> Scope:
    return Scope(NOW.cluster, NOW.now_ns + int(seconds * 1e9))


@given(st.text())
@example("\U0010ffff")
@example("")
def test_the_end_of_a_prefix_lies_past_all_its_keys_and_before_all_others(prefix: str) -> None:
    """K1."""
    end = kv.end_of(prefix)
    assert prefix.encode() < end
    assert (prefix + "\U0010ffff" * 3).encode() < end
    assert all(other.startswith(prefix) == (prefix.encode() <= other.encode() < end) for other in HOSTILE)


@settings(max_examples=60, deadline=None)
@given(st.sets(keys, max_size=12), keys, st.none() | keys, st.integers(1, 5))
def test_ranges_are_those_of_the_keys_bytes(stored: set[str], prefix: str, after: str | None, most: int) -> None:
    """K1: ordered by UTF-8 bytes, `%` and `_` are plain."""
    connection = fresh()
    for key in stored:
        put(connection, key)
    put(connection, prefix + "x", scope=Scope("neighbour", NOW.now_ns))
    wanted = sorted((key for key in stored if key.startswith(prefix)), key=str.encode)
    past = [key for key in wanted if after is None or key.encode() > after.encode()]
    found = kv.page(connection, NOW, prefix, after=after, most=most)
    assert found == [Entry(key, key.encode(), 1) for key in past[:most]]
    assert kv.count(connection, NOW, prefix) == len(wanted)
    assert kv.clear(connection, NOW, prefix) == len(wanted)
    assert kv.count(connection, NOW, "") == len(stored) - len(wanted)
    assert kv.count(connection, Scope("neighbour", NOW.now_ns), "") == 1
    connection.close()


def test_what_has_expired_is_as_good_as_absent(connection: apsw.Connection) -> None:
    """K1: TTL."""
    put(connection, "short", ttl_s=1.5)
    put(connection, "long")
    assert kv.get(connection, later(1.4), "short") is not None
    for scope in (later(1.5), later(99)):
        assert kv.get(connection, scope, "short") is None
        assert kv.count(connection, scope, "") == 1
        assert [entry.key for entry in kv.page(connection, scope, "", after=None, most=9)] == ["long"]
        assert kv.write(connection, scope, KvRemove("short")) is False
        assert swap(connection, KvSwap("short", 1, b"new", 2), scope=scope) is False
        assert swap(connection, KvSwap("short", 1, None, 2), scope=scope) is False
        assert swap(connection, KvSwap("short", None, None, 2), scope=scope) is True
    assert swap(connection, KvSwap("short", None, b"new", 3), scope=later(2)) is True
    assert kv.get(connection, later(99), "short") == Entry("short", b"new", 3)


def test_clear_counts_the_living_and_removes_the_expired_too(connection: apsw.Connection) -> None:
    put(connection, "dead", ttl_s=1)
    put(connection, "alive")
    assert kv.clear(connection, later(2), "") == 1
    assert connection.execute("select count(*) from kv").get == 0


def test_purge_deletes_the_oldest_expired_first_and_of_its_own_cluster(connection: apsw.Connection) -> None:
    for number in range(5):
        put(connection, f"k{number}", ttl_s=10 - number)
    put(connection, "other", ttl_s=1, scope=Scope("neighbour", NOW.now_ns))
    assert kv.purge(connection, later(8.5), most=2) == 2
    assert [key for (key,) in connection.execute("select key from kv order by key")] == [
        "k0",
        "k1",
        "k2",
        "other",
    ]
    assert kv.purge(connection, later(8.5), most=9) == 1
    assert kv.purge(connection, later(8.5), most=9) == 0


@pytest.mark.parametrize("ttl_s", [9e9, 1e300, float("inf")])
def test_a_ttl_past_the_end_of_time_lasts_until_then(connection: apsw.Connection, ttl_s: float) -> None:
    put(connection, "k", ttl_s=ttl_s)
    assert kv.get(connection, Scope("default", 2**63 - 2), "k") is not None


def test_of_two_swaps_in_one_group_the_first_wins(connection: apsw.Connection) -> None:
    """M3: members see each other in order."""
    put(connection, "k")
    assert swap(connection, KvSwap("k", 1, b"a", 2)) is True
    assert swap(connection, KvSwap("k", 1, b"b", 3)) is False
    assert swap(connection, KvSwap("k", None, b"c", 4)) is False
    assert kv.get(connection, NOW, "k") == Entry("k", b"a", 2)


@pytest.mark.parametrize("rows", [0, 3000])
def test_every_statement_finds_its_rows_by_an_index(connection: apsw.Connection, rows: int) -> None:
    for number in range(rows):
        put(connection, f"k{number}", ttl_s=number if number % 2 else None)
    connection.execute("analyze")
    bindings = NOW.bindings(key="k", value=b"", stamp=1, expected=1, expires_at_ns=None, start="k")
    bindings |= {"end": b"l", "after": "k", "most": 1}
    for name, statement in kv._SQL.items():
        plan = [row[3] for row in connection.execute(f"explain query plan {statement}", bindings)]
        assert all("SEARCH" in step or step.startswith("LIST SUBQUERY") for step in plan), (name, plan)
        searched = [step for step in plan if "SEARCH" in step]
        if name in ("count", "page", "clear"):
            assert searched == ["SEARCH kv USING PRIMARY KEY (cluster=? AND key>? AND key<?)"], name
        elif name == "purge":
            assert searched[0] == "SEARCH kv USING PRIMARY KEY (cluster=? AND key=?)"
            assert "INDEX kv_expiring (cluster=? AND expires_at_ns>? AND expires_at_ns<?)" in searched[1]
        elif searched:
            assert searched == ["SEARCH kv USING PRIMARY KEY (cluster=? AND key=?)"], name
