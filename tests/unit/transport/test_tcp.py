"""The wire of production: which connections are sealed, and which address others are told."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie.errors import ConfigurationError, RunnerUnavailable
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress
from coterie.transport.peers import Peers
from coterie.transport.tcp import TcpWire
from tests.unit.transport.certificate_authority import Authority
from tests.unit.transport.single_connection import Answering

if TYPE_CHECKING:
    from pathlib import Path


def wire(**settings: Any) -> TcpWire:
    return TcpWire(Settings.load({"url": "sqlite://", **settings}, environ={}))


def transport(name: str, using: TcpWire) -> Peers:
    async def secrets() -> list[bytes]:
        return [bytes(32)]

    return Peers(me=Identity("cluster", name), wire=using, handler=Answering(), secrets=secrets, chance=Random())


class Pretender(asyncio.Transport):
    """A socket on loopback that says it comes from elsewhere: nothing of ours may listen elsewhere."""

    def __init__(self, real: asyncio.BaseTransport, host: str) -> None:
        super().__init__()
        self._real, self._host = real, host

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return (self._host, 1) if name == "peername" else self._real.get_extra_info(name, default)


class Abroad(TcpWire):
    """All of its peers are on another host, if one believes their sockets."""

    host = "10.0.0.5"

    def made(self, transport: asyncio.BaseTransport) -> bool:
        return super().made(Pretender(transport, self.host))


@pytest.mark.parametrize(
    ("host", "sealed"),
    [
        ("10.0.0.5", True),
        ("8.8.8.8", True),
        ("fd00::5", True),
        ("::ffff:10.0.0.5", True),
        ("127.0.0.1", False),
        ("127.8.8.8", False),
        ("::1", False),
        ("::ffff:127.0.0.1", False),
    ],
)
async def test_what_leaves_the_host_is_sealed_and_what_does_not_is_not(host: str, sealed: bool) -> None:
    seen: list[bool] = []

    class Noted(Abroad):
        def made(self, transport: asyncio.BaseTransport) -> bool:
            seen.append(super().made(transport))
            return seen[-1]

    Noted.host = host
    async with transport("a", Noted(settings())) as a, transport("b", Noted(settings())) as b:
        await a.connect(PeerAddress(b.address or "", "b"))
        assert seen == [sealed, sealed], "both ends"
        (connection,) = a._known.everyone
        assert (connection._out.sealer is not None) is (connection._opener is not None) is sealed


async def test_if_one_end_asks_for_seals_both_seal() -> None:
    """Behind a proxy one end may see loopback and the other not: the careful one decides."""
    for asks, does_not in ((Abroad(settings()), wire()), (wire(), Abroad(settings()))):
        async with transport("a", asks) as a, transport("b", does_not) as b:
            await a.connect(PeerAddress(b.address or "", "b"))
            (connection,) = a._known.everyone
            assert connection._out.sealer is not None


async def test_a_connection_that_was_reset_before_it_was_made_is_lost_and_nothing_worse() -> None:
    """Its socket does not know any more where it led."""

    class Reset(Pretender):
        def get_extra_info(self, name: str, default: Any = None) -> Any:
            return None if name == "peername" else super().get_extra_info(name, default)

    class Resetting(TcpWire):
        def made(self, transport: asyncio.BaseTransport) -> bool:
            cast("asyncio.Transport", transport).abort()
            return super().made(Reset(transport, ""))

    async with transport("a", Resetting(settings())) as a, transport("b", wire()) as b:
        with pytest.raises(RunnerUnavailable, match="closed"):
            await a.connect(PeerAddress(b.address or "", "b"))


async def test_under_tls_nothing_is_sealed_twice(tmp_path: Path) -> None:
    files = vars(Authority(tmp_path).sign())
    async with transport("a", Abroad(settings(**files))) as a, transport("b", Abroad(settings(**files))) as b:
        await a.connect(PeerAddress(b.address or "", "b"))
        (connection,) = a._known.everyone
        assert connection._out.sealer is None


def settings(**more: Any) -> Settings:
    return Settings.load({"url": "sqlite://", **more}, environ={})


async def test_others_are_told_what_advertise_says_and_not_what_is_listened_on() -> None:
    async with transport("b", wire(listen="127.0.0.1:0", advertise="10.0.0.5:7700")) as b, transport("a", wire()) as a:
        assert b.address == "10.0.0.5:7700"
        using = b._wire
        assert isinstance(using, TcpWire)
        assert using._listener is not None
        host, port = using._listener.getsockname()[:2]
        assert host == "127.0.0.1"
        await a.connect(PeerAddress(f"{host}:{port}", "b"))


async def test_without_advertise_others_are_told_the_address_and_the_port_that_was_free() -> None:
    async with transport("b", wire(listen="127.0.0.2:0")) as b, transport("a", wire()) as a:
        assert b.address is not None
        assert b.address.startswith("127.0.0.2:")
        await a.connect(PeerAddress(b.address, "b"))


async def test_an_advertised_name_keeps_the_runner_from_starting_and_nothing_listens_any_more_m2() -> None:
    using = wire(listen="127.0.0.1:0", advertise="web-1.internal:7700")
    with pytest.raises(ConfigurationError, match="a name"):
        await transport("b", using).start()
    assert using._listener is not None
    assert using._listener.fileno() == -1


async def test_a_port_that_another_process_has_is_named_with_what_to_do() -> None:
    first = wire()
    address = await first.listen(asyncio.Protocol)
    try:
        taken = wire(listen=address)
        with pytest.raises(
            ConfigurationError, match=f"listen is {address}: another process listens on this port"
        ) as told:
            await taken.listen(asyncio.Protocol)
        assert "port 0 takes a free one" in told.value.hint
        await taken.close()
    finally:
        await first.close()


@pytest.mark.parametrize(
    ("listen", "problem"),
    [("192.0.2.1:0", "this host has no such address"), ("nobody.invalid:0", "listen is nobody.invalid:0: ")],
)
async def test_an_address_that_cannot_be_listened_on_is_refused_by_name(listen: str, problem: str) -> None:
    elsewhere = wire(listen=listen, advertise="192.0.2.1:7650", secret="0123456789abcdefghijklmnopqrstuv")
    with pytest.raises(ConfigurationError, match=problem):
        await elsewhere.listen(asyncio.Protocol)
    await elsewhere.close()
