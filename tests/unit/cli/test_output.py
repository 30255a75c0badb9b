"""How answers look: tables that fit the terminal, lengths of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.cli.commands import shards
from coterie.cli.commands.status import text
from coterie.cli.output import Screen, lasting, relative, took
from coterie.entities.persisted.api import MessageInfo
from coterie.kernel.ids import MessageId
from coterie.observe.message_filter import state_of
from coterie.observe.view import Shard, ShardGroup, Shards
from tests.unit.cli.command_runner import FixedScreen
from tests.unit.cli.test_status import overview
from tests.unit.observe.cluster_facts import NOW

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


COLUMNS = ("MESSAGE", "CALL", "STATE", "FAILED", "REMARK")
ROW = ("7" * 32, "Account/alice.charge", "waiting", "3", "ConnectionRefusedError: payments.internal:443 " * 3)


def test_a_table_fits_the_terminal_and_its_first_column_is_whole() -> None:
    """It did not fit 80 columns."""
    shown = FixedScreen(80).table(COLUMNS, [ROW], right=("FAILED",), spare=("FAILED",))
    assert max(map(len, shown.splitlines())) <= 80
    assert "7" * 32 in shown
    assert "…" in shown


def test_a_wide_terminal_is_used_and_a_pipe_gets_all() -> None:
    narrow, wide = (FixedScreen(columns).table(COLUMNS, [ROW]).splitlines()[1] for columns in (80, 140))
    assert len(narrow) <= 80 < len(wide) <= 140
    assert ROW[-1].strip() in Screen().table(COLUMNS, [ROW])


def test_columns_that_can_be_spared_are_left_out_before_words_are_lost() -> None:
    shown = FixedScreen(70).table(COLUMNS, [ROW], right=("FAILED",), spare=("FAILED",))
    assert "FAILED" not in shown
    assert "REMARK" in shown


@given(
    widths=st.lists(st.integers(0, 60), min_size=3, max_size=6),
    columns=st.integers(40, 200),
    colour=st.booleans(),
)
@settings(deadline=None)
def test_what_can_fit_does(widths: list[int], columns: int, *, colour: bool) -> None:
    names = [f"C{place}" for place in range(len(widths))]
    screen = FixedScreen(columns, colour=colour)
    row = [f"{screen.glyph('good')} " + "x" * width for width in widths]
    plain = FixedScreen(columns).table(names, [[f"✓ {'x' * width}" for width in widths]])
    needed = widths[0] + 2 + sum(min(width + 2, 12) for width in widths[1:]) + 2 * (len(widths) - 1)
    if needed <= columns:
        assert max(map(len, plain.splitlines())) <= columns
    assert screen.table(names, [row]).replace("\x1b[32m", "").replace("\x1b[0m", "") == plain, "colours do not count"


def test_status_and_the_map_of_shards_fit_eighty_columns_and_use_more() -> None:
    lines = text(
        overview(), where="cluster default on sqlite:///coterie.db", now=NOW, screen=FixedScreen(80)
    ).splitlines()
    assert max(map(len, lines)) <= 80
    some = tuple(
        Shard(shard=f"default:{n}", group="default", number=n, owner="a", epoch=1, state="owned", target="a")
        for n in range(300)
    )
    group = ShardGroup(
        group="default",
        shards=300,
        owned=300,
        moving=0,
        runners={"a": 300},
        balance=1.0,
        oldest_epoch=1,
        newest_epoch=1,
    )
    for columns in (80, 140):
        drawn = shards.drawn(FixedScreen(columns), Shards(groups=(group,), shards=some)).splitlines()
        assert max(map(len, drawn)) == columns, "the map is as wide as the terminal"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"),
        (0.0002, "<1ms"),
        (0.004, "4ms"),
        (0.0999, "100ms"),
        (0.3, "0.3s"),
        (1, "1s"),
        (41, "41s"),
        (3720, "1h 2m"),
    ],
)
def test_what_is_shorter_than_a_second_is_no_zero(seconds: float, shown: str) -> None:
    assert lasting(seconds) == shown
    assert took(seconds) == ("<1ms" if seconds == 0 else shown), "nothing that has ended took no time"


@pytest.mark.parametrize(
    ("seconds", "shown"), [(-0.3, "0.3s ago"), (-0.004, "4ms ago"), (0.5, "in 0.5s"), (-12.4, "12s ago"), (0, "0s ago")]
)
def test_what_was_just_now_is_said_so(seconds: float, shown: str) -> None:
    assert relative(AT + timedelta(seconds=seconds), AT) == shown


@pytest.mark.parametrize(
    ("sent_s", "due_s", "state"),
    [(-5, -5, "waiting"), (0.2, 0.2, "waiting"), (-5, 60, "scheduled"), (-60, -1, "waiting"), (0.2, 60, "scheduled")],
)
def test_a_message_that_is_due_at_once_is_never_scheduled(sent_s: float, due_s: float, state: str) -> None:
    """One that was sent after the clock was read was "scheduled, due 0s ago"."""
    message = MessageInfo(
        id=MessageId("1"),
        entity="Account/a",
        method="charge",
        status="pending",
        shard="default:1",
        key=None,
        sent_at=AT + timedelta(seconds=sent_s),
        due_at=AT + timedelta(seconds=due_s),
        completed_at=None,
        attempts=0,
        errors=(),
        payload={},
        reply=None,
        failure=None,
        trace_id=None,
    )
    assert state_of(message, now=AT, running=()) == state
