"""`coterie doctor`: what is well, what is worth a remark, and what is a problem, each with what to do (B6)."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from coterie.cli.commands import doctor
from coterie.cli.output import Finding, concluded, shown
from coterie.observe.facts import LocalFacts
from coterie.settings import Settings
from coterie.settings.secret import redacted_url
from coterie.storage.contracts.inspection import ServerInfo
from coterie.storage.interface import RunnerRow
from coterie.storage.migrations import Migration
from tests.unit.cli.command_runner import coterie, require_golden, screen, transcript
from tests.unit.observe import cluster_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.unit.cli.command_runner import Said, Served

SCHEMA = [Migration(number, "pre", f"step_{number}") for number in range(1, 8)]
POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.fixture(autouse=True)
def quiet_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether port 7650 is free here is nobody's promise."""
    monkeypatch.setenv("COTERIE_HTTP_LISTEN", "off")
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)


def normal(said: Said) -> str:
    text = re.sub(r"SQLite [\d.]+, schema \d+", "SQLite <version>, schema <number>", transcript(said))
    return re.sub(r"\b\d+ values", "<number> values", text)


@pytest.fixture
def compared(served: Served) -> Served:
    """A runner that has compared its clock with the database's, as it does with each renewal."""
    served.do(_until_compared(served))
    return served


async def _until_compared(served: Served) -> None:
    runner = served.clusters["web-1"]._acting()
    async with asyncio.timeout(120):
        while (facts := runner.facts()) is None or facts.clock_offset_s is None:
            await asyncio.sleep(0.05)


def row(name: str, *, address: str = "10.0.0.7:4711", host: str = "one") -> RunnerRow:
    at = datetime(2026, 3, 27, tzinfo=UTC)
    return RunnerRow(id=name * 2, name=name, address=address, host_id=host, groups=("default",), started_at=at)


def told(name: str, *, version: str = "1.4.0", offset_s: float = 0.0) -> LocalFacts:
    return LocalFacts(runner=name * 2, name=name, version=version, clock_offset_s=offset_s)


def test_a_cluster_that_is_well_has_no_problems(compared: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "doctor", "--url", compared.url)
    assert said.code == 0
    require_golden("doctor", normal(said))


def test_a_program_is_told_the_same(compared: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "doctor", "--url", compared.url, "--json")
    document = json.loads(said.out)
    assert (said.code, document["problems"], document["remarks"]) == (0, 0, 0)
    assert [each["check"] for each in document["checks"]] == [
        "settings",
        "database",
        "clock",
        "runners",
        "versions",
        "ports",
    ]
    assert {each["status"] for each in document["checks"]} == {"good"}


def test_problems_and_remarks_look_as_promised() -> None:
    """All kinds of findings at once, as people see them."""
    rows = [row("web-1"), row("web-2"), row("web-3")]
    facts = {r.id: told(r.name, version="1.4.1" if r.name == "web-3" else "1.4.0", offset_s=-0.004) for r in rows}
    settings = Settings.load({}, environ={"COTERIE_DRAIN": "20s", "COTERIE_NAME": "default"})
    findings = [
        *doctor.settings_of(settings),
        *doctor.database(ServerInfo("PostgreSQL 16.3", ours=2, taken=9, most=100), SCHEMA, []),
        *doctor.clocks(rows, facts),
        *doctor.versions(rows, facts),
        *doctor.kubernetes(settings, {doctor.GRACE: "15"}),
    ]
    text = f"{shown(screen(), findings)}\n{concluded(findings, 1)}\n"
    require_golden("doctor_problems", re.sub(r"\b\d+ values", "<number> values", text))


def test_nobody_answers_and_what_can_be_checked_still_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "doctor", "--url", "postgresql://app:hunter2@127.0.0.1:1/app")
    assert said.code == 3
    assert "hunter2" not in said.out + said.err
    require_golden("doctor_unreachable", normal(said))


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "doctor", "--url", f"sqlite:///{tmp_path}/none.db")
    assert (said.code, list(tmp_path.iterdir())) == (3, [])
    assert "✗ database" in said.out or "x database" in said.out
    assert "ports" in said.out


def test_an_empty_database_is_worth_a_remark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.db").touch(0o600)
    said = coterie(capsys, "doctor", "--url", f"sqlite:///{tmp_path}/empty.db", "--json")
    document = json.loads(said.out)
    found = {each["check"]: each["status"] for each in document["checks"]}
    assert (said.code, found["database"], found["schema"]) == (0, "good", "remark")


def test_a_setting_that_nobody_knows_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_HEARTBEET", "30s")
    said = coterie(capsys, "doctor", "--json")
    (check,) = json.loads(said.out)["checks"]
    assert (said.code, check["check"], check["status"]) == (1, "settings", "problem")
    assert "COTERIE_HEARTBEAT" in check["hint"]


