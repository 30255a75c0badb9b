"""Campaigns: a run that never ends costs its seed and nothing else. The bugs are planted (see `planted_runs`)."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.testing import run_simulation
from coterie.testing.run import current_loop
from tests.simulation.planted_runs import SICK
from tests.support.campaign import Limits, run_seed, run_seeds

if TYPE_CHECKING:
    from tests.support.campaign import Seed

ROOT = Path(__file__).parents[2]
LITTLE_MIB = 400


def run(workload: str, *, seeds: range, jobs: int = 1, limits: Limits | None = None) -> dict[int, Seed]:
    name = f"tests.simulation.planted_runs:{workload}"
    return {seed.number: seed for seed in run_seeds(name, seeds, jobs=jobs, limits=limits)}


def failed(seeds: dict[int, Seed]) -> list[int]:
    return sorted(number for number, seed in seeds.items() if seed.failure)


def test_a_run_that_grows_without_end_fails_where_it_was_and_the_others_go_on() -> None:
    seeds = run("grows", seeds=range(SICK + 2), limits=Limits(memory_mib=LITTLE_MIB))
    assert sorted(seeds) == list(range(SICK + 2))
    assert failed(seeds) == [SICK]
    told = seeds[SICK].failure
    assert "held = (held, bytearray(" in told
    assert f"its process may take {LITTLE_MIB} MiB of memory" in told
    held_mib = re.search(rf"seed {SICK} failed at \+(\d+)", told)  # one a second
    assert held_mib is not None
    assert LITTLE_MIB / 4 < int(held_mib[1]) < LITTLE_MIB
    assert not seeds[SICK].replayed, "it would strike elsewhere, and be taken for chance in the run"


def test_a_process_that_dies_costs_its_seed_and_is_replaced() -> None:
    seeds = run("dies", seeds=range(7), jobs=2)
    assert sorted(seeds) == list(range(7))
    assert failed(seeds) == [SICK]
    assert seeds[SICK].failure == "its process died, exit code -9"


# With less than what a busy machine may need: only the sick seed is run, which would take for ever


def test_a_run_that_lets_time_pass_without_end_fails_with_what_it_waits_for() -> None:
    told = run("goes_on", seeds=range(SICK, SICK + 1), limits=Limits(run_s=0.3))[SICK].failure
    assert "no end after 0.3s of real time" in told
    assert f"seed {SICK} failed at +" in told
    assert "waits in goes_on, planted_runs.py:" in told


def test_a_run_that_never_comes_back_to_the_loop_fails_with_where_it_is() -> None:
    told = run("computes", seeds=range(SICK, SICK + 1), limits=Limits(run_s=0.3))[SICK].failure
    assert "no end after 0.3s of real time" in told
    assert ", in computes\n" in told


def test_a_run_that_no_signal_reaches_is_killed() -> None:
    told = run("is_deaf", seeds=range(SICK, SICK + 1), limits=Limits(run_s=0.1, grace_s=3))[SICK].failure
    assert told == "its process said nothing for 3.2s and was killed"


def test_results_cross_over_with_what_was_reached() -> None:
    seeds = run("reaches", seeds=range(2))
    assert not failed(seeds)
    assert [seeds[number].replayed for number in range(2)] == [True, False]
    assert not seeds[0].diverged
    assert seeds[1].digest not in ("", seeds[0].digest)
    assert seeds[1].hits == {"planted": 1}


def test_a_name_that_is_wrong_is_refused_at_once() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        run("nothing", seeds=range(100))


def test_the_command_names_the_seed_and_how_to_run_it_again() -> None:
    name = "tests.simulation.planted_runs:grows"
    command = [sys.executable, "-m", "tests.support.campaign", name]
    options = ["--seeds", "4", "--jobs", "2", "--memory", str(LITTLE_MIB)]
    done = subprocess.run([*command, *options], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"✗ seed {SICK}\n" in done.stderr
    assert f"again: python -m tests.support.campaign {name} --first {SICK} --seeds 1" in done.stderr
    assert "4 of 4 seeds" in done.stderr
    assert "1 failed  1 replayed, 0 differed" in done.stderr


# In one process


async def runs_out() -> None:
    raise MemoryError("planted")


def test_a_run_out_of_memory_fails_its_seed() -> None:
    seed = run_seed(runs_out, 3, replay=False)
    assert "MemoryError: planted" in seed.failure
    assert "seed 3 failed at" in seed.failure
    assert not seed.replayed


def test_a_callback_out_of_memory_ends_the_run() -> None:
    """What comes after shows nothing; and others might go on for ever, with what little is left."""

    def fail() -> None:
        raise MemoryError

    async def main() -> None:
        current_loop().call_soon(fail)
        await asyncio.sleep(10)
        raise AssertionError("it went on")

    with pytest.raises(MemoryError):
        run_simulation(main, seed=1)
