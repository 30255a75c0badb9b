"""Pairs of definitions that a runner adds to its row after its registration [M8]."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from tests.interleavings.database import CLUSTER, defined, given
from tests.interleavings.plant import Plant, swapped
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import stop_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Run

SEATS = Step("look", "select name from coterie.seats where cluster = $1", (CLUSTER,))
KNOWN = f";update coterie.runners set knows = '{{\"s0\": \"v0\"}}' where cluster = '{CLUSTER}'"
"""What every runner knows from its registration."""

NIGHTLY = {"late v3 x late v4", "late v3 x register v4", "late s2 v1 x late s2 v2"}
"""Variants of the others."""


def late_definitions(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    alive = given(runners={"a": 6, "b": 6}) + KNOWN
    expired = given(runners={"a": -1, "b": 6}) + KNOWN
    old = given(runners={"a": 6, "b": 6}, seats={"s1": None}) + KNOWN + defined("s1", "v1", "v2")
    new = Script("late s2", learning(s, "a", "s2", "v1"))
    v3, v4 = Script("late v3", learning(s, "a", "s1", "v3")), Script("late v4", learning(s, "b", "s1", "v4"))
    first, second = (Script(f"late s2 {each}", learning(s, me, "s2", each)) for me, each in (("a", "v1"), ("b", "v2")))
    evict = Script("evict and look", (*s.evicting("a"), SEATS))
    plan = Script("view and acquire", (s.step("view"), *atomic(s.step("acquire", "b", ["s2"], step="take"))))
    back = Script("v1 comes back", learning(s, "b", "s1", "v1"))
    news = partial(newest_is_current, seat="s1")
    return [
        _pair(expired, new, evict, evicted_defines_nothing),
        _pair(alive, new, plan, seat_has_candidate),
        _pair(alive, new, Script("late s3 on another session", learning(s, "a", "s3", "v1")), nothing_forgotten),
        _pair(alive, first, second, partial(newest_is_current, seat="s2", news=("v1", "v2"))),
        _pair(old, v3, v4, partial(news, news=("v3", "v4"))),
        _pair(old, v3, Script("register v4", s.registering("n", "v4")), partial(news, news=("v3", "v4"))),
        _pair(old, v3, back, partial(news, news=("v3",))),
    ]


def learning(s: Steps, me: str, seat: str, fingerprint: str) -> tuple[Step, ...]:
    """Define a seat after the registration: nothing for a runner that is not there."""
    known = json.dumps({seat: fingerprint})
    return atomic(
        s.step("learn", me, known, then=stop_if_none),
        s.step("declare", [seat], ["default"], [fingerprint]),
        s.step("contest", [seat], [fingerprint]),
        s.step("redefine", [seat], ["default"], [fingerprint]),
    )


def _pair(rows: str, a: Script, b: Script, judge: object) -> Pair:
    def judged(run: Run) -> Sequence[str]:
        return [*nothing_forgotten(run), *judge(run)]  # type: ignore[operator]  # all of them take a run

    return Pair(f"{a.name} x {b.name}", rows, a, b, judged)


def nothing_forgotten(run: Run) -> list[str]:
    """A runner knows what it registered with and all that it has added since, and each of these seats is there."""
    problems = []
    seats = {row["name"] for row in run.tables["seats"]}
    for runner, knows in _knows(run).items():
        late = {name: value for name, value in knows.items() if name != "s0"}
        problems += [f"{runner} knows {name}, and no such seat is there" for name in late if name not in seats]
        if runner in "ab" and "s0" not in knows:
            problems.append(f"{runner} has forgotten what it registered with")
    for script, told in ((run.pair.a, run.a), (run.pair.b, run.b)):
        for step in script.steps:
            if step.name == "learn" and told.rows("learn"):
                _, me, added = step.values  # type: ignore[misc]  # a sequence, see `learning`
                there = _knows(run).get(me)
                if there is not None and not json.loads(added).items() <= there.items():
                    problems.append(f"{me} has forgotten {added}")
    return problems


def evicted_defines_nothing(run: Run) -> list[str]:
    """No seat appears after its runner was evicted."""
    seen = run.b.rows("look")
    if seen is None or not run.b.rows("evict"):
        return []
    late = {row["name"] for row in run.tables["seats"]} - {row["name"] for row in seen}
    return [f"{name} was defined by a runner that had been evicted" for name in sorted(late)]


def seat_has_candidate(run: Run) -> list[str]:
    """Who sees the seat sees the runner that can take it: plans need both."""
    seen = run.b.rows("view")
    if not seen or "s2" not in seen[0]["names"]:
        return []
    known = [each["id"] for each in json.loads(seen[0]["runners"]) if "s2" in each["knows"]]
    return [] if known == ["a"] else [f"the seat s2 was seen, known to {known}"]


def newest_is_current(run: Run, *, seat: str, news: Sequence[str]) -> list[str]:
    """A definition never seen before is current while a runner knows it."""
    known = {knows.get(seat) for knows in _knows(run).values()} & {*news}
    (current,) = [row["fingerprint"] for row in run.tables["seats"] if row["name"] == seat] or [None]
    return (
        [f"{current} is current, although {sorted(map(str, known))} is known"] if known and current not in known else []
    )


def _knows(run: Run) -> dict[str, dict[str, str]]:
    return {row["id"]: json.loads(row["knows"]) for row in run.tables["runners"]}


LATE_PLANTS = (
    Plant(
        "definitions added to what was read before",
        "M8",
        "late s2 x late s3 on another session",
        "has forgotten",
        swapped(
            ("learn",),
            ("set knows = knows ||", "set knows = (select knows from coterie.runners where id = $2) ||"),
        ),
    ),
    Plant(
        "definitions in place of what was known",
        "M8",
        "late s2 x view and acquire",
        "forgotten what it registered with",
        swapped(("learn",), ("set knows = knows ||", "set knows =")),
    ),
    Plant(
        "seats of a runner that was evicted",
        "M8",
        "late s2 x evict and look",
        "had been evicted",
        {
            "learn": "with learned as (update coterie.runners set knows = knows || $3::jsonb"
            " where id = $2 and cluster = $1) select $2::text as id"
        },
    ),
    Plant(
        "late definition without a lock first",
        "M8",
        "late v3 x v1 comes back",
        "is current, although",
        {"contest": "select 1 from (select $1::text, $2::text[], $3::text[]) as nothing"},
    ),
)
