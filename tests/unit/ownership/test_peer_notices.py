"""What runners tell each other: hints that arrive at a former holder."""

from __future__ import annotations

from typing import Any, cast

import pytest

from coterie.ownership import peer_notices
from coterie.ownership.directory import Directory, peer_of
from coterie.ownership.peer_notices import PeerNotices
from tests.unit.ownership.test_directory import never, runner, seat, view


class Told:
    """Stands for the wires: what was said to whom."""

    def __init__(self) -> None:
        self.said: list[tuple[object, Any]] = []

    def notify(self, peer: object, route: int, body: bytes) -> None:
        del route
        self.said.append((peer, peer_notices.decode(body)))


class Heard:
    """What a runner that is called a makes of what it is told."""

    def __init__(self) -> None:
        self.directory, self.told = Directory(never), Told()
        self.offers: list[tuple[str, int]] = []
        self.looks = 0
        self.resigned: list[tuple[str, int]] = []
        self.talk = PeerNotices(
            "a",
            transport=cast("Any", self.told),
            directory=self.directory,
            offered=lambda *offer: self.offers.append(offer),
            refresh=self._look,
            wake=lambda _: None,
            resign=self._resign,
        )

    def _look(self) -> None:
        self.looks += 1

    def _resign(self, seat: str, epoch: int) -> bool:
        self.resigned.append((seat, epoch))
        return epoch == 3

    def hears(self, kind: peer_notices.Kind, seats: list[tuple[str, int]] | None = None, *, peer: str = "b") -> None:
        self.talk.on_notify(peer, 1, peer_notices.encode(kind, seats), {})


class Asked:
    """A request, and what is answered."""

    def __init__(self, body: bytes) -> None:
        self.body = body
        self.answer: Any = None
        self.failure: tuple[Any, ...] = ()

    def reply(self, body: bytes) -> None:
        self.answer = peer_notices.decode(body)

    def fail(self, *failure: Any) -> None:
        self.failure = failure


def test_each_kind_of_notice_is_for_its_own_listener() -> None:
    heard = Heard()
    heard.directory.learn(view(seat("s", None, 2)))
    heard.hears("offer", [("s", 3), ("t", 1)])
    assert (heard.offers, heard.looks) == ([("s", 3), ("t", 1)], 0)
    heard.hears("look")
    assert (len(heard.offers), heard.looks) == (2, 1)
    heard.hears("granted", [("s", 4)])
    assert heard.directory.epoch("s") == 4
    assert heard.directory.holder("s") == runner("b")
    heard.hears("resign", [("s", 4)])
    assert heard.resigned == [], "that is asked for, not told"
    heard.talk.on_notify("b", 1, b"\xc1noise", {})
    assert (len(heard.offers), heard.looks, heard.told.said) == (2, 1, [])


def test_grants_of_one_that_nobody_knows_are_not_believed() -> None:
    heard = Heard()
    heard.directory.learn(view(seat("s", None, 2)))
    heard.hears("granted", [("s", 4)], peer="stranger")
    assert (heard.directory.epoch("s"), heard.directory.holder("s")) == (2, None)


def test_all_means_all_but_ourselves() -> None:
    heard = Heard()
    heard.directory.learn(view(runners="abc"))
    heard.talk.send_all("granted", [("s", 4)])
    notice = peer_notices.PeerNotice("granted", [("s", 4)])
    assert heard.told.said == [(peer_of(runner("b")), notice), (peer_of(runner("c")), notice)]


def test_who_is_asked_to_resign_says_which_seats_it_gives_up() -> None:
    heard, asked = Heard(), Asked(peer_notices.encode("resign", [("s", 3), ("t", 9)]))
    heard.talk.on_request(cast("Any", asked))
    assert heard.resigned == [("s", 3), ("t", 9)]
    assert asked.answer == peer_notices.PeerNotice("resign", [("s", 0)])
    heard.talk.on_cancel(cast("Any", asked))  # it has begun: nothing takes it back
    assert asked.failure == ()


@pytest.mark.parametrize("body", [b"\xc1noise", peer_notices.encode("look")])
def test_another_request_is_refused(body: bytes) -> None:
    heard, asked = Heard(), Asked(body)
    heard.talk.on_request(cast("Any", asked))
    assert (asked.answer, heard.resigned) == (None, [])
    assert "not known here" in str(asked.failure)


@pytest.mark.parametrize(
    ("holder", "passed_on", "is_heard"),
    [("a", 0, True), ("b", 0, False), ("b", 1, True), (None, 0, True)],
    ids=["ours", "moved", "passed-on-once", "free"],
)
def test_a_hint_for_a_seat_that_has_moved_is_passed_on_once(holder: str | None, passed_on: int, is_heard: bool) -> None:
    """Else what was stored just after the move waits for a sweep."""
    directory, told, woken = Directory(never), Told(), list[str]()
    directory.learn(view(seat("shard:default:1", holder, 3)))
    talk = PeerNotices(
        "a",
        transport=cast("Any", told),
        directory=directory,
        offered=lambda *_: None,
        refresh=lambda: None,
        wake=woken.append,
        resign=lambda *_: False,
    )
    hint = "shard:default:1\nworkflow:order/7"
    talk.on_notify("c", 1, peer_notices.encode("wake", [(hint, passed_on)]), {})
    assert woken == ([hint] if is_heard else [])
    assert told.said == ([] if is_heard else [(peer_of(runner("b")), peer_notices.PeerNotice("wake", [(hint, 1)]))])
