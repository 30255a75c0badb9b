"""`coterie demo`: what it promises in front of the user holds, by script and by keys (B1, B2, B6)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.cluster.cli_process import command, command_at_terminal
from tests.cluster.seat_cluster import QUICK

if TYPE_CHECKING:
    from tests.cluster.cli_process import Command

FAST = {**QUICK, "COTERIE_HTTP_LISTEN": "127.0.0.1:0"}
"""Freezing takes as long as a lease lasts: by default that is six seconds."""
MOVED = re.compile(r"(\d+) shards moved(?: to (.*?))?; 0 messages lost, 0 doubled")
LEADS = re.compile(r"★ importer leads on (demo-\d), epoch (\d+), continues after row ([\d,]+) +took ([\d.]+)m?s")


def test_f2_f3_f6_the_script_kills_freezes_and_deploys_and_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    with command(tmp_path, "demo", "--script", env=FAST) as running:
        running.ends_with(0)
        said = running.said
    assert said.startswith(
        "coterie demo: three runners on this machine, one file (coterie-demo.db), nothing to install\n"
    )
    for what in ("database   coterie-demo.db created", "runners    demo-1  demo-2  demo-3 joined", "work       1,000"):
        assert f"  ✓ {what}" in said
    assert re.search(r"✓ shards {5}100 shards owned: 3[34] / 3[34] / 3[34]", said)
    assert re.search(r"  page {9}http://127.0.0.1:\d+/\n", said)
    killed, frozen = LEADS.findall(said)
    assert int(killed[1]) < int(frozen[1])
    assert 0 < int(killed[2].replace(",", "")) < int(frozen[2].replace(",", ""))
    after_kill, after_freeze, _ = MOVED.findall(said)
    assert {after_kill[0], after_freeze[0]} <= {"33", "34"}
    assert said.count("left cleanly in") == 3
    assert re.search(r"✓ [\d,]+ deposits: 0 messages lost, 0 doubled; all runners left cleanly\n", said)
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("said-")}
    assert left == {"coterie-demo.db", "coterie-demo.db-leases", "coterie-demo.py"}
    assert all(name in said.splitlines()[-1] for name in left)


def press(running: Command, key: str, done: str, times: int = 1) -> None:
    running.press(key)
    running.wait_for(done, times=times)


def test_keys_kill_and_quit(tmp_path: Path) -> None:
    """Through a terminal; the page shows it, whoever is killed; a program that is there is left as it is."""
    (tmp_path / "coterie-demo.py").write_text(_changed())
    with command_at_terminal(tmp_path, "demo", env=FAST) as running:
        running.wait_for("k kill the leader   f freeze it   p cut its network   a add a runner   d deploy (rolling)")
        press(running, "x", "q quit", times=2)
        leader = _leader_on_page(running)
        press(running, "k", f"killed {leader} (SIGKILL)")
        running.wait_until(lambda: _leader_on_page(running) not in (leader, None), "the page shows another leader")
        running.wait_for("is back, and has its share again")
        running.press("q")
        running.ends_with(0)
        assert "lines, as it was here: read it" in running.said
        assert "killed demo-" in running.said
        assert "all runners left cleanly" in running.said
    assert (tmp_path / "coterie-demo.py").read_text() == _changed()


@pytest.mark.nightly
def test_all_keys(tmp_path: Path) -> None:
    """On SQLite the file cannot be cut: whoever reaches it keeps what it holds."""
    with command_at_terminal(tmp_path, "demo", env=FAST) as running:
        running.wait_for("q quit")
        press(running, "p", "0 shards moved; 0 messages lost, 0 doubled")
        assert "importer stayed on demo-" in running.said
        press(running, "a", "25 shards moved to demo-4; 0 messages lost, 0 doubled")
        press(running, "f", "is back, and has its share again")
        press(running, "d", "0 messages lost, 0 doubled", times=4)
        running.press("q")
        running.ends_with(0)


@pytest.mark.nightly
@pytest.mark.postgres
def test_all_keys_on_postgresql(tmp_path: Path, postgres_url: str) -> None:
    """There a leader that is cut off from its database is replaced."""
    with command_at_terminal(tmp_path, "demo", "--url", postgres_url, env=FAST) as running:
        running.wait_for("q quit")
        press(running, "p", "is back, and has its share again")
        press(running, "k", "is back, and has its share again", times=2)
        press(running, "f", "is back, and has its share again", times=3)
        press(running, "d", "0 messages lost, 0 doubled", times=4)
        running.press("q")
        running.ends_with(0)
        assert len(LEADS.findall(running.said)) == 3


def _leader_on_page(running: Command) -> str | None:
    found = re.search(r"  page {9}(http://\S+)", running.said)
    assert found, running.said
    seen = httpx.get(f"{found[1]}api/view?pages=singletons", timeout=60).raise_for_status()
    (importer,) = seen.json()["data"]["singletons"]
    leader: str | None = importer["leader"]
    return leader


def _changed() -> str:
    from coterie.cli.demo import program

    return Path(program.__file__).read_text() + "\n# changed\n"
