"""What must hold of stored messages after a run: sentences about what does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.support.interleaving import Run, SessionOutcome

Problems = list[str]
Judge = Callable[["Run"], Sequence[str]]

PENDING, DONE, DEAD = 0, 1, 2
CANCELLED = b"cancelled"
"""The reply of a message that was cancelled: to all who want it, it is gone."""
SUSPECT, ALONE = 1, 2
UNENDED = ("set back", "put off")
"""Scripts after which the message may still be pending."""


def nothing_late(run: Run) -> Problems:
    """B, granted s1 after A lost it, has seen all that A ever wrote; A's commit is whole [C1, B3, INV-F2]."""
    problems = whole(run)
    loaded = run.b.rows("load")
    if loaded is not None and run.b.rows("grant") and (seen := _seen(loaded)) != (final := _seen(_messages(run))):
        problems.append(f"a stale write: the new holder read {seen}, afterwards {final} is there")
    return problems


def whole(run: Run) -> Problems:
    """What A left behind is there as a whole or not at all, and A was told which."""
    final = {row["id"]: row for row in _messages(run)}
    told = run.a.rows("write")
    done = "m1" in final and final["m1"]["status"] == DONE
    problems = []
    if run.pair.a.name == "commit":
        state = next(row["value"] for row in run.tables["states"] if row["key"] == "k")
        parts = {done, state == "new", "m2" in final}
        problems += [f"a commit in parts: done {done}, state {state!r}, sent {'m2' in final}"] if len(parts) > 1 else []
    if (
        told is not None
        and run.pair.a.name in ("commit", "end", "lone end")
        and (told[0]["outcome"] == "written") != done
    ):
        problems.append(f"A was told {told[0]['outcome']!r}, and it is {'done' if done else 'not done'}")
    return problems


def counted_if_pending(run: Run) -> Problems:
    """A ends its message, or begins it alone, while B takes over: a loss is counted if B found it begun alone [C5].

    What was not is a suspect, and counts nothing.
    """
    problems = whole(run)
    told, loaded = run.b.rows("suspect"), run.b.rows("load")
    if told is None or loaded is None or not run.b.rows("grant"):
        return problems
    (row,), before = _messages(run), loaded[0]
    is_pending, was_alone = before["status"] == PENDING, before["suspicion"] == ALONE
    expected = {
        "status": before["status"],
        "attempts": before["attempts"],
        "losses": int(is_pending and was_alone),
        "suspicion": SUSPECT if is_pending else before["suspicion"],
    }
    if any(row[name] != value for name, value in expected.items()):
        problems.append(f"a stale write: B read {dict(before)}, was told {told}, and {dict(row)} is there")
    if told[0]["count"] != (is_pending and before["suspicion"] == 0):
        problems.append(f"B made {told[0]['count']} suspects of {dict(before)}")
    if (told[0]["id"] is not None) != (is_pending and was_alone):
        problems.append(f"B counted a loss of {told[0]['id']}, and had read {dict(before)}")
    mine = run.a.rows("write")
    if run.pair.a.name in UNENDED and mine and mine[0]["outcome"] == "written" and told[0]["id"] is not None:
        problems.append(f"B counted a loss of {told[0]['id']}, whose failed attempt its process had survived")
    return problems


def ended_or_cancelled(run: Run) -> Problems:
    """A ends a message or counts an attempt, B cancels it: told so only if it was so."""
    told, cancelled = run.a.rows("write"), run.b.rows("cancel")
    there = {row["id"]: row for row in _messages(run)}
    problems = whole(run) if run.pair.a.name not in UNENDED else []
    if cancelled and "m1" in there:
        problems.append("B was told that it is cancelled, and it is there")
    if cancelled and told is not None and told[0]["outcome"] == "written" and run.pair.a.name not in UNENDED:
        problems.append("both ended and cancelled")
    if not _lost(run) and not cancelled and (told is None or told[0]["outcome"] != "written"):
        problems.append("neither of the two had its way")
    return problems


def suspected_or_ended(run: Run) -> Problems:
    """One suspects a message, the other ends it: it is done, and was a suspect if that was told."""
    (row,) = _messages(run)
    counted, told = run.a.rows("suspect"), run.b.rows("write")
    problems = []
    if told is not None and (told[0]["outcome"], row["status"]) != ("written", DONE):
        problems.append(f"B was told {told[0]['outcome']!r}, and {dict(row)} is there")
    if counted is not None and counted[0]["count"] != row["suspicion"]:
        problems.append(f"A counted {counted[0]['count']}, and {dict(row)} is there")
    return problems


