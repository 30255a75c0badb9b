"""Dispatches incoming requests and notices: each route has one handler."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

from coterie.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.transport.interface import Request, RequestHandler


class Route(IntEnum):
    """The routes of this protocol version. A number is never used again for something else."""

    OWNERSHIP = 1
    """Notices about seats: offers, and hints that something has changed."""
    CALL = 2
    """A volatile call of an entity."""
    BROADCAST = 3
    """A call of all active entities of a type."""
    MESSAGE = 4
    """A persisted message for its owner."""
    OBSERVE = 5
    """What a runner knows of itself."""
    QUESTION = 6
    """Calls by name, and lists of active entities, for clients that do not have the program."""


class Routes:
    """The handler of a transport: dispatches to the handler of each route."""

    def __init__(self) -> None:
        self._rooms: dict[int, RequestHandler] = {}
        self._asked: dict[int, Callable[[Request], None]] = {}

    def take(self, route: Route, handler: RequestHandler) -> None:
        """Register `handler` for a route."""
        assert route not in self._rooms, f"{route!r} is taken"
        self._rooms[route] = handler
        self._asked[route] = handler.on_request

    def on_request(self, request: Request) -> None:
        """Dispatch a request, or refuse an unknown route: it comes from a newer version."""
        self._asked.get(request.route, _refuse)(request)

    def on_cancel(self, request: Request) -> None:
        """Dispatch a cancellation."""
        if (room := self._rooms.get(request.route)) is not None:
            room.on_cancel(request)

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Dispatch a notice; those on unknown routes are dropped."""
        if (room := self._rooms.get(route)) is not None:
            room.on_notify(peer, route, body, headers)


def _refuse(request: Request) -> None:
    what = f"a request on route {request.route}"
    request.fail(*MalformedMessage(what=what, problem="this runner knows no such route").to_wire())
