"""Serves calls from other processes: decodes them, delivers them to the host, and replies on the same connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.entities.calls.local import ACCEPTED, DetachedCall, accept
from coterie.entities.calls.wire import FAILED, MALFORMED, Envelope, NotMine, decode_call, pack_not_mine
from coterie.entities.host.work import LATER, Work
from coterie.errors import CoterieError, MalformedMessage, RunnerUnavailable
from coterie.kernel.service import Tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.entities.host.host import Host
    from coterie.transport.interface import Request


class CallServer:
    """Handles requests on the call route.

    Args:
        host: Runs the calls.
        known: Returns what this runner knows of the seat of an entity that it does not hold.

    Promise:
        A caller that stops waiting, or whose connection is lost, cancels its call here.
    """

    def __init__(self, host: Host, *, known: Callable[[str, str], NotMine]) -> None:
        self.works: dict[Request, Work] = {}
        """Calls in progress, by request: a cancellation finds its work here."""
        self.known = known
        self.tasks = Tasks("arrivals")
        self._host = host
        self._deliver, self._serve = host.deliver, host.dispatch.serve

    def on_request(self, request: Request) -> None:
        """Decode a call and deliver it. Called directly from the socket."""
        try:
            envelope = decode_call(request.body)
        except MALFORMED as error:
            request.fail(*MalformedMessage(what="a call", problem=str(error)).to_wire())
            return
        is_stream = request.is_stream
        if envelope.discards:
            self._accept(request, envelope)
            return
        work = (RemoteStream if is_stream else RemoteCall).from_envelope(envelope, request.until_s)
        work.request, work.server = request, self
        if is_stream or not self._serve(work, request.arrived_s):
            self.works[request] = work
            self._deliver(work)
        elif work.is_open:  # it is suspended
            self.works[request] = work

    def _accept(self, request: Request, envelope: Envelope) -> None:
        """Deliver a call without a waiting caller."""
        try:
            taken = accept(self._host, DetachedCall.from_envelope(envelope, request.until_s))
        except CoterieError as error:
            request.fail(*error.to_wire())
        else:
            known = self.known(envelope.entity_type, envelope.entity_id)
            request.reply(taken if taken is ACCEPTED else pack_not_mine(known))

    def on_cancel(self, request: Request) -> None:
        """The caller no longer waits."""
        work = self.works.pop(request, None)
        if work is not None:
            self._host.cancel(work)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Ignored: calls are requests."""

    async def stop(self) -> None:
        """Stop what is still being sent."""
        await self.tasks.stop()


class RemoteCall(Work, eq=False):
    """A call from another process."""

    request: Request = LATER
    server: CallServer = LATER

    def reply(self, body: bytes) -> None:
        request = self.request
        self.server.works.pop(request, None)
        request.reply(body)

    def refuse(self, error: CoterieError) -> None:
        self.server.works.pop(self.request, None)
        self.request.fail(*error.to_wire())

    def not_mine(self) -> None:
        self.reply(pack_not_mine(self.server.known(self.entity_type, self.entity_id)))


class RemoteStream(Work, eq=False):
    """A stream that another process reads."""

    request: Request = LATER
    server: CallServer = LATER

    def reply(self, body: bytes) -> None:
        """The reverse case of `Work.send`."""
        del body
        self.refuse(MalformedMessage(what=self.target, problem="it is no stream, and was called as if it were one"))

    def failed(self, failure: bytes) -> None:
        self._finish(FAILED + failure)

    def refuse(self, error: CoterieError) -> None:
        self.server.works.pop(self.request, None)
        self.request.fail(*error.to_wire())

    def not_mine(self) -> None:
        self._finish(pack_not_mine(self.server.known(self.entity_type, self.entity_id)))

    async def send(self, item: bytes) -> None:
        await self.request.send(item)

    def end(self) -> None:
        self.server.works.pop(self.request, None)
        self.request.end()

    def _finish(self, body: bytes) -> None:
        """The last frame waits for credit like all items; the reader's timeout and the connection limit the wait."""
        self.server.works.pop(self.request, None)
        self.server.tasks.spawn(_last_words(self.request, body), name=f"last words of {self.target}")


async def _last_words(request: Request, body: bytes) -> None:
    try:
        await request.send(body)
    except RunnerUnavailable:
        return  # the reader is gone
    request.end()
