"""The door: few strangers, little time, few lines (P13)."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

import pytest

from coterie.settings import Settings
from coterie.transport.listener import Gate, Plug, in_the_clear, tune, warn_in_the_clear
from tests.support.loop_time import LoopTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.transport.listener import PendingSocket


class Sockets:
    """Stand-ins that note who was aborted."""

    def __init__(self) -> None:
        self.aborted: list[int] = []

    def enter(self, gate: Gate, number: int) -> PendingSocket:
        return gate.enter(f"10.0.0.{number}", lambda: self.aborted.append(number))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def test_a_stranger_has_5_seconds_and_nothing_prolongs_them() -> None:
    assert (Gate()._most, Gate()._within_s) == (64, 5.0)
    sockets, gate = Sockets(), Gate(within_s=0.05)
    began = asyncio.get_running_loop().time()
    sockets.enter(gate, 1)
    async with LoopTime() as taken:
        await until(lambda: sockets.aborted == [1])
    assert asyncio.get_running_loop().time() - began >= 0.04
    assert taken.seconds < 5
    assert gate.counts == {"late": 1}
    assert gate.waiting == 0


async def test_whoever_proves_itself_is_let_in_and_its_time_no_longer_runs() -> None:
    sockets, gate = Sockets(), Gate(within_s=0.01)
    sockets.enter(gate, 1).admitted()
    late = sockets.enter(gate, 2)
    await until(lambda: sockets.aborted == [2])
    late.refused("too late to count twice")
    assert gate.counts == {"admitted": 1, "late": 1}


async def test_there_are_64_strangers_at_most_and_the_oldest_makes_room() -> None:
    sockets, gate = Sockets(), Gate()
    for number in range(64):
        sockets.enter(gate, number)
    assert sockets.aborted == []
    sockets.enter(gate, 64).admitted()
    assert sockets.aborted == [0]
    assert gate.waiting == 63
    assert gate.counts == {"crowded": 1, "admitted": 1}
    gate.close()
    assert gate.waiting == 0


async def test_a_thousand_idle_sockets_keep_nobody_out() -> None:
    """Slow loris: they push out each other; one of ours, which takes a moment, gets in."""
    sockets, gate = Sockets(), Gate()
    for number in range(1000):
        sockets.enter(gate, number)
    door = sockets.enter(gate, 1000)
    for number in range(1001, 1033):  # they go on while ours shakes hands
        sockets.enter(gate, number)
    door.admitted()
    assert 1000 not in sockets.aborted
    assert gate.waiting <= 64
    gate.close()


async def test_an_end_counts_once() -> None:
    sockets, gate = Sockets(), Gate()
    door = sockets.enter(gate, 1)
    door.left()
    door.refused("it does not know the secret")
    door.admitted()
    assert gate.counts == {"left": 1}


async def test_refusals_are_told_at_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    sockets, gate = Sockets(), Gate(every_s=0.02)
    for number in range(40):
        sockets.enter(gate, number).refused("it does not know the secret of this cluster")
    assert caplog.messages == ["a connection from 10.0.0.0 is refused: it does not know the secret of this cluster"]
    await until(lambda: len(caplog.messages) == 2)
    assert caplog.messages[1] == (
        "39 more connections were refused, the last from 10.0.0.39: it does not know the secret of this cluster"
    )
    assert gate.counts == {"refused": 40}
    gate.close()


async def test_what_was_not_told_yet_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    sockets, gate = Sockets(), Gate()
    for number in range(3):
        sockets.enter(gate, number).refused("why")
    gate.close()
    assert caplog.messages[1:] == ["2 more connections were refused, the last from 10.0.0.2: why"]


async def test_those_who_leave_by_themselves_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """A load balancer that looks whether the port is open does so each second."""
    sockets, gate = Sockets(), Gate()
    sockets.enter(gate, 1).left()
    assert caplog.messages == []


def load(**overrides: Any) -> Settings:
    return Settings.load(overrides, environ={})


TLS = {"tls_cert": "c.pem", "tls_key": "k.pem", "tls_ca": "ca.pem"}


@pytest.mark.parametrize(
    ("address", "tls", "warned"),
    [("127.0.0.1:1", {}, False), ("10.0.0.5:1", {}, True), ("0.0.0.0:1", {}, True), ("0.0.0.0:1", TLS, False)],
)
def test_off_loopback_without_tls_a_start_warns(
    address: str, tls: dict[str, str], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    warn_in_the_clear(load(**tls), address)
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * warned
    assert ("payloads travel in the clear" in (in_the_clear(load(**tls), address) or "")) is warned


def test_sockets_notice_a_dead_peer_and_do_not_wait_for_more() -> None:
    with socket.socket() as opened:
        tune(opened)
        assert opened.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5
        assert opened.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 10_000
    one, other = socket.socketpair()
    with one, other:
        tune(one)  # a Unix socket has none of these


def test_a_forked_child_keeps_neither_listener_nor_connection_p13() -> None:
    """M2: else the port accepts, and the peer waits, after the runner's death."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as closed:
        pulled = Plug(closed)
        pulled.pull()
        plug = Plug(listener)
        child = os.fork()
        if child == 0:  # nothing of pytest may run here
            import stat

            is_socket = stat.S_ISSOCK(os.fstat(listener.fileno()).st_mode)
            kept = stat.S_ISSOCK(os.fstat(closed.fileno()).st_mode)
            os._exit(10 * is_socket + (not kept))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        with socket.create_connection(listener.getsockname(), timeout=120):
            listener.accept()[0].close()  # the parent's goes on
        assert plug.fileno() == listener.fileno()
