"""Peers: which connection stays, how long the unreachable are left alone, what an attempt has shown."""

from __future__ import annotations

import asyncio
import ssl
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigurationError, RunnerUnavailable
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.transport.handshake import OtherIncarnation
from coterie.transport.identity import Identity
from coterie.transport.interface import PeerAddress, TransportLimits
from coterie.transport.peers import KnownPeers, PeerErrors, Peers, preferred, presence, problem_of
from coterie.transport.protocol import Refused
from coterie.transport.tcp import TcpWire
from tests.unit.transport.single_connection import Answering

if TYPE_CHECKING:
    from coterie.transport.connection import Connection


class Fake:
    """What a roster sees of a connection."""

    def __init__(self, *, is_ours: bool, peer: str = "b") -> None:
        self.is_ours, self.peer = is_ours, peer
        self.is_usable = True
        self.was_told = False
        self.pings = 0
        self.retired: list[str] = []
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def ping(self) -> None:
        self.pings += 1

    def retire(self, reason: str) -> None:
        self.is_usable = False
        self.retired.append(reason)


def roster(me: str, gone: list[str]) -> Any:
    return cast("Any", KnownPeers(me, lambda peer, _: gone.append(peer)))


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["ours first", "theirs first"])
@pytest.mark.parametrize("me", ["a", "c"], ids=["we precede", "they precede"])
async def test_both_sides_keep_the_one_that_the_smaller_opened(me: str, order: tuple[bool, bool]) -> None:
    gone: list[str] = []
    table = roster(me, gone)
    fakes = {ours: Fake(is_ours=ours) for ours in order}
    for ours in order:
        table.admit(fakes[ours])
    we_precede = me < "b"
    assert table.find("b") is fakes[we_precede]
    assert bool(fakes[True].retired) is not we_precede, "whoever opened the other one retires it"
    assert fakes[order[0]].pings == 1, "the older one may be dead without our knowing"
    table.lost(fakes[we_precede], Refused("gone"))
    assert gone == []
    if we_precede:
        assert table.find("b") is fakes[False]
    table.lost(fakes[not we_precede], Refused("gone"))
    assert gone == ["b"]
    assert table.current == {}


async def test_a_peer_that_said_goodbye_is_not_reported_as_lost() -> None:
    gone: list[str] = []
    table = roster("a", gone)
    only_looked = Fake(is_ours=False)
    table.admit(only_looked)
    only_looked.was_told = True
    table.lost(only_looked, Refused("it said goodbye"))
    assert (gone, table.current) == ([], {})


@given(st.lists(st.booleans(), min_size=1), st.booleans())
def test_both_sides_prefer_the_same_one(openers: list[bool], ours: bool) -> None:
    class End:
        def __init__(self, number: int, is_ours: bool) -> None:
            self.number, self.is_ours = number, is_ours

    here = [cast("Connection", End(number, mine)) for number, mine in enumerate(openers)]
    there = [cast("Connection", End(number, not mine)) for number, mine in enumerate(openers)]
    one, other = preferred(here, ours=ours), preferred(there, ours=not ours)
    assert cast("Any", one).number == cast("Any", other).number


def test_the_unreachable_are_left_alone_for_longer_and_longer_with_jitter() -> None:
    troubles = PeerErrors(Random(1), first_s=0.1, most_s=1.0)
    now_s, waits = 0.0, []
    for _ in range(8):
        assert troubles.of("peer", now_s) is None
        troubles.add("peer", "nobody listens", now_s)
        began_s = now_s
        while (problem := troubles.of("peer", now_s)) is not None:
            assert "nobody listens (tried again in" in problem
            now_s += 0.001
        waits.append(now_s - began_s)
    assert 0.05 <= waits[0] <= 0.11
    assert all(0.49 <= wait_s <= 1.01 for wait_s in waits[5:])
    assert any(abs(a - b) > 0.01 for a, b in pairwise(waits[5:])), "jitter"
    troubles.over("peer")
    assert troubles.of("peer", now_s) is None


