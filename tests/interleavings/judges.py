"""What must hold after a run, pair by pair: sentences about what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.interleaving import Run

Problems = list[str]
Judge = Callable[["Run"], Sequence[str]]


def nothing_stale(run: Run, *, table: str = "states") -> Problems:
    """B, granted s1 after A lost it, has read all that was ever written under the older epoch [C1, INV-F2, F3]."""
    problems = what_was_acknowledged(run, table=table)
    loaded = run.b.rows("load")
    if loaded is None:
        return problems
    seen = loaded[0]["value"].decode() if loaded and loaded[0]["value"] is not None else None
    final = _value(run, table)
    if seen != final:
        problems.append(f"a stale write: the new holder read {seen!r}, afterwards the former one's {final!r} is there")
    return problems


def what_was_acknowledged(run: Run, *, table: str = "states") -> Problems:
    """A's write is there if A was told so, and only if its seat was held."""
    rows = run.a.rows("write")
    if rows is None:
        return []
    problems = []
    for row in rows:
        final = _value(run, table, row["key"])
        if row["written"] and not row["held"]:
            problems.append("written without the seat")
        if row["written"] != (final == "new"):
            problems.append(f"A was told written={row['written']}, and {final!r} is there")
    return problems


def neighbours_commit(run: Run) -> Problems:
    """A wrote for s1, which it lost, and for s2, which it kept: the second is written whatever becomes of the first."""
    rows = run.a.rows("write")
    if rows is None:
        return nothing_stale(run)
    by_key = {row["key"]: row for row in rows}
    written = by_key["k2"]["held"] and by_key["k2"]["written"] and _value(run, "states", "k2") == "new"
    problems = [] if written else ["the neighbour that kept its seat was not written"]
    return problems + nothing_stale(run)


def both_written(run: Run) -> Problems:
    """Two writes of one runner do not touch each other."""
    return [
        f"{side}: not written"
        for side, told in (("A", run.a), ("B", run.b))
        for row in told.rows("write") or ()
        if not row["written"]
    ]


def nobody_waits(run: Run) -> Problems:
    """The two have nothing to do with each other."""
    return ["one waited for the other"] if run.waits else []


def renewed_is_spared(run: Run) -> Problems:
    """A renews, B evicts A: exactly one of them gets its way, whenever both are known [C4 b]."""
    renewed, gone = run.a.rows("renew"), _gone(run, "a")
    evicted = run.b.rows("evict")
    problems = []
    if renewed and gone:
        problems.append("evicted although its renewal succeeded")
    if evicted and not gone:
        problems.append("told that it was evicted, and it is there")
    if renewed is not None and not renewed and not gone:
        problems.append("told that it is evicted, and it is there")
    if run.a.end == run.b.end == "done" and bool(renewed) == bool(evicted):
        problems.append("neither of renewal and eviction had its way")
    return problems


def left_for_good(run: Run) -> Problems:
    """A renews while it leaves on another session: whoever comes first, it is gone."""
    return ["left, and still there"] if run.b.rows("evict") and not _gone(run, "a") else []


def evicted_holds_nothing(run: Run) -> Problems:
    """A acquires while B evicts it: it keeps all or nothing [C4 a]."""
    if not _gone(run, "a"):
        return granted_is_held(run)
    return [f"{row['name']} is still held by the evicted" for row in run.tables["seats"] if row["holder"] == "a"]


def granted_is_held(run: Run, *, b: str = "b") -> Problems:
    """What a session was granted for good is in the table, under its name and epoch. B acts for b, or for a."""
    problems = []
    seats = {row["name"]: row for row in run.tables["seats"]}
    for me, told in (("a", run.a), (b, run.b)):
        for row in told.rows("grant") or ():
            seat = seats[row["name"]]
            if (seat["holder"], seat["epoch"]) != (me, row["epoch"]):
                problems.append(f"{me} was granted {dict(row)}, the table says {dict(seat)}")
    return problems


def all_granted_once(run: Run) -> Problems:
    """Two take the same free seats: each seat goes to one of them."""
    problems = granted_is_held(run)
    if run.a.end == run.b.end == "done":
        problems += [f"{row['name']} was left free" for row in run.tables["seats"] if row["holder"] is None]
    return problems