def test_settings_that_break_a_promise_are_worth_a_remark_once(
    compared: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """M16: a frozen runner is replaced later than promised."""
    monkeypatch.setenv("COTERIE_STALL_LIMIT", "60s")
    said = coterie(capsys, "doctor", "--url", compared.url)
    assert (said.code, said.out.count("later than the promised 10s"), said.err) == (0, 1, "")
    assert "1 remark" in said.out


@pytest.mark.postgres
def test_a_server_tells_its_version_and_connections(
    empty_postgres_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert coterie(capsys, "migrate", "--url", empty_postgres_url, "--apply").code == 0
    said = coterie(capsys, "doctor", "--url", empty_postgres_url)
    assert said.code == 0
    assert redacted_url(empty_postgres_url) in said.out
    assert re.search(r"database +PostgreSQL \d+[\d.]*, schema \d+ \(current\), \d+ of \d+ connections ours", said.out)
    assert "runners       there are none" in said.out
    assert said.out.count("fsync=off") <= 1, "what the log warns of is a remark, once"
    assert said.err == ""


# One by one.


def only(findings: Iterator[Finding]) -> list[tuple[str, str]]:
    return [(each.what, each.how) for each in findings]


@pytest.mark.parametrize(
    ("applied", "pending", "expected"),
    [
        pytest.param(SCHEMA, [], [], id="current"),
        pytest.param(SCHEMA[:5], SCHEMA[5:], [("schema", "bad")], id="behind"),
        pytest.param(SCHEMA, [Migration(8, "post", "drop")], [("schema", "warn")], id="post"),
        pytest.param([], SCHEMA, [("schema", "warn")], id="empty"),
    ],
)
def test_a_schema_that_runners_refuse_is_a_problem(
    applied: list[Migration], pending: list[Migration], expected: list[tuple[str, str]]
) -> None:
    found = only(doctor.database(ServerInfo("SQLite 3"), applied, pending))
    assert found == [("database", "good"), *expected]


def test_a_server_that_is_nearly_full_is_worth_a_remark() -> None:
    full, free = (ServerInfo("PostgreSQL 16.3", ours=20, taken=taken, most=100) for taken in (90, 89))
    assert only(doctor.database(full, SCHEMA, []))[1:] == [("connections", "warn")]
    assert only(doctor.database(free, SCHEMA, []))[1:] == []


@pytest.mark.parametrize(("offset_s", "how"), [(0.9, "good"), (-1.1, "bad"), (1.1, "bad")])
def test_a_clock_that_is_wrong_is_a_problem(offset_s: float, how: str) -> None:
    rows = [row("web-1"), row("web-2")]
    facts = {"web-1web-1": told("web-1"), "web-2web-2": told("web-2", offset_s=offset_s)}
    (finding,) = doctor.clocks(rows, facts)
    assert finding.how == how
    assert how == "good" or ("web-2" in finding.says and ("ahead of" in finding.says) == (offset_s > 0))


def test_runners_that_do_not_answer_are_problems() -> None:
    rows = [row("web-1"), row("web-2")]
    found = list(doctor.runners(rows, {"web-1web-1": told("web-1"), "web-2web-2": None}))
    assert [(each.how, "web-2" in each.says) for each in found] == [("bad", True)]
    assert only(doctor.runners([], {})) == [("runners", "warn")]


def test_loopback_is_a_problem_once_there_are_two_machines() -> None:
    there = row("web-1", address="127.0.0.1:4711", host="one")
    facts = {name * 2: told(name) for name in ("web-1", "web-2")}
    assert only(doctor.runners([there, row("web-2", host="one")], facts)) == [("runners", "good")]
    assert only(doctor.runners([there, row("web-2", host="two")], facts))[1:] == [("runners", "bad")]


def test_ports_that_cannot_be_had_are_problems() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        settings = Settings.load({"http_listen": address}, environ={})
        assert only(doctor.ports(settings, runs_here=False)) == [("ports", "bad"), ("ports", "good")]
        assert only(doctor.ports(settings, runs_here=True)) == [("ports", "good")]
    assert only(doctor.ports(settings, runs_here=False)) == [("ports", "good")]
    elsewhere = Settings.load({"http_listen": None, "listen": "192.0.2.1:0"}, environ={})
    found = list(doctor.ports(elsewhere, runs_here=True))
    assert [each.how for each in found] == ["bad", "good"]
    assert "no address of this machine" in found[0].says


@pytest.mark.parametrize(
    ("given", "environ", "expected"),
    [
        pytest.param({}, {}, [], id="not in a pod"),
        pytest.param({}, POD, [("probes", "bad"), ("ports", "warn"), ("termination", "good")], id="loopback"),
        pytest.param({"http_listen": "0.0.0.0:7650", "listen": "0.0.0.0:0"}, POD, [("termination", "good")], id="open"),
        pytest.param({"drain": "30s"}, {doctor.GRACE: "34"}, [("termination", "bad")], id="killed while it leaves"),
        pytest.param({"drain": "30s"}, {doctor.GRACE: "35"}, [("termination", "good")], id="long enough"),
        pytest.param({"drain": "30s"}, {doctor.GRACE: "soon"}, [], id="no number"),
    ],
)
def test_what_goes_wrong_in_a_pod(
    given: dict[str, str], environ: dict[str, str], expected: list[tuple[str, str]]
) -> None:
    assert only(doctor.kubernetes(Settings.load(given, environ={}), environ)) == expected


def test_a_drain_that_nobody_can_compare_is_only_a_remark() -> None:
    open_to_all = {"http_listen": "0.0.0.0:7650", "listen": "0.0.0.0:0", "drain": "40s"}
    (finding,) = doctor.kubernetes(Settings.load(open_to_all, environ={}), POD)
    assert (finding.how, doctor.GRACE in finding.hint) == ("warn", True)


def test_jobs_that_nobody_can_run_and_queues_that_are_forgotten_paused_are_worth_a_remark() -> None:
    well = cluster_facts.queue(ready=3)
    assert [(each.says, each.how) for each in doctor.queues((well,))] == [("1 queue, 0 paused", "good")]
    assert not list(doctor.queues(()))
    parked = cluster_facts.queue(parked=2, parked_tasks=("resize",))
    paused = cluster_facts.queue("slow", ready=1, paused_at=cluster_facts.ago(60))
    one, two, _ = doctor.queues((parked, paused))
    assert (one.how, one.says) == ("warn", "2 jobs of queue emails parked: no runner has task resize")
    assert (two.how, two.says) == ("warn", "queue slow is paused, and 1 job waits in it")
    assert two.hint == "coterie queues resume slow"
