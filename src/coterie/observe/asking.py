"""Asking runners what they know of themselves, and answering those who ask."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from coterie.errors import CoterieError
from coterie.observe.facts import LocalFacts
from coterie.ownership.directory import peer_of
from coterie.transport.routes import Route

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.storage.interface import RunnerRow
    from coterie.transport.interface import Request, Transport

WITHIN_S = 0.5
"""How long a runner has to answer: it has everything at hand. One that takes longer is busy with something else."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LocalFacts).decode


class Answering:
    """The handler of the route: it tells whoever asks. Needs nobody, so that it answers as long as the loop turns.

    Args:
        facts: What there is to tell.
    """

    def __init__(self, facts: Callable[[], LocalFacts]) -> None:
        self._facts = facts

    def on_request(self, request: Request) -> None:
        """Tell it."""
        request.reply(_encode(self._facts()))

    def on_cancel(self, request: Request) -> None:
        """It was answered at once."""

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """There are none on this route."""


async def ask(transport: Transport, runner: RunnerRow, *, within_s: float = WITHIN_S) -> LocalFacts | None:
    """What a runner says of itself; None: it did not answer in time, or not in words that are known here."""
    try:
        async with asyncio.timeout(within_s):
            target = f"the facts of {runner.name}"
            return _decode(
                await transport.request(peer_of(runner), Route.OBSERVE, b"", within_s=within_s, target=target)
            )
    except (CoterieError, TimeoutError, msgspec.DecodeError):  # a ValidationError is one
        return None
