"""Where to listen: the address of `http_listen`, or the next free port if nobody has chosen one."""

from __future__ import annotations

import errno
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.settings.parsers import split_address

if TYPE_CHECKING:
    from coterie.settings import Settings

TRIED_MOST = 100
"""Ports that are tried, the default one and those after it: more runners on one machine choose their own."""


@dataclass(frozen=True, slots=True)
class Bound:
    """A socket that listens on its port; nobody accepts yet."""

    socket: socket.socket
    host: str
    port: int
    wanted: int
    """The port that was asked for."""

    @property
    def url(self) -> str:
        """Where to find it."""
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"

    @property
    def was_taken(self) -> bool:
        """Whether the port that was asked for was somebody else's."""
        return self.wanted not in (0, self.port)


def bind(settings: Settings, *, number: int = 1) -> Bound:
    """Take the port of `http_listen`, or the next free one if nobody has chosen it.

    Args:
        settings: They say which.
        number: Which one it is of several processes of these settings. The first one takes the port itself; the others
            look for a free one from their own place after it on, so that they never take the first one's.

    Raises:
        ConfigurationError: It was chosen and is taken, or cannot be had at all.
    """
    assert settings.http_listen is not None, "off serves nothing"
    host, wanted = split_address(settings.http_listen)
    may_move = wanted != 0 and (number > 1 or settings.origin("http_listen") == "default")
    wanted += number - 1 if may_move else 0
    ports = range(wanted, min(wanted + TRIED_MOST, 65536)) if may_move else [wanted]
    for port in ports:
        try:
            opened = _bind(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise _refusal(settings, f"it cannot be bound, {error.strerror or error}") from None
        else:
            name, bound = opened.getsockname()[:2]
            return Bound(opened, host=name, port=bound, wanted=wanted)
    raise _refusal(settings, "this port is taken" + (f", and {len(ports) - 1} after it, too" if len(ports) > 1 else ""))


def _bind(host: str, port: int) -> socket.socket:
    # A name that leads to several addresses gets one listener, at the first of them.
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen()  # else two could bind it, and the second one would only learn when it listens
    except BaseException:
        opened.close()
        raise
    return opened


def _refusal(settings: Settings, problem: str) -> ConfigurationError:
    return ConfigurationError(
        problem=f"http_listen is {settings.http_listen}: {problem}",
        hint="choose another port, 0 for any free one, or off to serve neither probes nor metrics",
    )
