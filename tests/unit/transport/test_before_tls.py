"""Before TLS the same holds as after it: few strangers, little time (incident 41)."""

from __future__ import annotations

import asyncio
import inspect
import socket
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import uvloop

from coterie.transport.listener import Gate
from coterie.transport.tcp import Handshakes
from tests.support.transport import client_context, server_context
from tests.unit.transport.certificate_authority import Authority
from tests.unit.transport.test_tls import REFUSED, unchecked

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path


def in_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test in asyncio's own loop and in uvloop: TLS is a program of its own in each."""

    @pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def run(loop: Callable[[], asyncio.AbstractEventLoop], **given: Any) -> None:
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(test(**given))

    asked = inspect.signature(test)
    loop = inspect.Parameter("loop", inspect.Parameter.KEYWORD_ONLY)
    wanted = asked.replace(parameters=[*asked.parameters.values(), loop])
    vars(run).update(__signature__=wanted)  # what pytest looks at
    run.__name__, run.__doc__ = test.__name__, test.__doc__
    made: Callable[..., None] = run
    return made


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Echo(asyncio.Protocol):
    """Sends back what it hears, and notes in which order it was called."""

    def __init__(self, calls: list[str]) -> None:
        self._calls = calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._calls.append("made")
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._calls.append("data")
        self._transport.write(data)  # type: ignore[attr-defined]  # a stream's, though uvloop's do not inherit

    def connection_lost(self, exc: Exception | None) -> None:
        self._calls.append("lost")


class Server:
    """A listener with a lobby."""

    def __init__(self, gate: Gate, authority: Authority, listener: socket.socket) -> None:
        context = server_context(authority.sign().settings())
        assert context is not None
        self.calls: list[str] = []
        self.gate = gate
        self.listener = listener
        self.port: int = listener.getsockname()[1]
        self.lobby = Handshakes(lambda: context, lambda: Echo(self.calls), gate=gate)
        self.lobby.open(listener)


@asynccontextmanager
async def serving(authority: Authority, gate: Gate | None = None) -> AsyncIterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = Server(gate or Gate(), authority, listener)
        try:
            yield here
        finally:
            await here.lobby.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def idle(port: int) -> socket.socket:
    """A socket that connects and says nothing."""
    opened = socket.socket()
    opened.setblocking(False)
    await asyncio.get_running_loop().sock_connect(opened, ("127.0.0.1", port))
    return opened


async def closed(opened: socket.socket) -> bool:
    try:
        return await asyncio.get_running_loop().sock_recv(opened, 1) == b""
    except ConnectionResetError:
        return True


async def talk(port: int, context: ssl.SSLContext | None, said: bytes = b"hello") -> bytes:
    async with asyncio.timeout(120):
        name = None if context is None else ""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
        try:
            writer.write(said)
            return await reader.readexactly(len(said))
        finally:
            writer.transport.abort()


@in_both_loops
async def test_what_a_client_says_at_once_arrives_whole_and_in_order(authority: Authority) -> None:
    said = bytes(range(256)) * 1000
    context = client_context(authority.sign().settings())
    async with serving(authority) as here:
        for _ in range(20):
            assert await talk(here.port, context, said) == said
        await until(lambda: here.calls.count("lost") == 20)
        assert here.calls[0] == "made"
        assert here.calls.count("made") == 20
        assert here.gate.counts == {"admitted": 20}


@in_both_loops
async def test_a_socket_that_never_begins_tls_is_closed_in_time(authority: Authority) -> None:
    async with serving(authority, Gate(within_s=0.05)) as here:
        with await idle(here.port) as opened:
            async with asyncio.timeout(120):
                assert await closed(opened)
        assert here.gate.counts == {"late": 1}
        assert here.calls == []


@in_both_loops
async def test_idle_sockets_keep_nobody_out_before_tls(authority: Authority) -> None:
    context = client_context(authority.sign().settings())
    async with serving(authority, Gate(most=4)) as here:
        sockets = [await idle(here.port) for _ in range(12)]
        try:
            assert await talk(here.port, context) == b"hello"
            await until(lambda: here.gate.counts["crowded"] >= 8)
            assert here.gate.waiting <= 4
            assert await closed(sockets[0])
        finally:
            for opened in sockets:
                opened.close()


@pytest.mark.parametrize("who", ["no certificate", "foreign", "expired", "no TLS"])
@in_both_loops
async def test_strangers_are_refused_and_no_protocol_is_made_for_them_incident_41(
    authority: Authority, tmp_path: Path, who: str
) -> None:
    contexts: dict[str, Callable[[], ssl.SSLContext | None]] = {
        "no certificate": lambda: unchecked(None, ca=authority.file),
        "foreign": lambda: unchecked(Authority(tmp_path, "foreign").sign(), ca=authority.file),
        "expired": lambda: unchecked(authority.sign(ends=timedelta(minutes=-1)), ca=authority.file),
        "no TLS": lambda: None,
    }
    async with serving(authority) as here:
        with pytest.raises(REFUSED):
            await talk(here.port, contexts[who]())
        await until(lambda: here.gate.waiting == 0)
        assert here.calls == []
        assert here.gate.counts["admitted"] == 0


@in_both_loops
async def test_closing_the_lobby_closes_all_that_wait(authority: Authority) -> None:
    async with serving(authority) as here:
        opened = await idle(here.port)
        await until(lambda: here.gate.waiting == 1)
        await here.lobby.close()
        assert here.gate.waiting == 0
        with opened:
            assert await closed(opened)


@in_both_loops
async def test_closing_the_lobby_closes_what_was_accepted_in_the_same_moment(authority: Authority) -> None:
    """A socket whose task had no time to begin belongs to nobody else."""
    for turns in range(8):
        async with serving(authority) as here:
            with await idle(here.port) as opened:
                for _ in range(turns):
                    await asyncio.sleep(0)
                await here.lobby.close()
                here.listener.close()
                async with asyncio.timeout(120):
                    assert await closed(opened)
