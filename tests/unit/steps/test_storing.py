"""What is said of a database that does not do what durable work asks for."""

from __future__ import annotations

import logging

import pytest

from coterie.errors import Outcome, PersistenceError
from coterie.steps.storing import tell_waiting


@pytest.mark.parametrize(
    ("outcome", "level"), [("refused", logging.WARNING), ("unreachable", logging.INFO), ("unknown", logging.INFO)]
)
def test_what_may_be_refused_for_ever_is_a_warning(
    caplog: pytest.LogCaptureFixture, outcome: Outcome, level: int
) -> None:
    caplog.set_level(logging.INFO)
    tell_waiting("workflow:w/1", PersistenceError(doing="write", problem="the disk is full", outcome=outcome))
    (record,) = caplog.records
    assert record.levelno == level
    assert "workflow:w/1 waits for the database" in record.getMessage()
    assert "the disk is full" in record.getMessage()
