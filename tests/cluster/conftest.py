"""The databases on which processes are tested together, and which tests share a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser
    from xdist.remote import Producer  # type: ignore[import-untyped]

    from tests.cluster.browser import Window
    from tests.cluster.page_cluster import PageCluster

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """Nothing has been set up: that is for the processes, which come to it together."""
    return empty_postgres_url


@pytest.fixture(params=["sqlite", POSTGRES])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A fresh database of each kind that several processes can share."""
    return _fresh(request, tmp_path)


@pytest.fixture(params=[pytest.param("sqlite", marks=pytest.mark.nightly), POSTGRES])
def url_by_day(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The same, for tests that run on SQLite only at night: they take long, and it differs little there."""
    return _fresh(request, tmp_path)


def _fresh(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/coterie.db"
    fresh: str = request.getfixturevalue("postgres_url")
    return fresh


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """One for all tests of a module. While it is open a loop runs in this thread, so that no other test could run."""
    from tests.cluster.browser import opened  # most tests need none

    with opened() as browser:
        yield browser


@pytest.fixture(scope="module")
def page_cluster(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageCluster]:
    """The runners that all tests of the page share, so each test acts on things of its own."""
    from tests.cluster.page_cluster import started

    with started(tmp_path_factory.mktemp("page")) as cluster:
        yield cluster


@pytest.fixture
def window(browser: Browser, page_cluster: PageCluster) -> Iterator[Window]:
    """The page of the first runner, in a window of its own, in which nothing goes wrong."""
    from tests.cluster.browser import Window

    window = Window(browser, page_cluster.url("web-1"))
    window.wait_for("live", "#live")
    yield window
    window.close()


LONGEST = (
    "test_page",
    "test_page_acts",
    "test_kill",
    "test_workflows",
    "test_demo",
    "test_probes",
    "test_messages",
    "test_chaos_jobs",
    "test_calls",
    "test_crons",
    "test_rolling",
    "test_singletons",
)
"""Modules whose tests take longest, in this order: begun first, so that no worker ends long after the others."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long tests first."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


class SharedScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Each test for itself, but those of the page on one worker: they share a browser and runners."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "page" if path.rpartition("/")[2].startswith("test_page") else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedScheduling:
    """Used if tests run on several workers."""
    return SharedScheduling(config, log)
