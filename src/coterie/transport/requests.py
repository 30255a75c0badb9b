"""A request of a peer, as its handler sees it: see `interface.Request`."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 msgspec reads the annotations
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from coterie.errors import CoterieError
from coterie.transport.envelopes import Reply, read_headers
from coterie.transport.outcomes import unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.errors import RunnerUnavailable

OPEN, WEIGHED, LEFT, ANSWERED = range(4)
"""Of a request: somebody waits for the answer; the same, and it is a stream or large; nobody does; it was answered."""


class Request(Struct, eq=False, gc=False):
    """A request of a peer; see `interface.Request`. A Struct, since those are made in half a class's time.

    Thousands may wait, so the garbage collector is told not to look at them. Therefore none may refer to what refers
    to it: to its `Answers` only weakly, to its `Sending` not at all.
    """

    answers: Callable[[], Any]  # a weak reference to an Answers; Any, since msgspec would look for the name
    peer: str
    frame: Any  # an envelopes.Request
    id: int
    route: int
    body: bytes
    arrived_s: float
    until_s: float
    is_stream: bool
    state: int = OPEN

    @property
    def headers(self) -> Mapping[str, str]:
        return read_headers(self.frame.headers)

    @property
    def is_open(self) -> bool:
        return self.state < LEFT

    def reply(self, body: bytes) -> None:
        answers_of = self.answers
        answers = answers_of()
        if self.state or answers is None or len(body) > answers.small_bytes:
            self._reply(body)
            return
        self.state = ANSWERED  # the hot path: what `Answers.reply` comes to
        waiting, queue, number = answers.waiting, answers.queue, self.id
        del waiting[number]
        queue(Reply(number, body), not waiting)

    def _reply(self, body: bytes) -> None:
        assert not self.is_stream, "a stream is answered by send and end"
        if self._answered():
            self.answers().reply(self, body)

    def fail(self, code: str, facts: Mapping[str, object]) -> None:
        if self._answered():
            self.answers().fail(self, CoterieError.from_wire(code, facts))

    async def send(self, item: bytes) -> None:
        assert self.is_stream, "only a stream has items"
        assert self.state != ANSWERED, "the stream has ended"
        if not self.is_open:
            raise left(self.peer)
        await self.answers().send(self, item)

    def end(self) -> None:
        assert self.is_stream, "only a stream has an end"
        if self._answered():
            self.answers().end(self)

    def _answered(self) -> bool:
        """Note that it is answered; false if nobody waits for that."""
        assert self.state != ANSWERED, "a request is answered once"
        was_open = self.is_open and self.answers() is not None
        self.state = ANSWERED
        return was_open


def left(peer: str) -> RunnerUnavailable:
    """Whoever read a stream has left."""
    return unavailable(peer, "the reader of the stream has left", sent=False)
