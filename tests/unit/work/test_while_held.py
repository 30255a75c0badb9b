"""An operation is retried while the database is away, and not without the seat."""

from __future__ import annotations

import logging

import pytest

from coterie.errors import LeadershipLost, Outcome, PersistenceError
from coterie.ownership.seats import Tenure, Trust
from coterie.storage.interface import Claim
from coterie.work.while_held import while_held
from tests.support.manual_clock import ManualClock

pytestmark = pytest.mark.simulated(seeds=1)
log = logging.getLogger("coterie.test")


class Attempts:
    """A database that fails with these outcomes, one after the other, and then answers."""

    def __init__(self, *outcomes: Outcome, lose_after: int = 0) -> None:
        self.outcomes = list(outcomes)
        self.count = 0
        self.trust = Trust(ManualClock())
        self.trust.extend(10**15)
        self.tenure = Tenure(Claim("a" * 32, "singleton:s", 7), clean=True, trust=self.trust)
        self._lose_after = lose_after

    async def once(self) -> int:
        self.count += 1
        if self.count == self._lose_after:
            self.trust.end()
        if self.outcomes:
            raise PersistenceError(doing="write", problem="the disk is full", outcome=self.outcomes.pop(0))
        return self.count

    async def run(self) -> int:
        return await while_held(self.tenure.require_held, self.once, what="workflow:w/1", log=log)


async def test_it_is_retried_until_the_database_answers() -> None:
    assert await Attempts("unreachable", "unknown", "refused").run() == 4


async def test_it_is_not_retried_without_the_seat() -> None:
    attempts = Attempts("unreachable", "unreachable", "unreachable", "unreachable", lose_after=3)
    with pytest.raises(LeadershipLost) as lost:
        await attempts.run()
    assert (lost.value.seat, lost.value.epoch, attempts.count) == ("singleton:s", 7, 3)


async def test_it_is_not_even_tried_without_the_seat() -> None:
    attempts = Attempts()
    attempts.trust.end()
    with pytest.raises(LeadershipLost):
        await attempts.run()
    assert attempts.count == 0


async def test_other_errors_are_not_retried() -> None:
    async def broken() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await while_held(lambda: None, broken, what="it", log=log)


@pytest.mark.parametrize(
    ("outcomes", "levels"),
    [
        (["unreachable", "unreachable", "unknown"], [logging.INFO, logging.DEBUG, logging.DEBUG]),
        (["unreachable", "refused", "refused"], [logging.INFO, logging.WARNING, logging.DEBUG]),
        (["refused", "unreachable"], [logging.WARNING, logging.DEBUG]),
    ],
)
async def test_a_wait_is_logged_once_and_as_a_warning_if_it_may_last(
    outcomes: list[Outcome], levels: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger=log.name)
    await Attempts(*outcomes).run()
    found = [record for record in caplog.records if record.name == log.name]
    assert [record.levelno for record in found] == levels
    assert found[0].getMessage().startswith("workflow:w/1 waits for the database: ")
    assert "the disk is full" in found[0].getMessage()
