"""Real peers that are killed or frozen with calls in flight: every call ends, and says whether it can have run.

Run as a script this file is the peer: `python test_transport_processes.py plain|sealed`.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import RunnerUnavailable, SendTimeout
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress, TransportLimits
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from coterie.transport.interface import Request

ECHO, KEEP, COUNT = 1, 2, 3
THERE, HERE = "1" * 32, "2" * 32
LONG_S = 600.0  # no call of these tests ends by this deadline
PROMPT_S = 120.0  # far below it, and far above what a loaded machine needs


class EchoHandler:
    """Echoes, keeps without an answer, or tells how many it keeps."""

    def __init__(self) -> None:
        self.kept: list[Request] = []

    def on_request(self, request: Request) -> None:
        if request.route == KEEP:
            self.kept.append(request)
        else:
            request.reply(request.body if request.route == ECHO else b"%d" % len(self.kept))

    def on_cancel(self, request: Request) -> None:
        """Nothing to stop."""

    def on_notify(self, peer: str, route: int, body: bytes, headers: Mapping[str, str]) -> None:
        """Nothing to do."""


class Sealed(TcpWire):
    """Loopback taken for a foreign network."""

    def made(self, transport: asyncio.BaseTransport) -> bool:
        super().made(transport)
        return True


def transport(shield: str, incarnation: str, *, limits: TransportLimits | None = None) -> Peers:
    async def secrets() -> list[bytes]:
        return [b"the cluster's secret, of 32 bytes"]

    return Peers(
        me=Identity("processes", incarnation),
        wire=(Sealed if shield == "sealed" else TcpWire)(Settings.load({"url": "sqlite://"}, environ={})),
        handler=EchoHandler(),
        secrets=secrets,
        chance=Random(),
        limits=limits,
        listens=incarnation == THERE,
    )


class Peer:
    """The other process, and our way to it."""

    def __init__(self, process: asyncio.subprocess.Process, address: str, client: Peers) -> None:
        self.process = process
        self.address = PeerAddress(address, THERE)
        self.client = client

    def request(self, route: int, body: bytes = b"", *, within_s: float = LONG_S) -> asyncio.Future[Any]:
        """The reply or the error, of a call that is under way."""
        call = self.client.request(self.address, route, body, within_s=within_s, target="Account/alice")
        return asyncio.gather(call, return_exceptions=True)

    async def keeps(self, count: int) -> None:
        """Wait until it has so many calls."""
        async with asyncio.timeout(PROMPT_S):
            while (await self.request(COUNT))[0] != b"%d" % count:
                await asyncio.sleep(0.001)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)


@asynccontextmanager
async def peer(shield: str = "plain", *, limits: TransportLimits | None = None) -> AsyncIterator[Peer]:
    """A peer in a process of its own, killed at the end if it still lives."""
    process = await asyncio.create_subprocess_exec(sys.executable, __file__, shield, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PROMPT_S):
            address = (await process.stdout.readline()).decode().strip()
        async with transport(shield, HERE, limits=limits) as client:
            yield Peer(process, address, client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("shield", ["plain", "sealed"])
async def test_a_killed_peer_ends_every_call_in_flight_promptly(shield: str) -> None:
    async with peer(shield) as other:
        calls = [other.request(KEEP, b"%d" % number) for number in range(1_000)]
        await other.keeps(1_000)
        assert not any(call.done() for call in calls)
        other.signal(signal.SIGKILL)
        async with asyncio.timeout(PROMPT_S):
            errors = [error for call in calls for error in await call]
        assert {type(error) for error in errors} == {RunnerUnavailable}
        assert {error.sent for error in errors} == {True}, "each may have run"
        assert {error.target for error in errors} == {"Account/alice"}
        (later,) = await other.request(ECHO)
        assert isinstance(later, RunnerUnavailable)
        assert not later.sent
        assert "nobody listens" in later.problem


@pytest.mark.parametrize("shield", ["plain", "sealed"])
async def test_a_peer_killed_at_a_random_moment_leaves_no_call_hanging(shield: str) -> None:
    chance = random.Random(39)
    for _ in range(5):
        async with peer(shield) as other:
            await other.client.connect(other.address)
            replies, errors = await under_fire(other, after=chance.randint(1, 3_000), callers=50)
        assert replies > 0, "the peer was killed before it could answer: the test shows nothing"
        assert {type(error) for error in errors} == {RunnerUnavailable}
        assert len(errors) == 50, "each caller is told, once"


async def under_fire(other: Peer, *, after: int, callers: int) -> tuple[int, list[Any]]:
    """Let callers echo until they get an error; kill the peer after so many replies."""
    replies = 0

    async def caller(number: int) -> Any:
        nonlocal replies
        while True:
            body = b"%d of %d" % (replies, number) + bytes(number * 40)
            (outcome,) = await other.request(ECHO, body)
            if outcome != body:
                return outcome
            replies += 1
            if replies == after:
                other.signal(signal.SIGKILL)

    async with asyncio.timeout(PROMPT_S):
        errors = await asyncio.gather(*(caller(number) for number in range(callers)))
    return replies, errors


async def test_a_frozen_peer_is_found_by_its_missing_pulse_and_used_again_when_it_goes_on() -> None:
    limits = TransportLimits(ping_s=1.0, pings=3, connect_s=2.0, backoff_s=0.01, backoff_most_s=0.05)
    async with peer(limits=limits) as other:
        calls = [other.request(KEEP) for _ in range(100)]
        await other.keeps(100)
        other.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(PROMPT_S):
                errors = [error for call in calls for error in await call]
            assert {(type(error), error.sent) for error in errors} == {(RunnerUnavailable, True)}
            assert {error.problem for error in errors} == {"nothing heard from it for 4s"}
            assert await other.client.probe(other.address) == "silent"
            (later,) = await other.request(ECHO)  # its system still accepts, and nobody says anything
            assert isinstance(later, RunnerUnavailable)
            assert not later.sent
        finally:
            other.signal(signal.SIGCONT)
        async with asyncio.timeout(PROMPT_S):
            while (await other.request(ECHO, b"again"))[0] != b"again":
                await asyncio.sleep(0.01)


async def test_a_call_to_a_frozen_peer_ends_at_its_deadline_before_the_pulse_does() -> None:
    async with peer(limits=TransportLimits(ping_s=LONG_S)) as other:
        assert await other.request(ECHO, b"first") == [b"first"]
        other.signal(signal.SIGSTOP)
        try:
            async with asyncio.timeout(PROMPT_S):
                (error,) = await other.request(ECHO, within_s=0.3)
            assert isinstance(error, SendTimeout)
            assert error.target == f"Account/alice on runner {THERE}"
        finally:
            other.signal(signal.SIGCONT)
        assert await other.request(ECHO, b"again") == [b"again"], "the connection is still good"


async def serve(shield: str) -> None:
    async with transport(shield, THERE) as server:
        print(server.address, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
