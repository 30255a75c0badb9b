"""`coterie top`: the panel by itself, then live, through a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from coterie.cli.commands.top import KEYS, Panel, frame
from coterie.observe.view import EntityLine, Failure, JobsPage, MessagesPage, OverdueLine, QueueLine, RunnerLine, View
from tests.unit.cli.command_runner import coterie, require_golden, screen
from tests.unit.cli.terminal import terminal
from tests.unit.cli.test_status import CRONS, ORPHANS, SINGLETONS, overview
from tests.unit.observe.cluster_facts import NOW, ago

if TYPE_CHECKING:
    from tests.unit.cli.command_runner import Served


def runner(name: str, shards: int, **more: Any) -> RunnerLine:
    given: dict[str, Any] = {
        "id": name,
        "address": "",
        "groups": ("default",),
        "weight": 1.0,
        "started_at": ago(9999),
        "state": "ready",
        "missing": "",
        "leads": (),
        "crons": (),
        "version": "1.4.0",
        "up_s": 3 * 86400 + 7200.0,
        "entities": 1611,
        "calls_s": 402.0,
        "p99_s": 0.0052,
        "cpu": 0.18,
        "memory_bytes": 142_000_000,
        "loop_lag_s": 0.0004,
    }
    return RunnerLine(name=name, shards=shards, **given | more)


JOBS = JobsPage(
    queues=(
        QueueLine(
            name="emails",
            group="default",
            runners=("web-1",),
            waiting=1_204,
            oldest_s=95.0,
            running=20,
            scheduled=3,
            parked=0,
            dead=2,
            concurrency=20,
            partition_concurrency=None,
            rate=50.0,
            is_set=False,
            paused_at=None,
            expected_wait_s=None,
            problem="",
        ),
    ),
    dead=2,
    failures=(
        Failure(
            kind="jobs",
            what="send_email",
            count=2,
            error="SmtpError: no such mailbox",
            first_at=ago(720),
            last_at=ago(2),
            id="0c",
        ),
    ),
)
MESSAGES = MessagesPage(
    waiting=31,
    running=4,
    dead=400,
    incoming=(),
    overdue=(OverdueLine(id="0a", what="Report/q3.build", shard="default:7", late_s=75.0),),
    failures=(
        Failure(
            kind="messages",
            what="Account.charge",
            count=400,
            error="ConnectionRefusedError: payments.internal:443",
            first_at=ago(720),
            last_at=ago(2),
            id="0b",
        ),
    ),
)
DATA: dict[str, Any] = {
    "runners": (
        runner("web-1", 34, leads=("reindexer",)),
        runner("web-2", 33, leads=("importer",), entities=1598),
        runner("web-3", 33, state="draining", version="1.4.1", up_s=14_460.0),
    ),
    "singletons": SINGLETONS,
    "cron": CRONS,
    "entities": (EntityLine(type="Account", resident=4812, runners={"web-1": 4811, "web-3": 1}, is_complete=False),),
    "messages": MESSAGES,
    "jobs": JOBS,
}


def shown(panel: Panel, **more: Any) -> str:
    view = View(revision=1, at=NOW, runner=None, data={"overview": overview(**more), **DATA})
    return frame(panel, view, name="default", age_s=0.42, problem="", screen=screen()) + "\n"


def test_the_panel_of_runners() -> None:
    panel = Panel()
    for calls_s, p99_s, waiting in [(300.0, 0.001, 0), (900.0, 0.002, 31), (1204.4, 0.0061, 31)]:
        panel.learn(overview(calls_s=calls_s, p99_s=p99_s, waiting=waiting))
    require_golden("top_runners", shown(panel))


@pytest.mark.parametrize("key", ["3", "4", "5", "6", "7", "?"])
def test_the_other_pages(key: str) -> None:
    panel = Panel()
    panel.press(key)
    require_golden(f"top_{'help' if key == '?' else panel.page}", shown(panel, status="degraded", reasons=(ORPHANS,)))


def test_a_filter_leaves_lines_that_have_it_and_the_names_of_columns() -> None:
    panel = Panel()
    for key in "/WEB-2q\x7f":
        panel.press(key)
    assert (panel.typing, panel.filter, panel.over) == (True, "WEB-2", False)
    lines = shown(panel).splitlines()
    assert [line.split()[0] for line in lines[3:]] == ["RUNNER", "web-2", "/WEB-2▏"]
    panel.press("\r")
    assert shown(panel).splitlines()[-1] == "/WEB-2"
    panel.press("\x1b")
    assert "web-1" in shown(panel)


def test_keys_that_mean_nothing_do_nothing() -> None:
    panel = Panel()
    for key in "8x\t0":
        panel.press(key)
    assert panel == Panel()
    panel.press(" ")
    assert "paused, 0.4s ago" in shown(panel)
    panel.press("q")
    assert panel.over


def test_what_cannot_be_seen_any_more_is_called_stale() -> None:
    view = View(revision=1, at=NOW, runner=None, data={"overview": overview(), **DATA})
    text = frame(Panel(), view, name="default", age_s=12.0, problem="connection refused", screen=screen())
    assert "stale, 12.0s ago" in text
    assert "\nconnection refused\n" in text


def test_without_a_terminal_it_is_refused(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "top", "--url", served.url)
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines()[0] == "error: top needs a terminal"


def test_for_programs_there_is_a_line_for_each_look(served: Served) -> None:
    command = [sys.executable, "-c", "from coterie.cli import main; main()", "top", "--url", served.url, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONUNBUFFERED": "1"}) as top:
        assert top.stdout is not None
        seen = [json.loads(top.stdout.readline()) for _ in range(2)]
        top.kill()
    assert [each["revision"] for each in seen] == [1, 2]
    assert [each["data"]["runners"][0]["name"] for each in seen] == ["web-1"] * 2
    assert seen[1]["data"]["overview"]["shards"] == 12


def test_top_in_a_terminal(served: Served) -> None:
    with terminal("top", "--url", served.url) as top:
        first = top.until("RUNNER", "web-1", "12/12 shards", "✓ healthy", "live, ")
        assert KEYS in first
        top.press("2")
        top.until("group default, 12 shards", "▪▪▪▪▪▪▪▪▪▪▪▪")
        top.press("3")
        top.until("SINGLETON", "rows 5,000 of 12,000")
        top.press("4")
        top.until("on the 1st of January at 03:00, Europe/Zurich")
        top.press("/clean")
        top.until("/clean", "TimeoutError: payments.internal")
        top.press("\x1b")
        top.press(" ")
        top.until("paused, ")
        top.press("?")
        top.until("stop and go on")
        top.press("q")
        assert top.process.wait(120) == 0
