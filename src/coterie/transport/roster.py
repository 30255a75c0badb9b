"""All connections of a process, and which of them is the one for each peer.

Usually there is one. Two runners that call each other at the same moment open two; both keep the one that the smaller
incarnation opened, and whoever opened the other one retires it: what is under way on it is finished first. Should the
kept one be dead without our knowing, a ping finds out, and the other takes its place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.transport.connection import Connection


class Roster:
    """The connections.

    Args:
        me: This process's incarnation.
        gone: Called with a peer and the reason when its last connection is lost without a goodbye of the peer's.
    """

    def __init__(self, me: str, gone: Callable[[str, Exception], None]) -> None:
        self.everyone: dict[
            Connection, None
        ] = {}  # with a socket, strangers too; not a set, whose order does not repeat
        self.current: dict[str, Connection] = {}
        self._me = me
        self._gone = gone
        self._peers: dict[str, list[Connection]] = {}  # open ones, oldest first

    def add(self, connection: Connection) -> None:
        """A connection is being made."""
        self.everyone[connection] = None
        connection.gone.add_done_callback(lambda _: self.everyone.pop(connection, None))

    def admit(self, connection: Connection) -> None:
        """A connection has opened."""
        peers = self._peers.setdefault(connection.peer, [])
        for other in peers:
            other.ping()
        peers.append(connection)
        kept = self.find(connection.peer)
        for other in peers:
            if kept is not None and other.is_ours and not kept.is_ours and other.is_usable:
                other.retire("both sides opened a connection")

    def lost(self, connection: Connection, error: Exception) -> None:
        """A connection is lost."""
        peers = self._peers.get(connection.peer, [])
        if connection in peers:
            peers.remove(connection)
            self.find(connection.peer)
            if not peers:
                del self._peers[connection.peer]
                if not connection.was_told:
                    self._gone(connection.peer, error)

    def of(self, peer: str) -> list[Connection]:
        """The open connections to a peer."""
        return list(self._peers.get(peer, ()))

    def find(self, peer: str) -> Connection | None:
        """The connection to use for a peer, which becomes the current one."""
        usable = [connection for connection in self._peers.get(peer, ()) if connection.is_usable]
        if not usable:
            self.current.pop(peer, None)
            return None
        self.current[peer] = found = preferred(usable, ours=self._me < peer)
        return found


def preferred(connections: list[Connection], *, ours: bool) -> Connection:
    """The one to use: of the side that has precedence, the oldest; both sides find the same one."""
    return next((connection for connection in connections if connection.is_ours is ours), connections[0])
