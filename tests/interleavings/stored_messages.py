"""Pairs of stored messages: what ends, fails, claims, takes back and purges them, against all that moves their seat."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import Commit, Insert, Message, Setback, StateChange
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import messages as message_batch
from coterie.storage.postgres.batch import plan, single
from tests.interleavings import message_judges as judges
from tests.interleavings.database import CLUSTER, THERE, given
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import restart_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving.scripts import Reads

MINE = Claim("a", "s1", 1)
OVERTAKEN = frozenset({"40001"})
"""A statement that somebody was faster than comes to nothing, and is run again [M3]."""


def message(id: str, *, key: str | None = None) -> Message:
    """A message to an entity on s1."""
    return Message(id=id, seat="s1", entity_type="E", entity_id="e", method="m", payload=b"p", key=key)


ENDED = Commit(MINE, "m1", b"reply")
LEFT = Commit(MINE, "m1", b"reply", StateChange("k", b"new", 1), (message("m2"),))
AGAIN = Setback(MINE, "m1", 1, "boom", 0.0)
DEAD = Setback(MINE, "m1", 1, "boom", None)
PUT_OFF = Setback(MINE, "m1", 1, None, 0.0)


def rows(
    *messages: str,
    left_s: float = 6,
    holder: str | None = "a",
    status: int = 0,
    key: str = "",
    states: bool = True,
    suspicion: int = 0,
) -> str:
    """Runners a and b, the seat s1, and messages on it that were sent, or have ended, long ago."""
    begin = given(runners={"a": left_s, "b": 6}, seats={"s1": holder}, states={"k": "old"} if states else {})
    ended = "now() - interval '1 day'" if status else "null"
    for name in messages:
        begin += (
            ";insert into coterie.messages (cluster, id, seat, entity_type, entity_id, method, key, sent_at, due_at,"
            f" completed_at, status, attempts, digest, payload, suspicion, epoch)"
            f" values ('{CLUSTER}', '{name}', 's1', 'E', 'e', 'm',"
            f" nullif('{key}', ''), now() - interval '1 day', now() - interval '1 day', {ended}, {status},"
            f" {status // 2}, '', 'p', {suspicion}, 1)"
        )
    return begin


def stored_messages(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    return [*_against_owners(s), *_against_each_other(s), *_with_keys(s), *_put_away(s)]


def _against_owners(s: Steps) -> list[Pair]:
    """Whatever a holder writes against all that takes its seat away [C1, B3]."""
    granted = Script("release and grant", (s.release("a", "s1"), s.grant("b", "s1"), LOAD))
    evicted = Script("evict and grant", (*s.evicting("a"), s.grant("b", "s1"), LOAD))
    takes_over = Script("take over", (*evicted.steps, *atomic(_suspect(s, "b"))))
    takes_begun = Script("take over what was begun alone", takes_over.steps)
    end, commit = _script(s, "end", ENDED), _script(s, "commit", LEFT)
    lone = _lone_end(s)
    again, dead = _script(s, "set back", AGAIN), _script(s, "set aside", DEAD)
    put_off = _script(s, "put off", PUT_OFF)
    suspect = Script("suspect", atomic(_suspect(s, "a")))
    cancel = Script(
        "cancel under the fence", atomic(s.step("cancel_fenced", "a", "s1", 1, "m1", judges.CANCELLED, step="write"))
    )
    mark = Script("mark", atomic(s.step("mark_suspect", "a", "s1", 1, "m1", 2, step="write")))
    held, expired = rows("m1"), rows("m1", left_s=-1)
    suspected, alone_ = (rows("m1", left_s=-1, suspicion=suspicion) for suspicion in (1, 2))
    return [
        _pair(held, end, granted, judges.nothing_late),
        _pair(held, lone, granted, judges.nothing_late),
        _pair(held, commit, granted, judges.nothing_late),
        _pair(expired, commit, evicted, judges.nothing_late),
        _pair(held, again, granted, judges.nothing_late),
        _pair(expired, dead, evicted, judges.nothing_late),
        _pair(held, put_off, granted, judges.nothing_late),
        _pair(held, suspect, granted, judges.nothing_late),
        _pair(held, cancel, granted, judges.nothing_late),
        _pair(expired, end, takes_over, judges.counted_if_pending),
        _pair(expired, lone, takes_over, judges.counted_if_pending),
        _pair(held, mark, granted, judges.nothing_late),
        _pair(suspected, mark, takes_over, judges.counted_if_pending),
        _pair(alone_, end, takes_begun, judges.counted_if_pending),
        _pair(alone_, again, takes_begun, judges.counted_if_pending),
        _pair(alone_, put_off, takes_begun, judges.counted_if_pending),
    ]


def _against_each_other(s: Steps) -> list[Pair]:
    """Two that want the same pending message."""
    end, commit, again = _script(s, "end", ENDED), _script(s, "commit", LEFT), _script(s, "set back", AGAIN)
    lone = _lone_end(s)
    cancel = Script("cancel", atomic(s.step("cancel_fenced", "a", "s1", 1, "m1", judges.CANCELLED, step="cancel")))
    late = Script("cancel unheld", atomic(s.step("cancel", "m1", judges.CANCELLED, step="cancel")))
    begins = Script("acquire and look", (s.grant("b", "s1"), LOAD))
    overtaken = partial(_pair, rows("m1"), allows=OVERTAKEN)
    return [
        overtaken(end, cancel, judges.ended_or_cancelled),
        overtaken(lone, cancel, judges.ended_or_cancelled),
        overtaken(commit, cancel, judges.ended_or_cancelled),
        overtaken(again, cancel, judges.ended_or_cancelled),
        overtaken(_script(s, "put off", PUT_OFF), cancel, judges.ended_or_cancelled),
        overtaken(Script("suspect", atomic(_suspect(s, "a"))), end, judges.suspected_or_ended),
        overtaken(Script("suspect", atomic(_suspect(s, "a"))), lone, judges.suspected_or_ended),
        _pair(rows("m1", holder=None), late, begins, judges.cancelled_unseen),
    ]


def _with_keys(s: Steps) -> list[Pair]:
    """A key is there once, and everybody is told by whom [M4]."""
    one, other = _inserting(s, "n1", key="x"), _inserting(s, "n2", key="x")
    again = _inserting(s, "n1", key="x", name="insert again")
    lone = _inserting(s, "n2", key="x", name="lone insert n2", is_lone=True)
    new, too = (_inserting(s, "n1", key=None, name=name, is_lone=True) for name in ("add n1", "add it again"))
    sends = _script(s, "send", Commit(MINE, "m1", sends=(message("n3", key="x"),)))
    forth = _insert(s, "insert x, z, y", ("n1", "x"), ("n2", "z"), ("n3", "y"))
    back = _insert(s, "insert y, z, x", ("n4", "y"), ("n5", "z"), ("n6", "x"))
    held = _insert(s, "z held", ("n7", "z"))
    old = rows("m1", status=1, key="x")
    return [
        _pair(rows(), one, other, judges.one_key),
        _pair(rows(), one, lone, judges.one_key),
        _pair(rows(), one, again, judges.one_key),
        _pair(rows(), new, too, judges.one_message),
        _pair(rows("m1"), one, sends, judges.one_key, allows=OVERTAKEN),
        _pair(rows(), forth, back, judges.each_key_once, c=held),
        _pair(old, one, _purge(s), judges.one_key),
    ]


def _put_away(s: Steps) -> list[Pair]:
    """Purges, removals, and the dead that come back [m17]."""
    dead = rows("m1", "m2", status=2)
    revive = Script("revive", atomic(s.step("revive", "m1", step="revive")))
    remove = Script("remove", atomic(s.step("remove_dead", 10, 2, None, None, None, None, step="remove")))
    return [
        _pair(rows("m1", "m2", status=1), _purge(s), _purge(s, name="purge too"), judges.deleted_once),
        _pair(dead, revive, remove, judges.revived_or_removed),
        _pair(dead, Script("remove too", remove.steps), remove, judges.deleted_once),
    ]


LOAD = Step(
    "load",
    "select id, status, attempts, suspicion, losses, reply, due_at > now() - interval '1 hour' as is_recent"
    " from coterie.messages where cluster = $1 order by id",
    (CLUSTER,),
)


def _script(s: Steps, name: str, write: Write) -> Script:
    """The statement and arrays that the engine itself makes of a write that is not alone."""
    bucket = plan.Bucket(plan.shape_of(write), [0])
    return Script(name, atomic(s.step(bucket.shape, *plan.values(bucket, [write]), step="write")))


def _lone_end(s: Steps) -> Script:
    """The same for one that is; unless it is ended, why not. Each in a transaction of its own."""
    short, long = (plan.values(plan.Bucket(shape, [0]), [ENDED]) for shape in ("end_message", "end_messages"))
    end = s.step("end_message", *short, step="end")

    def sql(reads: Reads) -> str:
        return "select 'written' as outcome" if reads["end"] else s.sql["end_messages"]

    told = Step("write", sql, lambda reads: () if reads["end"] else (CLUSTER, *long))
    return Script("lone end", (*atomic(end), *atomic(told)))


def _lone_insert(s: Steps, write: Insert) -> tuple[Step, ...]:
    shape = single.shape_of(write)
    assert shape is not None
    insert = s.step(shape, *single.values(shape, write), step="insert")
    return atomic(replace(insert, nothing=THERE) if shape in plan.ADDING else insert)


def _suspect(s: Steps, me: str) -> Step:
    def values(reads: Reads) -> Sequence[Any]:
        epoch = reads["grant"][0]["epoch"] if reads.get("grant") else 1
        return (CLUSTER, me, "s1", epoch, ["E"], [1], 2)

    return Step("suspect", s.sql["suspect"], values)


def _insert(s: Steps, title: str, *messages: tuple[str, str | None]) -> Script:
    writes = [Insert(message(name, key=key)) for name, key in messages]
    insert = s.step("insert_messages", *message_batch.values("insert_messages", writes), step="insert")
    return Script(title, atomic(insert))


def _inserting(s: Steps, id: str, *, key: str | None, name: str = "", is_lone: bool = False) -> Script:
    """Store it, see what is there; if what was in the way is gone by then, store it after all."""
    name = name or f"insert {id}"
    write = Insert(message(id, key=key))
    insert = _lone_insert(s, write) if is_lone else _insert(s, name, (id, key)).steps
    read = s.step("read_back", *message_batch.sought([message(id, key=key)]), step="read", then=restart_if_none)
    return Script(name, (*insert, read))


def _purge(s: Steps, *, name: str = "purge") -> Script:
    return Script(name, atomic(s.step("purge_messages", "", 10, 60.0, 60.0, step="purge")))


def _pair(
    begin: str,
    a: Script,
    b: Script,
    judge: judges.Judge,
    *,
    allows: frozenset[str] = frozenset(),
    c: Script | None = None,
) -> Pair:
    tried = [Script(script.name, script.steps, tries=3) for script in (a, b)]
    name = f"message: {a.name} x {b.name}" + (f", {c.name}" if c else "")
    return Pair(name, begin, tried[0], tried[1], judge, allows=allows, c=c)
