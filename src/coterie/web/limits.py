"""What one request may cost: connections that say nothing, say it slowly, or come by the thousand are closed."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

ASKED_WITHIN_S = 5.0
"""From the first byte, or none, to the end of a request; nothing prolongs it."""

READ_WITHIN_S = 10.0
"""How long the other end may let an answer wait that it asked for."""

KEPT_S = 15
"""How long a connection may wait for its next request: scrapers and kubelets come each ten seconds."""

CONNECTIONS_MOST = 64
"""Open at once. A newcomer pushes out whoever has waited longest without being answered: a probe always gets in."""

HEAD_MOST_BYTES = 16 * 1024
"""Of a request before its body, which nobody reads."""

_numbers = itertools.count(1)


class Bounded(H11Protocol):
    """uvicorn's protocol, which has a limit for idle connections between two requests, and none before the first."""

    number = 0
    """Later ones are larger."""
    _deadline: asyncio.TimerHandle | None = None
    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Make room for it if there are too many; then it has to ask soon."""
        super().connection_made(transport)
        self.number = next(_numbers)
        if len(self.connections) > CONNECTIONS_MOST:
            self._make_room()
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Part of a request, or the rest of it."""
        if self._deadline is None and self._is_open:
            self._expect()
        super().data_received(data)
        if not self._is_open:
            self._forget()

    def pause_writing(self) -> None:
        """The other end does not read what it asked for."""
        super().pause_writing()
        self._patience = asyncio.get_running_loop().call_later(READ_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._calm_down()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody asks any more."""
        self._forget()
        self._calm_down()
        super().connection_lost(exc)

    @property
    def _is_open(self) -> bool:
        """Whether a request is not complete."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY)

    @property
    def waits(self) -> bool:
        """Whether nothing is being answered on it."""
        cycle: Any = self.cycle  # None before the first request
        return cycle is None or cycle.response_complete

    def _make_room(self) -> None:
        # What is closing is counted until the loop has told it so, which may be after many more have come.
        left = [each for each in self.connections if isinstance(each, Bounded) and not each.transport.is_closing()]
        if len(left) > CONNECTIONS_MOST:
            min((each for each in left if each.waits), key=lambda each: each.number).transport.abort()

    def _expect(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(ASKED_WITHIN_S, self.transport.abort)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _calm_down(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
