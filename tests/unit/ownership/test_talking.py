"""What runners tell each other: hints that arrive at a former holder."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coterie.ownership import notices
from coterie.ownership.directory import Directory, peer_of
from coterie.ownership.talking import Talk
from tests.unit.ownership.test_directory import never, runner, seat, view


class Told:
    """Stands for the wires: what was said to whom."""

    def __init__(self) -> None:
        self.said: list[tuple[object, Any]] = []

    def notify(self, peer: object, route: int, body: bytes) -> None:
        del route
        self.said.append((peer, notices.decode(body)))


@pytest.mark.parametrize(
    ("holder", "passed_on", "is_heard"),
    [("a", 0, True), ("b", 0, False), ("b", 1, True), (None, 0, True)],
    ids=["ours", "moved", "passed-on-once", "free"],
)
def test_a_hint_for_a_seat_that_has_moved_is_passed_on_once(holder: str | None, passed_on: int, is_heard: bool) -> None:
    """Else what was stored just after the move waits for a sweep."""
    directory, told, woken = Directory(never), Told(), list[str]()
    directory.learn(view(seat("shard:default:1", holder, 3)))
    talk = Talk(
        "a",
        transport=cast("Any", told),
        directory=directory,
        offered=lambda *_: None,
        look=lambda: None,
        wake=woken.append,
        resign=lambda *_: False,
    )
    hint = "shard:default:1\nworkflow:order/7"
    talk.on_notify("c", 1, notices.encode("wake", [(hint, passed_on)]), {})
    assert woken == ([hint] if is_heard else [])
    assert told.said == ([] if is_heard else [(peer_of(runner("b")), notices.Notice("wake", [(hint, 1)]))])