def cancelled_unseen(run: Run) -> Problems:
    """A takes back a message whose seat is free, B takes the seat and looks: it has not seen what was taken back."""
    cancelled, loaded = run.a.rows("cancel"), run.b.rows("load")
    problems = ["A was told that it is cancelled, and it is there"] if cancelled and _messages(run) else []
    if loaded and _there(loaded) and run.b.rows("grant") and not _messages(run):
        problems.append("it was taken back while its holder may be running it")
    return problems


def one_key(run: Run) -> Problems:
    """All that bring one key are told of one message, which is there unless it was purged since [M4]."""
    there = [row["id"] for row in _messages(run) if row["key"] == "x"]
    problems = [f"the key is there {len(there)} times: {there}"] if len(there) > 1 else []
    purged = run.pair.b.name == "purge"
    for side, told in (("A", run.a), ("B", run.b)):
        if (read := told.rows("read")) and [read[0]["id"]] != there and not (purged and read[0]["id"] == "m1"):
            problems.append(f"{side} was told of {read[0]['id']}, and {there} is there")
        if (write := told.rows("write")) is not None and (write[0]["outcome"] == "written") != ("n3" in there):
            problems.append(f"{side} was told {write[0]['outcome']!r}, and {there} is there")
        if told.end == "done" and "read" in told.committed and not told.rows("read"):
            problems.append(f"{side} was told nothing")
    return problems


def one_message(run: Run) -> Problems:
    """Both store the same one, as somebody does whose first try is not known: it is there, and both are told of it."""
    there = [row["id"] for row in _messages(run)]
    told = [read for read in (run.a.rows("read"), run.b.rows("read")) if read is not None]
    problems = [f"told of {read}, and {there} are there" for read in told if [row["id"] for row in read] != there]
    return problems if there == ["n1"] or _lost(run) else [*problems, f"{there} are there"]


def each_key_once(run: Run) -> Problems:
    """Groups that bring the same keys: each is there once."""
    keys = [row["key"] for row in _messages(run)]
    problems = [f"{key} is there twice" for key in set(keys) if keys.count(key) > 1]
    return problems if _lost(run) or set(keys) == {"x", "y", "z"} else [*problems, f"only {keys} are there"]


def deleted_once(run: Run) -> Problems:
    """Two delete the same messages: together they count each once, and none is left."""
    counts = [_count(told) for told in (run.a, run.b)]
    gone, known = 2 - len(_messages(run)), [count for count in counts if count is not None]
    if sum(known) > gone or (len(known) == 2 and sum(known) != gone):
        return [f"they were told {counts}, and {gone} are gone"]
    return ["some are left"] if len(known) == 2 and gone != 2 else []


def revived_or_removed(run: Run) -> Problems:
    """A makes a dead message pending, B removes the dead: one of them has it."""
    there = {row["id"]: row["status"] for row in _messages(run)}
    revived, removed = run.a.rows("revive"), _count(run.b)
    problems = []
    if revived and there.get("m1") != PENDING:
        problems.append(f"A was told that it lives again, and {there} is there")
    if removed is not None and removed != 2 - len(there):
        problems.append(f"B was told {removed}, and {there} is there")
    if there.get("m1") == PENDING and revived == []:
        problems.append("it lives again, and nobody was told")
    return problems


def _count(told: SessionOutcome) -> int | None:
    """How many a purge or a removal has deleted, if it knows."""
    for step, column in (("purge", "gone"), ("remove", "count")):
        if (rows := told.rows(step)) is not None:
            count: int = rows[0][column]
            return count
    return None


def _messages(run: Run) -> Sequence[Any]:
    return _there(run.tables["messages"])


def _there(rows: Sequence[Any]) -> Sequence[Any]:
    return [row for row in rows if row["reply"] != CANCELLED]


def _seen(rows: Sequence[Any]) -> list[tuple[Any, ...]]:
    there = _there(rows)
    names = ("id", "status", "attempts", "suspicion", "losses", "is_recent")
    return [tuple(row[name] for name in names) for row in there]


def _lost(run: Run) -> bool:
    return "lost" in (run.a.end, run.b.end)
