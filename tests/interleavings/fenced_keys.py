"""Pairs of the key-value store under the fence: every kind of write against all that moves its seat [C1, K1]."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap
from coterie.storage.postgres.batch import plan
from tests.interleavings import judges
from tests.interleavings.database import CLUSTER, given
from tests.support.interleaving import Pair, Script, Step, atomic

if TYPE_CHECKING:
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Run
    from tests.support.interleaving.scripts import Rows, Verdict

MINE = Claim("a", "s1", 1)
WRITES: dict[str, KvPut | KvSwap | KvRemove] = {
    "kv fenced put": KvPut("k", b"new", 2, claim=MINE),
    "kv fenced insert": KvSwap("j", None, b"new", 2, claim=MINE),
    "kv fenced replace": KvSwap("k", 1, b"new", 2, claim=MINE),
    "kv fenced discard": KvSwap("k", 1, None, 2, claim=MINE),
    "kv fenced remove": KvRemove("k", claim=MINE),
}


def fenced_keys(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    release = Script("release", atomic(s.release("a", "s1")))
    pairs = [_pair(name, s, Script("release and grant", (s.release("a", "s1"), *_taking(s, name)))) for name in WRITES]
    pairs.append(_pair("kv fenced put", s, release))
    name = "kv fenced replace"
    pairs.append(_pair(name, s, Script("evict and grant", (*s.evicting("a"), *_taking(s, name))), left_s=-1))
    two = given(runners={"a": 6}, seats={"s1": "a"}, kv={"k": "0"})
    modify = Script("kv fenced modify", _modifying(s), tries=3)
    other = Script("kv modify", s.modifying("k", stamp=3), tries=3)
    return [*pairs, Pair("kv fenced modify x kv modify", two, modify, other, judges.counted)]


def _pair(name: str, s: Steps, other: Script, *, left_s: float = 6) -> Pair:
    rows = given(runners={"a": left_s, "b": 6}, seats={"s1": "a"}, kv={"k": "old"})
    return Pair(f"{name} x {other.name}", rows, Script(name, atomic(_step(s, WRITES[name]))), other, nothing_late)


def _taking(s: Steps, name: str) -> tuple[Step, ...]:
    return s.taking_kv("b", WRITES[name].key)


def _step(s: Steps, write: KvPut | KvSwap | KvRemove) -> Step:
    """The statement and arrays that the engine itself makes of the write."""
    (bucket,) = plan.fold([write])
    return s.step(bucket.shape, *plan.values(bucket, [write]), step="write")


def _modifying(s: Steps) -> tuple[Step, ...]:
    """`kv.modify` in a handler: one more than what was read, if nobody was faster."""

    def values(reads: dict[str, Rows]) -> tuple[object, ...]:
        (row,) = reads["get"]
        write = KvSwap("k", row["stamp"], str(int(row["value"]) + 1).encode(), 2, claim=MINE)
        return (CLUSTER, *plan.values(plan.fold([write])[0], [write]))

    swap = Step("swap", s.sql["swap_kv"], values, then=restart_unless_written)  # type: ignore[arg-type] # reads only
    return (s.step("kv_get", "k", step="get"), *atomic(swap))


def restart_unless_written(rows: Rows) -> Verdict:
    """Somebody was faster: the script begins anew."""
    return "go" if rows[0]["written"] else "restart"


def nothing_late(run: Run) -> list[str]:
    """A is told what became of its write; once B is granted the seat, it finds the key as it stays [C1, INV-F2]."""
    rows, loaded = run.a.rows("write"), run.b.rows("load")
    final = {row["key"]: row["value"] for row in run.tables["kv"]}
    problems = []
    if rows is not None:
        (row,) = rows
        changed = final.get(row["key"]) != (None if row["key"] == "j" else "old")
        if row["written"] and not row["held"]:
            problems.append("written without the seat")
        if row["written"] != changed:
            problems.append(f"A was told written={row['written']}, and {final} is there")
    if loaded is not None:
        key = "j" if "insert" in run.pair.name else "k"
        seen = loaded[0]["value"].decode() if loaded else None
        if seen != final.get(key):
            problems.append(f"a stale write: the new holder read {seen!r}, afterwards {final.get(key)!r} is there")
    return problems
