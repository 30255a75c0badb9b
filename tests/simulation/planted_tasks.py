"""Planted bugs of supervision: standing tasks that one unexpected error ends for good."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from coterie.kernel.supervisor import StandingTask
from tests.simulation.workloads import crons, messages, seats

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def _unsupervised(name: str) -> Iterator[None]:
    """An error ends this task, and nobody is told but the log."""
    failed = StandingTask._failed

    def ended(self: StandingTask, error: BaseException) -> float | None:
        return None if self._name == name else failed(self, error)

    with patch.object(StandingTask, "_failed", ended):
        yield


PLANTED = (
    ("settling ended by an error", partial(_unsupervised, "settle seats"), seats.main),
    ("the sweep of messages ended by an error", partial(_unsupervised, "sweep messages"), messages.main),
    ("a cron's holder ended by an error", partial(_unsupervised, "hold cron"), crons.main),
)
SAMPLE = {"settling ended by an error"}
"""Looked for each time; the others every night."""
