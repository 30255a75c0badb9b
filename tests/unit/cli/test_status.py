"""`coterie status`: the four questions on one screen (B6)."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster
from coterie.cli.commands.status import text
from coterie.observe.health import Reason
from coterie.observe.view import CronLine, Overview, SingletonLine
from tests.unit.cli.command_runner import FixedScreen, coterie, eventually, require_golden, screen, transcript
from tests.unit.observe.cluster_facts import NOW, ago

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.command_runner import Served

WHERE = "cluster default on postgresql://db.internal/app"


def singleton(name: str, leader: str, epoch: int, **more: Any) -> SingletonLine:
    given: dict[str, Any] = {
        "group": "default",
        "since_at": ago(2 * 86400 + 4 * 3600),
        "alive_at": ago(3),
        "progress_at": ago(3),
        "last_run_at": ago(3),
        "runs": 3,
        "note": "",
        "done": None,
        "total": None,
        "error": None,
        "error_at": None,
        "expected_interval_s": 30.0,
        "problem": "",
    }
    return SingletonLine(name=name, leader=leader, epoch=epoch, **given | more)


def cron(name: str, **more: Any) -> CronLine:
    given: dict[str, Any] = {
        "schedule": "0 3 * * *",
        "timezone": "UTC",
        "explained": "",
        "group": "default",
        "runner": "web-1",
        "epoch": 4,
        "overdue_s": None,
        "missed": 0,
        "paused_at": None,
        "outcome": "ran",
        "error": None,
        "failures": 0,
        "running": 0,
        "runs": 9,
        "problem": "",
    }
    return CronLine(name=name, **given | more)


SINGLETONS = (
    singleton("importer", "web-2", 17),
    singleton("reindexer", "web-1", 4, since_at=ago(660), alive_at=ago(8), last_run_at=None),
)
CRONS = (
    cron("nightly", next_at=NOW + timedelta(hours=6, minutes=12), last_run_at=ago(17 * 3600), took_s=41.0),
    cron("invoices", next_at=NOW + timedelta(seconds=48), last_run_at=ago(12), took_s=0.3),
    cron(
        "cleanup",
        next_at=ago(420),
        last_run_at=ago(7200),
        took_s=9.0,
        runner=None,
        overdue_s=420.0,
        missed=1,
        problem='no runner serves group "gpu"',
    ),
)


def overview(**more: Any) -> Overview:
    given: dict[str, Any] = {
        "status": "healthy",
        "reasons": (),
        "runners": 3,
        "healthy_runners": 3,
        "shards": 100,
        "owned_shards": 100,
        "entities": 4812,
        "calls_s": 1204.4,
        "p50_s": 0.0008,
        "p99_s": 0.0061,
        "waiting": 31,
        "running": 4,
        "dead": 2,
        "incoming": 0,
        "overdue_s": 0.0,
        "singletons": SINGLETONS,
        "crons": CRONS,
        "queues": (),
        "dead_jobs": 0,
        "failures": (),
    }
    return Overview(**given | more)


STUCK = Reason(
    status="unhealthy",
    what="singleton importer",
    problem="no heartbeat for 74s (expected every 30s); leader web-2, epoch 17",
    hint="web-2 still holds it: coterie singletons resign importer moves it",
)
ORPHANS = Reason(status="degraded", what="14 shards", problem="no owner (default:3, default:9, default:11 and 11 more)")


def test_a_healthy_cluster_on_one_screen() -> None:
    require_golden("status_healthy", text(overview(), where=WHERE, now=NOW, screen=screen()) + "\n")


def test_calls_from_sql_that_wait_are_counted_if_there_are_any() -> None:
    for columns in (60, 100):
        shown = text(overview(incoming=1204), where=WHERE, now=NOW, screen=FixedScreen(columns))
        assert "waiting 31   dead 2   from SQL 1,204\n" in shown


def test_what_is_wrong_comes_first() -> None:
    stuck = singleton("importer", "web-2", 17, alive_at=ago(74), problem="no heartbeat for 74s (expected every 30s)")
    sick = overview(
        status="unhealthy",
        reasons=(STUCK, ORPHANS),
        healthy_runners=2,
        owned_shards=86,
        entities=None,
        waiting=None,
        singletons=(stuck,),
        crons=(),
        dead=1,
    )
    require_golden("status_unhealthy", text(sick, where=WHERE, now=NOW, screen=screen()) + "\n")


def test_where_glyphs_cannot_be_shown_there_are_others() -> None:
    shown = text(overview(), where=WHERE, now=NOW, screen=screen(is_utf8=False))
    assert shown.isascii()
    assert "+ healthy" in shown


def test_progress_and_errors_of_a_body_are_shown() -> None:
    importing = singleton("importer", "web-2", 17, note="rows", done=5_000, total=12_000)
    raised = singleton("reindexer", "web-1", 4, error="ValueError: no\nmore", error_at=ago(1))
    shown = text(overview(singletons=(importing, raised)), where=WHERE, now=NOW, screen=screen())
    assert "✓ running: rows 5,000 of 12,000\n" in shown
    assert "! ValueError: no\n" in shown


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (cron("a", next_at=None, last_run_at=None, took_s=None, outcome=None, paused_at=ago(9)), "a     paused  never"),
        (cron("a", next_at=None, last_run_at=None, took_s=None, outcome=None, running=1), "running"),
        (cron("a", next_at=None, last_run_at=ago(9), took_s=1.0, outcome="failed", error="OSError: x"), "✗ OSError: x"),
    ],
    ids=["paused", "running", "failed"],
)
def test_crons_in_other_states(line: CronLine, words: str) -> None:
    assert words in text(overview(crons=(line,)), where=WHERE, now=NOW, screen=screen())


def test_status_of_a_running_cluster(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = eventually(capsys, "✓ healthy", "status", "--url", served.url)
    require_golden("status_running", transcript(said))
    assert said.code == 0
    assert said.err == ""


def test_status_for_programs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = eventually(capsys, '"status": "healthy"', "status", "--url", served.url, "--json")
    told = json.loads(said.out)
    assert (said.code, told["cluster"], told["status"], told["reasons"]) == (0, "default", "healthy", [])
    assert (told["runners"], told["shards"], told["owned_shards"], told["entities"]) == (1, 12, 12, 1)
    assert told["p50_s"] > 0
    assert told["calls_s"] >= 0
    (importer,) = told["singletons"]
    assert (importer["leader"], importer["done"], importer["total"]) == ("web-1", 5_000, 12_000)
    assert [each["name"] for each in told["crons"]] == ["cleanup", "invoices", "nightly"]
    assert [(each["what"], each["error"]) for each in told["failures"]] == [
        ("cleanup", "TimeoutError: payments.internal")
    ]
    assert told["at"].endswith("Z")


def test_without_a_runner_the_answer_is_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    asyncio.run(_set_up(url))
    said = coterie(capsys, "status", "--url", url)
    require_golden("status_nobody", transcript(said))
    assert said.code == 1


def test_without_a_file_nobody_answers_and_none_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "status", "--url", f"sqlite:///{tmp_path}/none.db")
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith("error: there is no cluster at")
    assert not list(tmp_path.iterdir())


async def _set_up(url: str) -> None:
    async with Cluster(url).connect():
        pass