def evicted_once(run: Run) -> Problems:
    """Of two evictors of a one deletes, the other finds nothing; nobody else goes."""
    deleted = [told for told in (run.a, run.b) if told.rows("evict")]
    problems = ["both were told that they evicted it"] if len(deleted) > 1 else []
    if not _lost(run) and not deleted:
        problems.append("nobody evicted it")
    return problems + (["evicted somebody else, too"] if _gone(run, "b") else [])


def released_or_granted(run: Run) -> Problems:
    """A releases s1, B takes it if it can: never both, never lost."""
    seat = run.tables["seats"][0]
    problems = granted_is_held(run)
    if run.a.rows("release") and seat["holder"] == "a":
        problems.append("released, and still held")
    if run.a.rows("release") == []:
        problems.append("its own seat could not be released")
    return problems


def free_in_the_end(run: Run) -> Problems:
    """Released or evicted: the seat is free, and no statement was refused."""
    if _lost(run):
        return []
    return [f"{row['name']} is held by {row['holder']}" for row in run.tables["seats"] if row["holder"] is not None]


def clean_if_released(run: Run) -> Problems:
    """A releases s1, B evicts A and takes it: clean if it was released, and only then [C5]."""
    grants, released = run.b.rows("grant"), run.a.rows("release")
    if not grants or released is None:
        return granted_is_held(run)
    problems = granted_is_held(run)
    if grants[0]["clean"] != bool(released):
        problems.append(f"told clean={grants[0]['clean']}, released: {bool(released)}")
    return problems


def asked_to_leave(run: Run) -> Problems:
    """A renews while B asks it to leave: the question is not lost."""
    asked = run.b.rows("leaving")
    (lease,) = [row for row in run.tables["leases"] if row["id"] == "a"]
    return ["asked to leave, and does not know"] if asked and not lease["leaving"] else []


def defined_last(run: Run, *, news: Sequence[str]) -> Problems:
    """A definition never seen before is current once its runner is there; older ones wait for it to go [M8]."""
    there = {row["id"] for row in run.tables["runners"]}
    known = [name for name, runner in zip(news, ("n", "m"), strict=False) if runner in there]
    current = {row["fingerprint"] for row in run.tables["seats"]}
    return [f"{current} is current, although {known} registered"] if known and not current & {*known} else []


def agreed(run: Run) -> Problems:
    """Two bring another value each: both are told the same."""
    told = [side.rows("told") for side in (run.a, run.b)]
    values = {rows[0]["value"] if rows else None for rows in told if rows is not None}
    return [f"told {values}"] if len(values) > 1 or None in values else []


def counted(run: Run) -> Problems:
    """Each modification of the number shows, unknown ones perhaps [K1]."""
    final = _value(run, "kv")
    known = sum("swap" in told.committed for told in (run.a, run.b))
    unknown = sum(told.end == "lost" and "swap" not in told.committed for told in (run.a, run.b))
    number = int(final) if final is not None else 0
    if known <= number <= known + unknown:
        return []
    return [f"an update was lost: {known} modifications known, {unknown} unknown, the number is {number}"]


def removed_or_counted(run: Run) -> Problems:
    """A adds one to 5, B removes what it has read: one after the other, in some order."""
    if _lost(run):
        return []
    final = _value(run, "kv")
    removed = "swap" in run.b.committed
    return [] if final in ((None, "1") if removed else ("6",)) else [f"{final!r} is there, removed: {removed}"]


def one_generation(run: Run) -> Problems:
    """Two runners see the new server: the generation grows by one [M13]."""
    generation = run.tables["generations"][0]["generation"]
    raised = [told for told in (run.a, run.b) if told.rows("raise_generation")]
    if generation > 8 or len(raised) > 1:
        return [f"the generation was raised to {generation}, by {len(raised)}"]
    return []


def granted_under_new_generation(run: Run) -> Problems:
    """No grant on a new server carries a generation of the old one [M13]."""
    grants = run.a.rows("grant") or ()
    return [f"granted {dict(row)}" for row in grants if row["epoch"] >> 40 != 8]


def _gone(run: Run, id: str) -> bool:
    return id not in {row["id"] for row in run.tables["runners"]}


def _lost(run: Run) -> bool:
    return "lost" in (run.a.end, run.b.end)


def _value(run: Run, table: str, key: str = "k") -> Any:
    return next((row["value"] for row in run.tables[table] if row["key"] == key), None)


def together(*judges: Judge) -> Judge:
    """Several judges as one."""

    def judge(run: Run) -> Sequence[str]:
        return [problem for each in judges for problem in each(run)]

    return judge
