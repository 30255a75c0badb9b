"""The runner itself: it plays every order once, sees who waits, loses sessions where it says, and repeats a run."""

from __future__ import annotations

from math import comb
from typing import TYPE_CHECKING

import pytest

from tests.interleavings.catalogue import catalogue
from tests.interleavings.database import given, stage
from tests.interleavings.runs import parse_loss, repeat
from tests.support.interleaving import COMMIT, Pair, Run, Script, SessionOutcome, Step, atomic, explore, losses
from tests.support.interleaving.scripts import stop_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.interleaving import Loss

pytestmark = pytest.mark.postgres

TWO_KEYS = given(runners={}, kv={"k": "old", "j": "old"})


def test_every_way_to_lose_a_session_is_tried() -> None:
    one = Script("one", atomic(Step("x", "select 1")))
    other = Script("other", (Step("y", "select 1"),))
    found = [str(loss) for loss in losses(_pair(one, other))]
    ways = ("ended", "cut", "cut in commit", "ended in commit")
    assert found == [
        "A ended 0",
        "A cut 0",
        "A cut in commit 1",
        "A ended in commit 1",
        *(f"B {way} 0" for way in ways),
    ]
    assert [str(parse_loss(text)) for text in found] == found


async def test_every_order_is_played_once() -> None:
    """Of 4 and 3 turns there are 35 orders."""
    count = await explore(_pretend, _pair(_steps(4), _steps(3)))
    assert count.runs == comb(7, 3)


async def test_a_sample_is_the_same_each_time_and_another_for_another_seed() -> None:
    played: list[list[str]] = []
    for seed in (1, 1, 2):
        orders: list[str] = []

        async def play(pair: Pair, loss: Loss | None, prefix: str, orders: list[str] = orders) -> Run:
            run = await _pretend(pair, loss, prefix)
            orders.append(run.order)
            return run

        await explore(play, _pair(_steps(4), _steps(3)), most=8, seed=seed)
        played.append(orders)
    assert played[0] == played[1] != played[2]
    assert len(set(played[0])) == 8


async def test_strangers_have_all_orders_and_never_wait(url: str) -> None:
    pair = _pair(Script("k", atomic(_set("k", "a"))), Script("j", atomic(_set("j", "b"))))
    async with stage(url) as on:
        count = await explore(on.play, pair)
    assert (count.runs, count.waits) == (comb(4, 2), 0)


async def test_a_statement_that_waits_is_left_waiting_and_goes_on_later(url: str) -> None:
    pair = _pair(Script("one", atomic(_set("k", "a"))), Script("other", atomic(_set("k", "b"))))
    async with stage(url) as on:
        run = await on.play(pair, None, "ABAB")
    assert run.lines == [
        "A set k: {'value': b'a'}",
        "B set k: waits",
        "A commit: done",
        "B goes on, set k: {'value': b'b'}",
        "B commit: done",
    ]
    assert _values(run)["k"] == "b"


async def test_a_deadlock_is_an_outcome_and_tried_again(url: str) -> None:
    forth = Script("forth", atomic(_set("k", "a"), _set("j", "a")))
    back = Script("back", atomic(_set("j", "b"), _set("k", "b")))
    async with stage(url) as on:
        count = await explore(on.play, _pair(forth, back))
    assert count.failures["40P01"] >= 2
    assert {problem for run in count.failed for problem in run.problems} == {"a statement was refused with 40P01"}


async def test_a_deadlock_may_be_given_up(url: str) -> None:
    forth = Script("forth", atomic(_set("k", "a"), _set("j", "a")), tries=1)
    back = Script("back", atomic(_set("j", "b"), _set("k", "b")), tries=1)
    async with stage(url) as on:
        run = await on.play(_pair(forth, back), None, "ABAB")
    assert sorted((run.a.end, run.b.end)) == ["done", "given up"]
    assert set(_values(run).values()) in ({"a"}, {"b"})


async def test_a_commit_whose_client_is_gone_takes_effect_when_it_is_let_go(url: str) -> None:
    """C1 U: until then nobody sees it, and its locks are held."""
    reader = Script("reader", (_get("early"), _set("k", "b"), _get("late")))
    pair = _pair(Script("writer", atomic(_set("k", "a"))), reader)
    async with stage(url) as on:
        run = await on.play(pair, parse_loss("A cut in commit 1"), "AABBA")
    assert (run.a.end, run.a.committed) == ("lost", [])
    assert [line for line in run.lines if "waits" in line] == ["B set k: waits"]
    assert [run.b.reads[step][0]["value"] for step in ("early", "late")] == [b"old", b"b"]


