"""The pytest plugin: `@pytest.mark.simulated(seeds=20)` runs an async test on the simulator's loop, once per seed.

By default the seeds are 0 to n-1, so that a test run repeats. `--seeds N` runs more or fewer, `--seed N` only one.
Fixtures work as in any test, except async fixtures, which would need a loop before the run.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_SEEDS = 20
_PARAMETER = "_simulation_seed"
_FAULTLESS = "coterie_faultless"
_report = pytest.StashKey[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("coterie", "simulation")
    group.addoption("--seed", type=int, default=None, help="run simulated tests with this seed only")
    group.addoption("--seeds", type=int, default=None, help="run simulated tests with the seeds 0 to SEEDS-1")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"simulated(seeds={_SEEDS}): run the async test in virtual time, once for each seed"
    )


@pytest.fixture
def _simulation_seed(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    mark = metafunc.definition.get_closest_marker("simulated")
    if mark is not None:
        seeds = _seeds(metafunc.config, mark)
        metafunc.fixturenames.append(_PARAMETER)
        metafunc.parametrize(_PARAMETER, seeds, ids=[f"seed{seed}" for seed in seeds], indirect=True)


def _seeds(config: pytest.Config, mark: pytest.Mark) -> list[int]:
    seed: int | None = config.getoption("--seed")
    if seed is not None:
        return [seed]
    wished: int | None = config.getoption("--seeds")
    count: int = wished if wished is not None else mark.kwargs.get("seeds", _SEEDS)
    return list(range(count))


# Innermost, so that the test is a plain function before pytest-asyncio looks for coroutines.
@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    made = yield
    for item in made if isinstance(made, list) else [made]:
        if isinstance(item, pytest.Function) and item.get_closest_marker("simulated") is not None:
            item.obj = _in_simulation(item, item.obj)
    return made


def _in_simulation(item: pytest.Function, test: Callable[..., Any]) -> Callable[..., None]:
    if not inspect.iscoroutinefunction(test):
        raise pytest.Collector.CollectError(f"{item.name} is marked as simulated but is not an async function")
    function = getattr(test, "__func__", test)

    @functools.wraps(test)
    def simulated(**fixtures: Any) -> None:
        # The current instance: pytest creates a new one for each run of a method.
        bound = function if item.instance is None else functools.partial(function, item.instance)
        _run(item, lambda: bound(**fixtures))

    return simulated


def _run(item: pytest.Function, main: Callable[[], Any]) -> None:
    from coterie.testing.run import SeedRun

    run = SeedRun(int(str(item.callspec.params[_PARAMETER])))
    try:
        run(main)
        if faultless := run.faultless():
            item.user_properties.append((_FAULTLESS, faultless))
    except BaseException as error:
        again = f"again: pytest {item.nodeid.partition('::')[0]} -k {item.originalname} --seed {run.seed}"
        error.add_note(again)
        item.stash[_report] = f"{run.report()}\n{again}"
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and _report in item.stash:
        report.sections.append(("simulation", item.stash[_report]))
    return report


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that requested faults and during which none struck: they have tested less than they seem to."""
    faultless = [
        (report.nodeid, value)
        for report in terminalreporter.stats.get("passed", [])
        for name, value in getattr(report, "user_properties", ())
        if name == _FAULTLESS
    ]
    if faultless:
        terminalreporter.section("simulations without a fault")
        for nodeid, value in faultless:
            terminalreporter.line(f"{nodeid}: {value}")
        terminalreporter.line("let more virtual time pass (sim.advance), or lower every_s of the faults")
