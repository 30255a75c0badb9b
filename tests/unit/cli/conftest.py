"""Clusters for the tests of commands."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import Account, Said, Served, coterie, serving
from tests.unit.cli.stored_cluster import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from coterie import Cluster


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One runner, web-1, with an account, a leader, and crons of which two have run: invoices well, cleanup not."""
    with serving(tmp_path_factory.mktemp("cli") / "cluster.db", "web-1") as running:
        running.do(_use(running))
        yield running


async def _use(running: Served) -> None:
    cluster = running.clusters["web-1"]
    await cluster.ref(Account, "alice").deposit(5)
    for name in ("invoices", "cleanup"):
        await cluster.crons.wait(await cluster.crons.trigger(name), timeout="2m")
    async with asyncio.timeout(120):
        while not (await cluster.singletons.get("importer")).note or not _is_measured(cluster):
            await asyncio.sleep(0.05)


def _is_measured(cluster: Cluster) -> bool:
    """Whether the runner knows how fast its database answers: from its first renewal on."""
    facts = cluster._acting().facts()
    return facts is not None and None not in (facts.storage_s, facts.clock_offset_s)


@pytest.fixture(scope="session")
def acted_on(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One runner whose crons tests may trigger and pause."""
    with serving(tmp_path_factory.mktemp("cli") / "crons.db", "web-1") as running:
        yield running


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    """One runner, web-1, with stored calls, state and workflows."""
    running = Stored(f"sqlite:///{tmp_path_factory.mktemp('cli') / 'stored.db'}")
    try:
        running.start("web-1")
        yield running
    finally:
        running.close()


@pytest.fixture
def ask(stored: Stored, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command against that cluster."""
    return lambda *args: coterie(capsys, *args, "--url", stored.url)
