"""The catalogue: which transactions meet, on which rows, and what must hold. Later issues add theirs here."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tests.interleavings import judges
from tests.interleavings.database import CLUSTER, SQL, defined, given
from tests.interleavings.fenced_keys import fenced_keys
from tests.interleavings.late_definitions import late_definitions
from tests.interleavings.leader_states import leading
from tests.interleavings.started_units import started_units
from tests.interleavings.steps import Steps
from tests.interleavings.stored_jobs import stored_jobs
from tests.interleavings.stored_messages import stored_messages
from tests.interleavings.stored_ticks import stored_ticks
from tests.interleavings.stored_units import stored_units
from tests.support.interleaving import Pair, Script, Step, atomic

if TYPE_CHECKING:
    from collections.abc import Callable

    Some = Callable[[Steps], list[Pair]]

A_HOLDS = given(runners={"a": 6, "b": 6}, seats={"s1": "a"})
A_HOLDS_WITH_STATE = given(runners={"a": 6, "b": 6}, seats={"s1": "a"}, states={"k": "old"})
A_EXPIRED = given(runners={"a": -1, "b": 6}, seats={"s1": "a"})
A_EXPIRED_WITH_STATE = given(runners={"a": -1, "b": 6}, seats={"s1": "a"}, states={"k": "old"})
A_HOLDS_TWO = given(runners={"a": 6, "b": 6}, seats={"s1": "a", "s2": "a"}, states={"k": "old"})
FREE = given(runners={"a": 6, "b": 6}, seats={"s1": None, "s2": None})
FREE_BESIDE_EXPIRED = given(runners={"a": -1, "b": 6}, seats={"s1": "a", "s2": None})
ANOTHER_SERVER = f";update coterie.generations set generation = 7, timeline = -1 where cluster = '{CLUSTER}'"


def catalogue(steps: Steps | None = None) -> dict[str, Pair]:
    """All pairs by name, over the right statements unless others are given."""
    chosen = steps or Steps(SQL)
    parts: tuple[Some, ...] = (
        *(writes, leases, restarts, seats, definitions, keys, fenced_keys, generations, stored_messages),
        *(stored_jobs, leading, stored_ticks, stored_units, late_definitions, started_units),
    )
    pairs = [pair for part in parts for pair in part(chosen)]
    assert len({pair.name for pair in pairs}) == len(pairs), "two pairs have one name"
    return {pair.name: pair for pair in pairs}


def writes(s: Steps) -> list[Pair]:
    """Fenced writes against everything that moves their seat [C1]."""
    first = Script("first write", atomic(s.write(("s1", "k", "new", 0))))
    later = Script("write", atomic(s.write(("s1", "k", "new", 1))))
    two = Script("write for two seats", atomic(s.write(("s2", "k2", "new", 0), ("s1", "k", "new", 1))))
    put = Script("kv put", atomic(s.put("k", "new")))
    before = s.write(("s1", "j", "new", 0), step="write before")
    twice = Script("writes on", (*atomic(before), *first.steps))
    granted = Script("release and grant", (s.release("a", "s1"), *s.taking("b", "k")))
    granted_kv = Script("release and grant", (s.release("a", "s1"), *s.taking_kv("b", "k")))
    regranted = Script("release and re-grant to itself", (s.release("a", "s1"), *s.taking("a", "k")))
    evicted = Script("evict and grant", (*s.evicting("a"), *s.taking("b", "k")))
    left = Script("leave and grant", (*s.leaving("a"), *s.taking("b", "k")))
    ask = Step("ask", "select version from coterie.states where cluster = $1 and key = 'k'", (CLUSTER,))
    resigned = Script("asks, resigns, is succeeded", (ask, *granted.steps))
    nothing_stale_kv = partial(judges.nothing_stale, table="kv")
    return [
        _pair(A_HOLDS, first, granted, judges.nothing_stale),
        _pair(A_HOLDS_WITH_STATE, later, granted, judges.nothing_stale),
        _pair(A_HOLDS, put, granted_kv, nothing_stale_kv),
        _pair(A_HOLDS, first, regranted, judges.nothing_stale),
        _pair(A_HOLDS_WITH_STATE, later, regranted, judges.nothing_stale),
        _pair(A_EXPIRED, first, evicted, judges.nothing_stale),
        _pair(A_EXPIRED_WITH_STATE, later, evicted, judges.nothing_stale),
        _pair(A_HOLDS, first, left, judges.nothing_stale),
        _pair(A_HOLDS, first, resigned, judges.nothing_stale),
        _pair(A_HOLDS, twice, resigned, judges.nothing_stale),
        _pair(A_HOLDS_TWO, two, granted, judges.neighbours_commit),
        _pair(A_HOLDS, first, Script("release", atomic(s.release("a", "s1"))), judges.what_was_acknowledged),
        _pair(A_EXPIRED, first, Script("evict", s.evicting("a")), judges.what_was_acknowledged),
        _pair(
            A_EXPIRED, first, Script("evict", s.evicting("a")), judges.what_was_acknowledged, c=holds("runners", "a")
        ),
        *_writes_in_peace(s),
    ]


def _writes_in_peace(s: Steps) -> list[Pair]:
    """Fenced writes beside what must not disturb them."""
    one = Script("write s1, s2", atomic(s.write(("s1", "k1", "new", 0), ("s2", "k2", "new", 0))))
    other = Script("write s2, s1", atomic(s.write(("s2", "k4", "new", 0), ("s1", "k3", "new", 0))))
    renew = Script("renew", atomic(s.renew("a")))
    more = Script("acquire another seat", atomic(s.grant("a", "s3")))
    three = A_HOLDS_TWO + ";" + given(runners={}, seats={"s3": None})
    peace = judges.together(judges.both_written, judges.nobody_waits)
    return [
        _pair(A_HOLDS_TWO, one, other, peace),
        _pair(A_HOLDS_TWO, one, renew, peace),
        _pair(three, one, more, peace),
    ]


def leases(s: Steps) -> list[Pair]:
    """Renewals, evictions, leaving [C4]."""
    renew = Script("renew", atomic(s.renew("a")))
    evict = Script("evict", s.evicting("a"))
    by_witnesses = Script("evict by witnesses", s.evicting("a", by="lock_still_lease"))
    leave = Script("leave", s.leaving("a"))
    acquire = Script("acquire", atomic(s.grant("a", "s1", "s2")))
    b_expired = given(runners={"a": -1, "b": -1}, seats={"s1": "a", "s2": "b"})
    each_other = Script("evict b", s.evicting("b"))
    in_flight = Script("write in flight", atomic(s.write(("s1", "k", "new", 0))))
    return [
        _pair(A_EXPIRED, renew, evict, judges.renewed_is_spared),
        _pair(A_EXPIRED, renew, evict, judges.renewed_is_spared, c=in_flight),
        _pair(A_HOLDS, renew, by_witnesses, judges.renewed_is_spared),
        _pair(A_HOLDS, renew, leave, judges.left_for_good),
        _pair(FREE_BESIDE_EXPIRED, acquire, evict, judges.evicted_holds_nothing),
        _pair(FREE_BESIDE_EXPIRED, acquire, evict, judges.evicted_holds_nothing, c=holds("seats", "s2")),
        _pair(FREE, acquire, leave, judges.evicted_holds_nothing),
        _pair(A_EXPIRED, evict, evict, judges.evicted_once),
        _pair(A_EXPIRED, evict, by_witnesses, judges.evicted_once),
        _pair(A_EXPIRED, leave, evict, judges.evicted_once),
        _pair(b_expired, each_other, evict, judges.granted_is_held),
        _pair(A_HOLDS, renew, Script("ask to leave", atomic(s.step("leaving", "a"))), judges.asked_to_leave),
    ]


def restarts(s: Steps) -> list[Pair]:
    """Processes that start again examine who was there before them, evict the dead and take what they held."""
    renew = Script("renew", atomic(s.renew("a")))
    c_dead = given(runners={"a": 6, "b": 6, "c": -1}, seats={"s1": "c", "s2": "c"})
    by_lease = Script("look and evict", s.examining("a", by="lock_expired_lease"))
    by_witnesses = Script("look and evict by witnesses", s.examining("a", by="lock_still_lease"))
    first, second = (
        Script(f"{me} examines c and takes all", (*s.examining("c", by=lock), *atomic(s.grant(me, *names))))
        for me, lock, names in (("a", "lock_still_lease", ("s1", "s2")), ("b", "lock_expired_lease", ("s2", "s1")))
    )
    appear = Script("register", s.registering("d", "1"))
    return [
        _pair(A_EXPIRED, renew, by_lease, judges.renewed_is_spared),
        _pair(A_HOLDS, renew, by_witnesses, judges.renewed_is_spared),
        _pair(c_dead, first, second, judges.all_granted_once),
        _pair(c_dead, appear, second, judges.granted_is_held),
    ]


def seats(s: Steps) -> list[Pair]:
    """Seats that change hands."""
    forth = Script("acquire s1, s2", atomic(s.grant("a", "s1", "s2")))
    back = Script("acquire s2, s1", atomic(s.grant("b", "s2", "s1")))
    release = Script("release", atomic(s.release("a", "s1")))
    take = Script("acquire", atomic(s.grant("b", "s1")))
    retake = Script("release and acquire anew", (*atomic(s.release("a", "s1")), *atomic(s.grant("a", "s1"))))
    evict = Script("evict", s.evicting("a"))
    both = given(runners={"a": -1, "b": 6}, seats={"s1": "a", "s2": "a"})
    beside = given(runners={"a": -1, "b": 6}, seats={"s1": "a", "s2": None})
    regrant = Script("release and re-grant to itself", (s.release("a", "s1"), s.grant("a", "s1")))
    for_itself = partial(judges.granted_is_held, b="a")
    evict_and_take = Script("evict and acquire", (*s.evicting("a"), *atomic(s.grant("b", "s1"))))
    return [
        _pair(FREE, forth, back, judges.all_granted_once),
        _pair(FREE, forth, back, judges.all_granted_once, c=holds("seats", "s1")),
        _pair(FREE, forth, back, judges.all_granted_once, c=holds("seats", "s2")),
        _pair(A_HOLDS, Script("late release", release.steps), regrant, for_itself),
        _pair(A_HOLDS, release, take, judges.released_or_granted),
        _pair(A_HOLDS, retake, take, judges.granted_is_held),
        _pair(A_EXPIRED, release, evict, judges.free_in_the_end),
        _pair(A_EXPIRED, release, evict_and_take, judges.clean_if_released),
        _pair(both, evict, Script("acquire both", atomic(s.grant("b", "s2", "s1"))), judges.granted_is_held),
        _pair(beside, evict, Script("acquire both beside", atomic(s.grant("b", "s2", "s1"))), judges.granted_is_held),
    ]


def definitions(s: Steps) -> list[Pair]:
    """Definitions of one seat by several runners, and settings that all must share [M8, M4]."""
    nobody = given(runners={"a": 6}, seats={"s1": None}) + defined("s1", "v1", "v2")
    v3, v4 = Script("register v3", s.registering("n", "v3")), Script("register v4", s.registering("m", "v4"))
    first = Script("register first", s.registering("n", "v3", declare=True))
    back = Script("v1 comes back", atomic(*s.defining("v1")))
    both = partial(judges.defined_last, news=("v3", "v4"))
    agree, other = Script("agree", s.agreeing("100")), Script("agree otherwise", s.agreeing("50"))
    return [
        _pair(nobody, v3, back, partial(judges.defined_last, news=("v3",))),
        _pair(nobody, v3, v4, both),
        _pair(given(runners={}), first, Script("register second", s.registering("m", "v4", declare=True)), both),
        _pair(given(runners={}), agree, other, judges.agreed),
    ]


def keys(s: Steps) -> list[Pair]:
    """The key-value store [K1, M4]."""
    one = Script("kv modify", s.modifying("k", stamp=2))
    other = Script("kv modify too", s.modifying("k", stamp=3))
    nothing, zero, five = given(runners={}), given(runners={}, kv={"k": "0"}), given(runners={}, kv={"k": "5"})
    return [
        _pair(zero, one, other, judges.counted, tries=3),
        _pair(nothing, Script("kv modify, absent", one.steps), other, judges.counted, tries=3),
        _pair(five, one, Script("kv modify, removing", s.discarding("k")), judges.removed_or_counted, tries=3),
    ]


def generations(s: Steps) -> list[Pair]:
    """The first runners on a promoted standby [M13]."""
    rise = Script("raise generation", atomic(s.step("raise_generation")))
    acquire = Script("acquire on a new server", (*atomic(s.grant("a", "s1")),))
    return [
        _pair(FREE + ANOTHER_SERVER, rise, rise, judges.one_generation),
        _pair(FREE + ANOTHER_SERVER, acquire, rise, judges.granted_under_new_generation),
    ]


def holds(table: str, name: str) -> Script:
    """A third session that is in the way for a while."""
    column = "name" if table == "seats" else "id"
    hold = Step(
        "hold", f"select from coterie.{table} where cluster = $1 and {column} = '{name}' for update", (CLUSTER,)
    )
    return Script(f"{name} held", atomic(hold))


def _pair(rows: str, a: Script, b: Script, judge: judges.Judge, *, tries: int = 2, c: Script | None = None) -> Pair:
    tried = [Script(script.name, script.steps, tries=tries) for script in (a, b)]
    name = f"{a.name} x {b.name}" + (f", {c.name}" if c else "")
    return Pair(name, rows, tried[0], tried[1], judge, c=c)
