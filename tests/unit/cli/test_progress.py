"""Progress of long work: silent at first, redrawn on a terminal, a line now and then elsewhere, JSON lines."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import redirect_stderr

import pytest

from coterie.cli.progress import ProgressLine


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    """What a terminal is sent."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_what_is_over_soon_says_nothing(clock: Clock) -> None:
    with redirect_stderr(Terminal()) as terminal, ProgressLine("purging", total=10, now_s=clock) as progress:
        clock.now_s += 0.29
        progress.at(9)
        progress.phase("last")
    assert terminal.getvalue() == ""


def test_a_terminal_has_one_line_that_is_drawn_again(clock: Clock) -> None:
    with (
        redirect_stderr(Terminal()) as terminal,
        ProgressLine("purging", total=1_000, note="in batches of 10", now_s=clock) as progress,
    ):
        clock.now_s += 1
        progress.at(100)
        progress.at(110)  # too soon after the last one to be seen
        clock.now_s += 1
        progress.at(500)
    drawn = terminal.getvalue().split("\r\x1b[K")
    assert drawn == [
        "",
        "purging   █░░░░░░░░░ 10%  100 of 1,000   100/s   9s left   in batches of 10",
        "purging   █████░░░░░ 50%  500 of 1,000   250/s   2s left   in batches of 10",
        "",
    ]
    assert "\n" not in terminal.getvalue()


def test_the_last_line_stays(clock: Clock) -> None:
    with redirect_stderr(Terminal()) as terminal, ProgressLine("purging", now_s=clock) as progress:
        clock.now_s += 1
        progress.at(100)
        progress.end("purged 100")
    assert terminal.getvalue().endswith("\r\x1b[Kpurged 100\n")


def test_it_is_never_all_before_it_is_over(clock: Clock) -> None:
    progress = ProgressLine("purging", total=3, now_s=clock)
    clock.now_s += 1
    for done in (3, 4):
        progress.at(done)
        assert " 99%" in progress.line()
        assert "100%" not in progress.line()


def test_without_a_total_there_is_no_share(clock: Clock) -> None:
    progress = ProgressLine("purging", now_s=clock)
    clock.now_s += 2
    progress.at(4_000)
    assert progress.line() == "purging   4,000   2,000/s"
    guessed = ProgressLine("purging", total=10_000, about=True, now_s=clock)
    clock.now_s += 2
    guessed.at(4_000)
    assert guessed.line() == "purging   4,000 of about 10,000   2,000/s   3s left"


def test_elsewhere_there_is_a_line_each_5s_and_at_each_phase(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine("migrating  7 → 9", now_s=clock)
    for second in range(1, 12):
        clock.now_s = 100.0 + second
        progress.at(second)
    assert capsys.readouterr().err.splitlines() == ["migrating  7 → 9   5   1/s", "migrating  7 → 9   10   1/s"]
    progress.phase("phase post")
    assert capsys.readouterr().err == "migrating  7 → 9   phase post   11   1/s\n"


def test_a_program_gets_objects(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressLine("purging", total=100, json=True, now_s=clock) as progress:
        clock.now_s += 5
        progress.at(50)
        progress.end("purged")
    out, err = capsys.readouterr()
    assert out == ""
    assert [json.loads(line) for line in err.splitlines()] == [
        {"event": "progress", "what": "purging", "phase": None, "done": 50, "total": 100, "per_s": 10.0, "left_s": 5.0}
    ]


def test_what_does_not_tell_how_far_it_is_shows_that_it_goes_on() -> None:
    async def wait(terminal: Terminal) -> None:
        with ProgressLine("migrating") as progress:
            async with asyncio.timeout(120), progress.ticking():
                while terminal.getvalue().count("migrating") < 2:
                    await asyncio.sleep(0.01)

    with redirect_stderr(Terminal()) as terminal:
        asyncio.run(wait(terminal))
    assert terminal.getvalue().startswith("\r\x1b[Kmigrating   ")
