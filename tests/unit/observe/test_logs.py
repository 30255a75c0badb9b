"""Coterie's own log handler: one event, one line, fields of errors; equal warnings are counted."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie import MailboxFull, RunnerUnavailable, within_cluster
from coterie.observe import logs
from tests.support.manual_clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TRACE = "0af7651916cd43dd8448eb211c80319c"


class Heard:
    """A logger of its own with coterie's handler, and what it wrote."""

    def __init__(self, *, as_json: bool) -> None:
        self.clock = ManualClock()
        self._stream = io.StringIO()
        self.handler = logs.handler(as_json=as_json, runner="web-1", clock=self.clock, stream=self._stream)
        self.log = logging.getLogger("coterie.test_logs")
        self.log.propagate = False
        self.log.setLevel(logging.INFO)
        self.log.addHandler(self.handler)

    @property
    def lines(self) -> list[str]:
        return self._stream.getvalue().splitlines()

    @property
    def said(self) -> list[str]:
        """The lines of text without their time."""
        return [re.sub(r"^\S+ \S+ ", "", line) for line in self.lines]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.lines]

    def later(self, seconds: float) -> None:
        self.clock.advance(timedelta(seconds=seconds))

    def close(self) -> None:
        self.log.removeHandler(self.handler)
        self.handler.close()


@pytest.fixture
def text() -> Iterator[Heard]:
    yield (heard := Heard(as_json=False))
    heard.close()


@pytest.fixture
def as_json() -> Iterator[Heard]:
    yield (heard := Heard(as_json=True))
    heard.close()


# Lines


def test_a_sentence_is_followed_by_code_and_fields_of_the_error_that_it_is_about(text: Heard) -> None:
    text.log.warning("it waits: %s", MailboxFull(entity="Account/alice smith", waiting=1000))
    (line,) = text.said
    assert line.startswith("WARNING it waits: ")
    assert line.endswith(' code=mailbox_full entity="Account/alice smith" waiting=1000')


def test_the_trace_of_whoever_logs_is_in_the_line(text: Heard, as_json: Heard) -> None:
    with within_cluster(trace_id=f"00-{TRACE}-b7ad6b7169203331-01"):
        text.log.info("inside")  # of both: it is one logger
    text.log.info("outside")
    assert text.said == [f"INFO inside trace_id={TRACE}", "INFO outside"]
    assert [each.get("trace_id") for each in as_json.objects] == [TRACE, None]


def test_the_singleton_or_cron_that_logs_is_in_the_line(text: Heard, as_json: Heard) -> None:
    with within_cluster(name="importer"):
        text.log.info("inside")  # of both: it is one logger
    with within_cluster(entity_type="Account", entity_id="alice"):
        text.log.info("an entity")
    assert text.said == ["INFO inside service.name=importer", "INFO an entity"]
    assert [each.get("service.name") for each in as_json.objects] == ["importer", None]


def test_json_has_one_object_a_line_whatever_is_said(as_json: Heard) -> None:
    before = datetime.now(UTC)
    try:
        raise RunnerUnavailable(runner="web-2", target="Account/é.add", problem="it\nis\x1b[31m gone", sent=False)
    except RunnerUnavailable:
        as_json.log.exception("a call to %s failed\nfor good", "web-2")
    (line,) = as_json.objects
    assert list(line)[:5] == ["time", "level", "logger", "msg", "runner"]
    assert (line["level"], line["logger"], line["runner"]) == ("ERROR", "coterie.test_logs", "web-1")
    assert line["msg"] == "a call to web-2 failed\nfor good"
    assert (line["code"], line["error_runner"], line["target"], line["sent"]) == (
        "runner_unavailable",
        "web-2",
        "Account/é.add",
        False,
    )
    assert line["exc"].startswith("Traceback")
    assert line["time"].endswith("Z")
    at = datetime.fromisoformat(line["time"])
    assert before - timedelta(milliseconds=1) <= at <= datetime.now(UTC)


def test_text_that_is_quoted_cannot_look_like_another_event(text: Heard) -> None:
    text.log.warning("singleton %r cannot begin: %s", "a", "bad\n2026-01-01 00:00:00,000 ERROR all is lost\x1b[2J")
    assert len(text.lines) == 1
    assert "\x1b" not in text.lines[0]
    assert "all is lost" in text.lines[0]


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it does not say")


def test_an_error_that_cannot_be_told_harms_nobody(text: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)
    text.log.error("it raised: %s", Mute())
    text.log.error("next")
    assert text.said == ["ERROR next"]


# Counts


def test_of_equal_warnings_the_first_is_shown_and_the_others_are_counted(text: Heard) -> None:
    for number in range(42):
        text.log.warning("the database is slow: %d ms", number)
    text.later(60)
    text.log.info("anything")
    assert text.said == [
        "WARNING the database is slow: 0 ms",
        "WARNING the database is slow: 41 ms … 41 more in 60s",
        "INFO anything",
    ]


