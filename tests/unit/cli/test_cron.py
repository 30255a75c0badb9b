"""`coterie cron`: what runs when, previews, and what people do about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from coterie.cli.commands import cron
from coterie.cli.commands.cron import text
from coterie.cli.output import Screen
from coterie.cron.api import preview
from coterie.cron.schedule import Schedule
from tests.unit.cli.command_runner import coterie, require_golden, transcript
from tests.unit.cli.terminal import terminal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.cli.command_runner import Served


def test_a_preview_says_where_clocks_change() -> None:
    """With the day, both zones, and how long it is until then."""
    now = datetime(2026, 3, 27, 23, 50, tzinfo=UTC)
    schedule = Schedule("0 3 * * *", timezone="Europe/Zurich")
    require_golden("cron_preview", text(schedule.explain(), preview(schedule, after=now, count=4), now) + "\n")


def test_a_preview_of_an_expression_needs_no_cluster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    said = coterie(capsys, "cron", "preview", "0 3 * * *", "--zone", "Europe/Zurich", "-n", "3", "--url", url)
    assert (said.code, len(said.out.splitlines())) == (0, 5)
    assert said.out.startswith("every day at 03:00, Europe/Zurich\n\n  ")
    told = json.loads(coterie(capsys, "cron", "preview", "@every 90s", "--json", "--url", url).out)
    assert len(told["ticks"]) == 5
    assert not list(tmp_path.iterdir())


def test_an_expression_that_cannot_be_read_is_pointed_at(capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "cron", "preview", "0 25 * * *")
    assert (said.code, said.out) == (2, "")
    assert said.err.splitlines() == [
        'error: cannot read "0 25 * * *": hour 25 is out of range 0-23',
        "           0 25 * * *",
        "             ^^",
        'hint:  03:00 every day is "0 3 * * *"',
    ]


def test_a_preview_of_a_cron(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "cron", "preview", "nightly", "--url", served.url)
    assert said.out.startswith("on the 1st of January at 03:00, Europe/Zurich\n\n  ")
    unknown = coterie(capsys, "cron", "preview", "weekly", "--url", served.url)
    assert (unknown.code, unknown.out) == (1, "")
    assert "there is no cron 'weekly'" in unknown.err


@pytest.mark.parametrize(
    ("golden", "args"),
    [
        ("cron_list", []),
        ("cron_show", ["show", "cleanup"]),
        ("cron_history", ["history", "invoices"]),
        ("cron_trigger_dry", ["trigger", "nightly", "--dry-run"]),
        ("cron_trigger_refused", ["trigger", "nightly"]),
        ("cron_unknown", ["show", "weekly"]),
    ],
    ids=["list", "show", "history", "dry run", "nobody to ask", "unknown"],
)
def test_crons_of_a_running_cluster(
    served: Served, capsys: pytest.CaptureFixture[str], golden: str, args: list[str]
) -> None:
    said = coterie(capsys, "cron", *args, "--url", served.url)
    require_golden(golden, "\n".join(_undated(line) for line in transcript(said).splitlines()) + "\n")
    assert said.code == (1 if golden.endswith(("refused", "unknown")) else 0)


def _undated(line: str) -> str:
    """A line of ticks to come has another date each day."""
    return "  <tick to come>" if " UTC  <time>" in line else line


def test_crons_for_programs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    lines = json.loads(coterie(capsys, "cron", "--url", served.url, "--json").out)
    assert [(each["name"], each["outcome"]) for each in lines] == [
        ("cleanup", "failed"),
        ("invoices", "ran"),
        ("nightly", None),
    ]
    shown = json.loads(coterie(capsys, "cron", "show", "cleanup", "--url", served.url, "--json").out)
    assert (shown["cron"]["name"], len(shown["upcoming"]), len(shown["history"])) == ("cleanup", 5, 1)
    assert shown["history"][0]["errors"][0].startswith("attempt 1: TimeoutError: payments.internal\n")


def test_a_trigger_waits_for_the_end(acted_on: Served, capsys: pytest.CaptureFixture[str]) -> None:
    url = acted_on.url
    ran = coterie(capsys, "cron", "trigger", "invoices", "--yes", "--url", url)
    require_golden("cron_trigger", transcript(ran))
    failed = coterie(capsys, "cron", "trigger", "cleanup", "--yes", "--url", url)
    require_golden("cron_trigger_failed", transcript(failed))
    told = json.loads(coterie(capsys, "cron", "trigger", "invoices", "--yes", "--json", "--url", url).out)
    assert (told["kind"], told["outcome"], told["runner"], told["epoch"]) == ("manual", "ran", "web-1", 1)
    assert len(json.loads(coterie(capsys, "cron", "history", "invoices", "--json", "--url", url).out)) == 2


def test_how_long_a_triggered_tick_took_is_no_zero() -> None:
    ctx: Any = SimpleNamespace(screen=Screen(colour=False))
    for length, said in ((timedelta(milliseconds=3), "3ms"), (timedelta(0), "<1ms"), (timedelta(minutes=2), "2m")):
        tick: Any = SimpleNamespace(outcome="ran", took=length)
        assert cron._ended(ctx, tick).endswith(f"finished in {said}")


def test_a_trigger_asks_first_and_does_nothing_if_declined(
    acted_on: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    for answer, words, code, runs in (("n", (), 0, 0), ("y", ("started on web-1, tick ", "✓ finished in "), 0, 1)):
        with terminal("cron", "trigger", "nightly", "--url", acted_on.url) as asked:
            asked.until("nightly will run once now, outside its schedule", "run it? [y/N]")
            asked.press(f"{answer}\n")
            asked.until(*words)
            assert asked.process.wait(120) == code
        told = json.loads(coterie(capsys, "cron", "history", "nightly", "--json", "--url", acted_on.url).out)
        assert len(told) == runs


def test_pausing_and_resuming(acted_on: Served, capsys: pytest.CaptureFixture[str]) -> None:
    url = acted_on.url
    assert coterie(capsys, "cron", "pause", "nightly", "--url", url).code == 1, "nobody to ask"
    assert coterie(capsys, "cron", "pause", "nightly", "--dry-run", "--url", url).code == 0
    assert "paused" not in coterie(capsys, "cron", "--url", url).out
    require_golden("cron_pause", transcript(coterie(capsys, "cron", "pause", "nightly", "--yes", "--url", url)))
    assert "paused" in coterie(capsys, "cron", "--url", url).out
    again = coterie(capsys, "cron", "pause", "nightly", "--yes", "--url", url)
    assert again.out.splitlines()[0] == "nightly was paused already"
    require_golden("cron_resume", transcript(coterie(capsys, "cron", "resume", "nightly", "--yes", "--url", url)))
    assert "paused" not in coterie(capsys, "cron", "--url", url).out
