"""`coterie check`: what stored rows say about promises that were kept, or broken (INV-F1, F2, F3, C1, C2, D2)."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.cli.commands.check import Audit, FenceCheck, HolderCheck, JobCheck, MessageCheck, StateCheck, TickCheck
from coterie.storage import unreadable_rows
from coterie.storage.contracts.inspection import AuditRow, EndedMessage, StateMark
from coterie.storage.contracts.jobs import RunningJob
from coterie.storage.contracts.ticks import TickRow
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow
from tests.unit.cli.command_runner import Served, coterie, require_golden, serving, transcript

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

T0 = datetime(2026, 3, 27, 12, tzinfo=UTC)
SHARD = "shard:default:1"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """A cluster with audit, whose one runner has stopped again: nothing moves any more."""
    file = tmp_path_factory.mktemp("check") / "cluster.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COTERIE_AUDIT", "on")
        with serving(file, "web-1") as running:
            running.do(_work(running))
    return running


async def _work(running: Served) -> None:
    cluster = running.clusters["web-1"]
    await cluster.crons.wait(await cluster.crons.trigger("invoices"), timeout="2m")
    async with asyncio.timeout(120):
        while not (await cluster.singletons.get("importer")).note:  # its body has saved before it says this
            await asyncio.sleep(0.05)


@pytest.fixture
def planted(recorded: Served, tmp_path: Path) -> tuple[str, apsw.Connection]:
    """A copy of it in which a test may break something."""
    file = tmp_path / "copy.db"
    source = apsw.Connection(recorded.url.removeprefix("sqlite:///"))
    source.execute("vacuum into ?", (str(file),))
    source.close()
    return f"sqlite:///{file}", apsw.Connection(str(file))


@pytest.fixture
def _forgets() -> Iterator[None]:
    """What this process could not read is known until it is read."""
    unreadable_rows._known.clear()
    yield
    unreadable_rows._known.clear()


@pytest.mark.usefixtures("_forgets")
@pytest.mark.parametrize("command", ["check", "doctor"])
def test_a_row_that_cannot_be_read_is_named(
    planted: tuple[str, apsw.Connection],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("COTERIE_HTTP_LISTEN", "off")
    url, file = planted
    assert not rows_named(capsys, command, url)
    file.execute(f"update seats set name = 'shard:default:odd' where name = '{SHARD}'")
    (found,) = rows_named(capsys, command, url)
    assert found["says"].startswith("row 'shard:default:odd' of table seats cannot be read: ")
    assert "repair or delete it with SQL" in found["hint"]


@pytest.mark.usefixtures("_forgets")
def test_a_runner_whose_row_cannot_be_read_takes_part(
    planted: tuple[str, apsw.Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    url, file = planted
    file.execute(
        "insert into runners (id, cluster, name, address, host_id, groups, weight, version, knows, started_at_ns)"
        " values ('odd', 'default', 'odd', 'h:1', '', '[1', 1.0, '', '{}', 1)"
    )
    file.execute(f"update seats set holder = 'odd', epoch = epoch + 1 where name = '{SHARD}'")
    said = coterie(capsys, "check", "--url", url)
    assert "which is no runner" not in said.out
    assert said.code == 1
    assert re.search(r"rows checked, no promise is broken, 1 row cannot be read +exit 1$", said.out.strip())


def rows_named(capsys: pytest.CaptureFixture[str], command: str, url: str) -> list[dict[str, Any]]:
    """The rows that a command names; it ends with 1 if there are any."""
    said = coterie(capsys, command, "--url", url, "--json")
    found = [each for each in json.loads(said.out)["checks"] if each["check"] == "rows"]
    if found:
        assert said.code == 1
    return found


def test_without_audit_it_says_so_and_checks_the_rest(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "check", "--url", served.url, "--json")
    document = json.loads(said.out)
    assert (said.code, document["has_audit"], document["violations"]) == (0, False, [])
    found = {each["check"]: each for each in document["checks"]}
    assert "COTERIE_AUDIT=on" in found["audit"]["hint"]
    assert {name: each["status"] for name, each in found.items()} == {
        "audit": "remark",
        "holders": "good",
        "fence": "good",
        "states": "good",
        "ticks": "good",
        "messages": "good",
        "jobs": "good",
    }
    assert document["rows"] > 0


def test_a_history_in_which_all_is_well(recorded: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "check", "--url", recorded.url)
    assert said.code == 0
    require_golden("check", transcript(said._replace(err="")))


def test_a_broken_promise_is_told_in_words(
    planted: tuple[str, apsw.Connection], capsys: pytest.CaptureFixture[str]
) -> None:
    """INV-F1: an epoch that two runners were granted."""
    url, connection = planted
    with connection:
        connection.execute(
            "insert into audit (cluster, at_ns, kind, runner, seat, epoch)"
            " select cluster, at_ns, kind, 'web-9', seat, epoch from audit"
            " where kind = 'granted' and seat = 'singleton:importer'"
        )
    connection.close()
    said = coterie(capsys, "check", "--url", url)
    assert said.code == 1
    require_golden("check_broken", transcript(said._replace(err="")))
    document = json.loads(coterie(capsys, "check", "--url", url, "--json").out)
    assert [each["promise"] for each in document["violations"]] == ["INV-F1"]


@pytest.mark.parametrize(
    ("statement", "promise"),
    [
        pytest.param("update state_history set epoch = epoch + 1", "INV-F3", id="state of an epoch that is to come"),
        pytest.param("update ticks set epoch = 99", "INV-F2", id="tick of an epoch that is to come"),
        pytest.param("update ticks set ended_at_ns = ended_at_ns + 3600000000000", None, id="a late tick"),
        pytest.param("update ticks set attempt = 0", "INV-C2", id="an outcome without an attempt"),
    ],
)
def test_what_is_broken_in_the_file_is_found(
    planted: tuple[str, apsw.Connection], capsys: pytest.CaptureFixture[str], statement: str, promise: str | None
) -> None:
    url, connection = planted
    connection.execute(statement)
    assert connection.changes() > 0
    connection.close()
    said = coterie(capsys, "check", "--url", url, "--json")
    promises = {each["promise"] for each in json.loads(said.out)["violations"]}
    assert (said.code, promise in promises) == ((1, True) if promise else (0, False))


@pytest.mark.postgres
def test_a_history_on_a_server(
    postgres_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_AUDIT", "on")
    running = Served(postgres_url)
    try:
        running.start("web-1")
        said = coterie(capsys, "check", "--url", postgres_url, "--json")
    finally:
        running.close()
    document = json.loads(said.out)
    assert (said.code, document["has_audit"], document["violations"]) == (0, True, [])
    assert document["rows"] > 16


# Each promise by itself.


def granted(*grants: tuple[str, int, str, float]) -> Audit:
    """An audit of (seat, epoch, runner, at)."""
    audit = Audit()
    rows = [
        AuditRow(number, T0 + timedelta(seconds=at_s), "granted", runner, seat, epoch, "")
        for number, (seat, epoch, runner, at_s) in enumerate(grants, 1)
    ]
    audit.see(rows)
    return audit


def view(*seats: tuple[str, int, str | None], runners: tuple[str, ...] = ("a", "b")) -> ClusterSnapshot:
    rows = tuple(
        RunnerRow(id=name, name=name, address="127.0.0.1:1", host_id="", groups=("default",), started_at=T0)
        for name in runners
    )
    return ClusterSnapshot(
        rows, tuple(SeatRow(name, "default", holder, epoch, "", T0, True) for name, epoch, holder in seats), ""
    )


@pytest.mark.parametrize(
    ("grants", "words"),
    [
        pytest.param([(SHARD, 1, "a", 0), (SHARD, 2, "b", 1)], [], id="rising"),
        pytest.param([(SHARD, 1, "a", 0), (SHARD, 5, "a", 1)], [], id="with gaps, where audit was off"),
        pytest.param([(SHARD, 2, "a", 0), (SHARD, 2, "b", 1)], ["twice", "a", "b"], id="twice"),
        pytest.param([(SHARD, 2, "a", 0), (SHARD, 1, "b", 1)], ["epoch 1", "after 2"], id="falling"),
    ],
)
def test_epochs_are_granted_once_and_rise(grants: list[Any], words: list[str]) -> None:
    """INV-F1."""
    broken = granted(*grants).broken
    assert len(broken) == bool(words)
    assert all(word in problem for _, problem in broken for word in words)


@pytest.mark.parametrize(
    ("seat", "is_broken"),
    [
        pytest.param((SHARD, 2, "b"), False, id="held"),
        pytest.param((SHARD, 2, None), False, id="released"),
        pytest.param((SHARD, 3, "a"), False, id="moved on"),
        pytest.param((SHARD, 2, "a"), True, id="held by another"),
        pytest.param((SHARD, 1, "b"), True, id="behind"),
    ],
)
def test_seats_are_where_their_grants_have_left_them(seat: tuple[str, int, str | None], is_broken: bool) -> None:
    """INV-F1."""
    audit = granted((SHARD, 1, "a", 0), (SHARD, 2, "b", 1))
    audit.compare(view(seat))
    assert bool(audit.broken) == is_broken


@pytest.mark.parametrize(
    ("epoch", "at_s", "is_broken"),
    [
        pytest.param(1, 9.0, False, id="by the holder"),
        pytest.param(1, 11.0, True, id="by a former holder"),
        pytest.param(2, 11.0, False, id="by its successor"),
        pytest.param(0, 11.0, False, id="cancelled, by no holder"),
    ],
)
def test_nothing_is_written_after_a_newer_grant(epoch: int, at_s: float, is_broken: bool) -> None:
    """INV-F2: for whatever has an epoch and an instant."""
    fence = FenceCheck(audit=granted((SHARD, 1, "a", 0), (SHARD, 2, "b", 10), (SHARD, 3, "a", 20)))
    at = T0 + timedelta(seconds=at_s)
    MessageCheck(fence=fence).see([EndedMessage("7", "Account", "alice", "charge", SHARD, epoch, at, False, True, 1)])
    assert [promise for promise, _ in fence.broken] == ["INV-F2"] * is_broken
    assert all("Account/alice.charge" in problem for _, problem in fence.broken)


def test_instants_are_not_compared_once_the_clock_was_set_back() -> None:
    audit = granted((SHARD, 1, "a", 0), ("other", 1, "a", 100), (SHARD, 2, "b", 10))
    assert (audit.is_dated, audit.broken) == (False, [])
    assert audit.overtaken(SHARD, 1, T0 + timedelta(seconds=50)) is None


def test_nothing_is_written_at_an_epoch_that_was_never_granted() -> None:
    """INV-F2: without any audit."""
    fence = FenceCheck()
    StateCheck(fence=fence).see([StateMark("importer", SHARD, 1, 3, None)])
    fence.compare(view((SHARD, 3, "a")))
    assert fence.broken == []
    fence.compare(view((SHARD, 2, "a")))
    assert [promise for promise, _ in fence.broken] == ["INV-F2"]


def test_no_version_of_an_older_epoch_follows_a_newer_one() -> None:
    """INV-F3."""
    states = StateCheck()
    states.see([StateMark("a", SHARD, 1, 4, T0), StateMark("a", SHARD, 2, 5, T0), StateMark("b", SHARD, 1, 2, T0)])
    assert states.broken == []
    states.see([StateMark("c", SHARD, 1, 5, T0), StateMark("c", SHARD, 2, 4, T0)])
    assert states.broken == [("INV-F3", "state c: version 2 is of epoch 4, version 1 of 5")]


def test_a_seat_is_held_by_somebody_who_takes_part() -> None:
    holders = HolderCheck()
    holders.see(view((SHARD, 1, "a"), ("shard:default:2", 1, None)))
    assert holders.broken == []
    holders.see(view((SHARD, 1, "gone")))
    assert [problem for _, problem in holders.broken] == [f"seat {SHARD} is held by gone, which is no runner"]


def tick(at_s: float, *, until_s: float | None = None, outcome: Any = "ran", reason: str = "") -> TickRow:
    at, until = (T0 + timedelta(seconds=each) for each in (at_s, at_s if until_s is None else until_s))
    return TickRow(
        name="nightly",
        kind="scheduled",
        at=at,
        until=until,
        count=1,
        seq=0,
        epoch=1,
        attempt=0 if outcome == "skipped" else 1,
        outcome=outcome,
        reason=reason,
        errors=(),
        runner="a",
        claimed_at=at,
        ended_at=None if outcome is None else at,
        late_s=None,
        took_s=None,
        note="",
        done=None,
        total=None,
    )


def test_no_instant_of_a_schedule_is_decided_twice() -> None:
    """INV-C1: neighbours that were skipped share a row, and nothing in between has another."""
    ticks = TickCheck()
    ticks.see("nightly", [tick(60), tick(0), tick(120, until_s=240, outcome="skipped", reason="paused"), tick(300)])
    assert ticks.broken == []
    ticks.see("nightly", [tick(120, until_s=240, outcome="skipped", reason="paused"), tick(180)])
    assert [promise for promise, _ in ticks.broken] == ["INV-C1"]


def test_ticks_that_are_not_over_are_counted() -> None:
    ticks = TickCheck()
    ticks.see("nightly", [tick(0), tick(60, outcome=None)])
    assert (ticks.broken, ticks.rows, ticks.open) == ([], 2, 1)


def test_a_message_that_is_done_has_its_reply() -> None:
    """INV-D2: one that was given up has none."""
    messages = MessageCheck()
    messages.see([EndedMessage("7", "Account", "alice", "charge", SHARD, 1, T0, True, False, 5)])
    assert (messages.broken, messages.dead) == ([], 1)
    messages.see([EndedMessage("8", "Account", "alice", "charge", SHARD, 1, T0, False, False, 1)])
    assert [promise for promise, _ in messages.broken] == ["INV-D2"]


def test_a_job_runs_on_a_runner_that_takes_part_or_waits_to_be_taken_back() -> None:
    """T1: whoever joined or left while the jobs were read took part."""

    def of(*runners: str) -> ClusterSnapshot:
        rows = [
            RunnerRow(id=each, name=each, address="", host_id="", groups=(), knows={}, started_at=T0)
            for each in runners
        ]
        return ClusterSnapshot(tuple(rows), (), "")

    def running(runner: str | None) -> RunningJob:
        return RunningJob(f"j-{runner}", "queue:emails", "", "send_email", 1, runner, cancelling=False)

    check = JobCheck()
    check.see([running("a"), running("b"), running("c"), running(None)], of("a", "b"), of("b", "c"))
    assert (check.rows, check.lost, check.broken) == (4, 1, [])
    check.see([running("d"), running("e")], of("a"), of("a"), unreadable=["e"])
    assert check.broken == [("T1", "job j-d of send_email runs on d, which is no runner")]