def test_what_goes_on_is_said_once_a_minute_and_is_new_after_a_quiet_one(text: Heard) -> None:
    for _ in range(180):
        text.log.warning("slow")
        text.later(1)
    assert text.said == ["WARNING slow", "WARNING slow … 59 more in 60s", "WARNING slow … 60 more in 60s"]
    text.later(60)
    text.log.info("anything")  # says the rest, and begins a minute
    text.later(61)
    text.log.warning("slow")
    assert text.said[3:] == ["WARNING slow … 60 more in 120s", "INFO anything", "WARNING slow"]


def test_other_sentences_levels_and_loggers_are_not_equal(text: Heard) -> None:
    child = logging.getLogger("coterie.test_logs.child")
    for _ in range(2):
        text.log.warning("slow: %s", 1)
        text.log.warning("slow, %s", 1)
        text.log.error("slow: %s", 1)
        child.warning("slow: %s", 1)
        text.log.info("slow: %s", 1)
        text.log.warning("%s", "one")
        text.log.warning("%s", "two")
    assert len(text.lines) == 8  # seven, and what is no warning again


def test_warnings_about_other_things_are_not_equal(text: Heard) -> None:
    """Two runners that are lost are two events; so is one that is lost twice."""
    for name, incarnation in (("web-1", "a"), ("web-2", "b"), ("web-1", "c"), ("web-1", "c")):
        text.log.warning("runner %s was evicted: %s", name, "its process is gone", extra={"about": incarnation})
    assert len(text.lines) == 3


def test_errors_are_counted_only_if_they_say_the_same(text: Heard) -> None:
    """Each message that is dead is somebody's."""
    for number in (1, 2, 2):
        text.log.error("%s is dead: message %s", "Account/alice.charge", number)
    for kind in (ValueError, KeyError, KeyError):
        try:
            raise kind
        except (ValueError, KeyError):
            text.log.exception("it raised")
    assert sum("is dead" in line for line in text.lines) == 2
    assert sum("it raised" in line for line in text.lines) == 2


def test_counts_are_said_at_the_end(as_json: Heard) -> None:
    for _ in range(3):
        as_json.log.warning("slow")
    as_json.later(5)
    as_json.close()
    assert [each["msg"] for each in as_json.objects] == ["slow", "slow … 2 more in 5s"]


def test_memory_is_bounded_however_many_there_are(text: Heard) -> None:
    text.log.warning("oldest")
    text.log.warning("oldest")
    for number in range(1000):
        text.log.error("error %d", number)
    (repeats,) = text.handler.filters
    assert isinstance(repeats, logs.Repeats)
    assert len(repeats._known) == 256
    assert "WARNING oldest … 1 more in 0s" in text.said


# The process


PROGRAM = """
import logging
from contextlib import asynccontextmanager
from coterie import Cluster
{setup}
cluster = Cluster("sqlite:///logs.db", shards=1, runner_name="web-1", log_format="json")

@cluster.setup
@asynccontextmanager
async def setup():
    for _ in range(3):
        logging.getLogger("coterie.mine").warning("again")
        logging.getLogger("shop").warning("charged")
    yield

cluster.run()
"""


def lines_of(setup: str, folder: Path) -> list[str]:
    """What a process says until it has joined, and as it ends."""
    (folder / "program.py").write_text(PROGRAM.format(setup=setup))
    environ = {**os.environ, "COTERIE_HTTP_LISTEN": "127.0.0.1:0"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "program.py"], cwd=folder, env=environ, stderr=log)
    deadline_s = time.monotonic() + 120
    try:
        while b"has joined" not in (folder / "log").read_bytes() and time.monotonic() < deadline_s:
            assert process.poll() is None, (folder / "log").read_text()
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
    return (folder / "log").read_text().splitlines()


def test_a_program_without_logging_says_everything_in_json_if_it_is_set(tmp_path: Path) -> None:
    objects = [json.loads(line) for line in lines_of("", tmp_path)]
    assert {each["runner"] for each in objects} == {"web-1"}
    assert sum(each["msg"] == "again" for each in objects) == 1
    assert objects[-1]["msg"].startswith("again … 2 more in ")
    assert any("listening on" in each["msg"] for each in objects)
    assert sum(each["logger"] == "shop" and each["msg"] == "charged" for each in objects) == 3, "not ours to count"


def test_logging_of_the_programs_own_is_left_alone(tmp_path: Path) -> None:
    lines = lines_of('logging.basicConfig(level=logging.INFO, format="mine: %(message)s")', tmp_path)
    assert all(line.startswith("mine: ") for line in lines)
    assert lines.count("mine: again") == 3
