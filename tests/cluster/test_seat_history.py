"""The judge of the holders' journals accepts what is right and rejects what is wrong."""

from __future__ import annotations

import pytest

from tests.cluster.seat_history import Event, judge


def granted(epoch: int, at_ns: int) -> Event:
    return Event("r", "granted", at_ns, "s", epoch, f"i{epoch}")


def written(epoch: int, version: int, *, sent_ns: int, at_ns: int | None = None, key: str = "s") -> Event:
    return Event("r", "written", at_ns or sent_ns + 1, "s", epoch, f"i{epoch}", key, version, sent_ns)


RIGHT = [
    granted(1, 10),
    written(1, 1, sent_ns=20),
    Event("r", "loaded", 35, "s", 2, "i2", version=2),
    granted(2, 30),
    written(1, 2, sent_ns=25, at_ns=500),  # answered in time, read late by a frozen process
    written(2, 3, sent_ns=40),
]


def test_a_write_that_is_only_noted_late_is_accepted() -> None:
    assert judge(RIGHT) == {"granted": 2, "written": 3, "loaded": 1}


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (granted(2, 60), "one epoch was granted twice"),
        (written(1, 3, sent_ns=25), "version 3 was written twice"),
        (written(1, 4, sent_ns=25), "epoch 1 wrote after 2"),
        (written(1, 1, sent_ns=31, key="s/1/1"), "was accepted after"),
        (Event("r", "loaded", 70, "s", 3, "i3", version=2), "did not find"),
    ],
)
def test_a_history_with_one_wrong_event_is_rejected(wrong: Event, why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        judge([*RIGHT, wrong])