async def test_a_commit_that_comes_to_nothing_leaves_nothing(url: str) -> None:
    pair = _pair(Script("writer", atomic(_set("k", "a"))), Script("reader", (_get("late"),)))
    async with stage(url) as on:
        run = await on.play(pair, parse_loss("A ended in commit 1"))
    assert _values(run)["k"] == "old"


@pytest.mark.parametrize(("how", "final"), [("cut", "a"), ("ended", "b")])
async def test_a_statement_goes_on_without_its_client_but_not_without_its_session(
    how: str, final: str, url: str
) -> None:
    waiter = Script("waiter", (_set("k", "a"),))
    holder = Script("holder", atomic(_set("k", "b")))
    async with stage(url) as on:
        run = await on.play(_pair(waiter, holder), parse_loss(f"A {how} 0"), "BAAB")
    assert run.a.end == "lost"
    assert _values(run)["k"] == final


async def test_a_script_may_stop_by_itself_and_leaves_nothing_open(url: str) -> None:
    nothing = Step("nothing", "select 1 where false", then=stop_if_none)
    pair = _pair(Script("stops", atomic(_set("k", "a"), nothing)), Script("other", (_get("late"),)))
    async with stage(url) as on:
        run = await on.play(pair)
    assert (run.a.end, _values(run)["k"]) == ("stopped", "old")


async def test_a_run_is_repeated_by_its_id_and_readable(url: str) -> None:
    def never(run: Run) -> Sequence[str]:
        return ["never good"]

    right = catalogue()["first write x evict and grant"]
    pair = Pair(right.name, right.given, right.a, right.b, never)
    async with stage(url) as on:
        for loss in (None, parse_loss("A cut in commit 1")):
            count = await explore(on.play, pair, loss, most=3)
            for run in count.failed:
                again = await repeat(on, run.id, {pair.name: pair})
                assert again.lines == run.lines
                timeless = run.tables.keys() - {"definitions"}  # since when one counts is another instant each time
                assert all(again.tables[name] == run.tables[name] for name in timeless)
                assert str(run).startswith(f"{pair.name}: never good\n   1 ")
                assert str(run).endswith(f"to repeat: {run.id!r}")


async def test_an_order_that_cannot_be_is_refused(url: str) -> None:
    pair = _pair(Script("one", atomic(_set("k", "a"))), Script("other", atomic(_set("k", "b"))))
    async with stage(url) as on:
        with pytest.raises(AssertionError, match="ABBA is no order, the nearest is ABAB"):
            await on.repeat(pair, None, "ABBA")


def _pair(a: Script, b: Script) -> Pair:
    return Pair("pair", TWO_KEYS, a, b, lambda _: ())


def _steps(turns: int) -> Script:
    return Script("steps", tuple(Step(str(turn)) for turn in range(turns)))


async def _pretend(pair: Pair, loss: Loss | None, prefix: str) -> Run:
    """Play without a database: nobody ever waits."""
    left = {"A": len(pair.a.steps), "B": len(pair.b.steps)}
    run = Run(pair, loss, {"A": SessionOutcome(), "B": SessionOutcome()})
    while able := "".join(side for side, turns in left.items() if turns):
        run.choices.append(able)
        run.order += prefix[len(run.order) : len(run.order) + 1] or able[0]
        left[run.order[-1]] -= 1
    return run


def _set(key: str, value: str) -> Step:
    return Step(f"set {key}", "update coterie.kv set value = $2 where key = $1 returning value", (key, value.encode()))


def _get(name: str) -> Step:
    return Step(name, "select value from coterie.kv where key = 'k'")


def _values(run: Run) -> dict[str, str]:
    return {row["key"]: row["value"] for row in run.tables["kv"]}


def test_a_script_is_one_transaction_or_several() -> None:
    steps = atomic(Step("x", "select 1"), Step("y", "select 2"))
    assert [step.opens for step in steps] == [True, False, False]
    assert steps[-1] is COMMIT
