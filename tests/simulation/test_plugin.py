"""The pytest plugin: a simulated test runs once per seed, beside pytest-asyncio in auto mode."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
addopts = --strict-markers
"""

TESTS = """
import asyncio
import pytest
from coterie.testing.loop.loop import SimLoop
from coterie.testing.run import current_loop

@pytest.fixture
def number():
    return 42

@pytest.mark.simulated(seeds=3)
async def test_virtual_time(number, tmp_path):
    await asyncio.sleep(3600)
    assert number == 42
    assert tmp_path.exists()
    assert current_loop().time() == 3600

@pytest.mark.simulated
async def test_twenty_seeds():
    assert isinstance(asyncio.get_running_loop(), SimLoop)

@pytest.mark.simulated(seeds=6)
async def test_one_owner():
    current_loop().trace.note("grant", to="runner-2")
    await asyncio.sleep(41.2)
    assert current_loop().seed != 4, "one_owner violated"

async def test_a_plain_async_test_is_for_pytest_asyncio():
    assert not isinstance(asyncio.get_running_loop(), SimLoop)

class TestMethods:
    def setup_method(self):
        self.value = 1

    @pytest.mark.parametrize("letter", ["a", "b"])
    @pytest.mark.simulated(seeds=2)
    async def test_method(self, letter):
        await asyncio.sleep(1)
        self.value += 1
        assert (self.value, letter in "ab") == (2, True)
"""


def pytest_in(folder: Path, *arguments: str, tests: str = TESTS) -> subprocess.CompletedProcess[str]:
    (folder / "test_example.py").write_text(tests)
    (folder / "pytest.ini").write_text(SETTINGS)
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        # Named one by one, so that it works whether or not the package is installed with its entry points.
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    plugins = ["-p", "pytest_asyncio.plugin", "-p", "coterie.testing.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *plugins, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)


def test_each_seed_is_a_test_of_its_own_and_a_failing_one_prints_the_line_to_paste(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "-q", "-rA")
    assert "1 failed, 33 passed" in done.stdout, done.stdout + done.stderr
    assert "PASSED test_example.py::test_virtual_time[seed2]" in done.stdout
    assert "PASSED test_example.py::TestMethods::test_method[" in done.stdout
    assert "FAILED test_example.py::test_one_owner[seed4]" in done.stdout
    assert "again: pytest test_example.py -k test_one_owner --seed 4" in done.stdout
    assert "+0.000000s  test  grant  to=runner-2" in done.stdout


def test_the_line_to_paste_runs_the_failing_seed_only(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "test_example.py", "-k", "test_one_owner", "--seed", "4", "-q")
    assert "1 failed" in done.stdout
    assert "passed" not in done.stdout
    assert "test_one_owner[seed4]" in done.stdout


@pytest.mark.parametrize(("option", "passed"), [(("--seeds", "2"), 2), (("--seed", "184467"), 1)])
def test_the_seeds_can_be_chosen(tmp_path: Path, option: tuple[str, str], passed: int) -> None:
    done = pytest_in(tmp_path, "-q", "-k", "virtual_time", *option)
    assert f"{passed} passed" in done.stdout, done.stdout + done.stderr


def test_a_simulated_test_that_is_not_async_is_refused(tmp_path: Path) -> None:
    tests = "import pytest\n\n@pytest.mark.simulated\ndef test_plain():\n    pass\n"
    done = pytest_in(tmp_path, tests=tests)
    assert "is marked as simulated but is not an async function" in done.stdout
    assert done.returncode != 0


def test_the_options_are_explained(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "--help")
    assert "run simulated tests with this seed only" in done.stdout


FAULTLESS = """
import pytest
from coterie import Cluster
from coterie.testing import simulate
from coterie.testing.faults import SlowStorage

@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize("seconds", [0.1, 600])
async def test_short(seconds):
    async with simulate(Cluster("sqlite://", shards=1), runners=1, faults=[SlowStorage(every_s=60)]) as sim:
        await sim.advance(seconds)
"""


def test_simulations_without_a_fault_are_named_in_the_summary(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, "-q", tests=FAULTLESS)
    assert "2 passed" in done.stdout, done.stdout + done.stderr
    assert done.stdout.count("no fault struck in") == 1
    assert "test_short[seed0-0.1]: no fault struck" in done.stdout or "test_short[0.1-seed0]: no fault" in done.stdout