def test_troubles_are_bounded() -> None:
    troubles = PeerErrors(Random(1), first_s=0.1, most_s=1.0)
    for number in range(5_000):
        troubles.add(f"peer {number}", "x", 0.0)
    assert len(troubles) <= 1_024
    assert troubles.of("peer 4999", 0.0) is not None


@pytest.mark.parametrize(
    ("error", "shown", "said"),
    [
        (None, "present", None),
        (OtherIncarnation(expected="a", found="b"), "other", "b answers at its address"),
        (ConnectionRefusedError(), "refused", "nobody listens on 10.0.0.5:7"),
        (Refused("it does not know the secret"), "stranger", "10.0.0.5:7: it does not know the secret"),
        (ssl.SSLError("bad certificate"), "stranger", "bad certificate"),
        (TimeoutError(), "silent", "no answer from 10.0.0.5:7"),
        (OSError("no route to host"), "silent", "no route to host"),
    ],
    ids=str,
)
def test_what_an_attempt_has_shown_m2(error: Exception | None, shown: str, said: str | None) -> None:
    assert presence(error) == shown
    if error is not None and said is not None:
        assert said in problem_of(error, "10.0.0.5:7")


def transport(name: str, *, limits: TransportLimits | None = None) -> Peers:
    async def secrets() -> list[bytes]:
        return [bytes(32)]

    return Peers(
        me=Identity("cluster", name),
        wire=TcpWire(Settings.load({"url": "sqlite://"}, environ={})),
        handler=Answering(),
        secrets=secrets,
        chance=Random(),
        limits=limits,
    )


async def test_connections_are_bounded() -> None:
    async with (
        transport("a", limits=TransportLimits(peers=2)) as a,
        transport("b") as b,
        transport("c") as c,
        transport("d") as d,
    ):
        await a.connect(PeerAddress(b.address or "", "b"))
        await a.connect(PeerAddress(c.address or "", "c"))
        with pytest.raises(RunnerUnavailable, match="there are 2 connections already"):
            await a.connect(PeerAddress(d.address or "", "d"))


async def test_a_process_does_not_connect_to_itself() -> None:
    async with transport("a") as a:
        with pytest.raises(RunnerUnavailable, match="it is this very process"):
            await a.request(PeerAddress(a.address or "", "a"), 1, b"", within_s=5)


async def test_a_peer_that_cannot_be_reached_is_told_with_what_the_request_was_for() -> None:
    async with transport("a") as a:
        with pytest.raises(
            RunnerUnavailable, match="runner b cannot be reached for Account/alice: it is not connected"
        ):
            await a.request(PeerAddress("", "b"), 1, b"", within_s=5, target="Account/alice")
        with pytest.raises(RunnerUnavailable, match="cannot be reached for a request"):
            await a.request(PeerAddress("", "b"), 1, b"", within_s=5)
        with pytest.raises(RunnerUnavailable, match="cannot be reached for Account/alice"):
            await anext(a.stream(PeerAddress("", "b"), 1, b"", within_s=5, target="Account/alice").__aiter__())


async def test_a_callback_that_fails_costs_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    async with transport("a") as a, transport("b") as b:
        lost: list[str] = []
        a.on_lost(lambda peer, problem: [][1])
        a.on_lost(lambda peer, problem: lost.append(peer))
        await a.connect(PeerAddress(b.address or "", "b"))
        for connection in b._known.everyone:  # as a crash does: without a goodbye
            assert connection._transport is not None
            connection._transport.abort()
        async with asyncio.timeout(120):
            while not lost:
                await asyncio.sleep(0.001)
        assert lost == ["b"]
        assert "a callback failed" in caplog.text


async def test_a_port_in_use_is_told_and_the_transport_is_stopped() -> None:
    async with transport("a") as a:
        port = (a.address or "").rpartition(":")[2]
        other = transport("b")
        other._wire = TcpWire(Settings.load({"url": "sqlite://", "listen": f"127.0.0.1:{port}"}, environ={}))
        with pytest.raises(ConfigurationError, match="another process listens on this port"):
            await other.start()
