"""The same seed gives the same run: in one process, in several, and with any hash seed."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

import coterie
from coterie.kernel import chaos
from coterie.testing import run_simulation
from coterie.testing.chaos import SeededChaos
from coterie.testing.loop.nodes import Node
from coterie.testing.loop.scheduler import InOrder, Priorities, Shuffled
from coterie.testing.loop.trace import Trace
from coterie.testing.run import SeedRun, current_loop
from tests.simulation.example_run import digest, main
from tests.support.chaos_points import coverage_table, declared_points

SEEDS = list(range(6))
ROOT = Path(__file__).parents[2]


def in_another_process(*, hash_seed: str) -> list[str]:
    command = [sys.executable, "-m", "tests.simulation.example_run", *map(str, SEEDS)]
    source = Path(coterie.__file__).parents[1]
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{source}{os.pathsep}{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_seed_repeats_in_one_process_in_others_and_with_any_hash_seed() -> None:
    here = [digest(seed) for seed in SEEDS]
    assert [digest(seed) for seed in SEEDS] == here
    assert in_another_process(hash_seed="1") == here
    assert in_another_process(hash_seed="2") == here


def test_a_seed_repeats_whatever_ran_before_and_with_debug_on(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = digest(7)
    ballast = [[object() for _ in range(1_000)] for _ in range(50)]
    digest(8)
    gc.collect()
    monkeypatch.setenv("PYTHONASYNCIODEBUG", "1")
    assert digest(7) == expected
    assert len(ballast) == 50


def test_different_seeds_differ() -> None:
    assert len({digest(seed) for seed in SEEDS}) == len(SEEDS)


def test_the_seeds_use_every_kind_of_schedule_and_seed_0_the_plain_one() -> None:
    schedules = [SeedRun(seed) for seed in range(40)]
    kinds = {type(run.loop.nodes.schedule) for run in schedules}
    assert kinds == {InOrder, Shuffled, Priorities}
    assert isinstance(schedules[0].loop.nodes.schedule, InOrder)
    for run in schedules:
        run.loop.dispose()


def test_seeds_explore_different_orders_between_nodes_but_never_within_one() -> None:
    async def race() -> list[tuple[str, int]]:
        loop = current_loop()
        ran: list[tuple[str, int]] = []
        for name in "abc":
            context = loop.nodes.add(name).new_context()
            for number in range(3):
                loop.call_soon(ran.append, (name, number), context=context)
        await asyncio.sleep(1)
        return ran

    orders = [run_simulation(race, seed=seed) for seed in range(60)]
    assert len(set(map(tuple, orders))) > 10
    for order in orders:
        for name in "abc":
            assert [number for other, number in order if other == name] == [0, 1, 2]


def test_a_failing_run_prints_the_line_to_paste_and_what_happened() -> None:
    async def one_owner() -> None:
        current_loop().trace.note("grant", to="runner-1", epoch=7)
        await asyncio.sleep(41.2)
        current_loop().trace.note("grant", to="runner-2", epoch=7)
        raise AssertionError("one_owner violated")

    with pytest.raises(AssertionError) as caught:
        run_simulation(one_owner, seed=184467)
    note = caught.value.__notes__[0]
    assert "seed 184467 failed at +41.200000s after" in note
    assert "+0.000000s  test  grant  to=runner-1 epoch=7\n" in note
    assert note.endswith("again: run_simulation(…, seed=184467)")


def test_a_failing_run_without_seed_names_the_seed_that_it_drew() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        run_simulation(_divide)
    again = caught.value.__notes__[0].splitlines()[-1]
    assert again.startswith("again: run_simulation(_divide, seed=")
    seed = int(again.split("=")[1].rstrip(")"))
    with pytest.raises(ZeroDivisionError):
        run_simulation(_divide, seed=seed)


async def _divide() -> float:
    return 1 / 0


class TestTrace:
    def test_one_step_among_many_changes_the_digest(self) -> None:
        def digest_of(odd: int | None) -> str:
            node = Node("runner-1")
            trace = Trace(1, test=Node("test"))
            for number in range(5_000):
                trace.now_ns = number
                trace.step(node, "other" if number == odd else "usual")
            return trace.digest()

        assert len({digest_of(odd) for odd in (None, 5, 2_000, 4_999)}) == 4
        assert digest_of(5) == digest_of(5)

    def test_events_are_aligned_and_the_earlier_ones_counted(self) -> None:
        trace = Trace(1, test=Node("test"), kept=3)
        for number in range(5):
            trace.now_ns = number * 1_000_000_000
            trace.note("a" * number or "-", number=number)
        assert trace.text(last=2).splitlines() == [
            "(3 earlier events left out)",
            "    +3.000000s  test  aaa   number=3",
            "    +4.000000s  test  aaaa  number=4",
        ]

    def test_without_events_there_is_nothing_to_read(self) -> None:
        assert Trace(1, test=Node("test")).text() == ""


class TestChaos:
    def test_chaos_is_off_outside_of_simulations(self) -> None:
        assert chaos.on is False
        assert not chaos.flip("anything")
        asyncio.run(chaos.point("anything"))

    def test_points_delay_and_flip_by_seed_and_are_counted(self) -> None:
        run = SeedRun(3)
        run(main)
        assert run.chaos.hits["child.begins"] > 100
        assert run.chaos.hits["child.fails"] > 50
        assert chaos.on is False

    def test_some_seeds_leave_a_point_alone_and_quiet_leaves_all(self) -> None:
        def taken(seed: int, *, quiet: bool = False) -> int:
            source = SeededChaos(seed)
            source.quiet = quiet
            return sum(source.flip("x") for _ in range(1_000))

        counts = [taken(seed) for seed in range(30)]
        assert 5 < counts.count(0) < 25
        assert 20 < max(counts) < 100
        assert counts == [taken(seed) for seed in range(30)]
        assert not any(taken(seed, quiet=True) for seed in range(30))

    def test_the_coverage_table_names_points_that_were_never_reached(self, tmp_path: Path) -> None:
        source = tmp_path / "product.py"
        source.write_text('if chaos.on:\n    await chaos.point("b.two")\nif chaos.on and chaos.flip("a.one"):\n')
        points = declared_points([source])
        assert points == ["a.one", "b.two"]
        table = coverage_table(points, {"a.one": 1200}, {"a.one": 3}).splitlines()
        assert table == [
            "point     reached       taken",
            "a.one       1,200           3",
            "b.two           0           0  never reached",
        ]
