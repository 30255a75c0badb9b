"""The proxy between a process and its database: it holds back, resets, refuses and delays as it is told."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from coterie.testing.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator


class Echo:
    """A server that answers what it gets, and remembers it."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.ended = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while data := connection.recv(1000):
                self.got.append(data)
                connection.sendall(b"%d %s" % (connection.getpeername()[1], data))
        self.ended += 1


@pytest.fixture
def echo() -> Iterator[Echo]:
    with closing(Echo()) as echo:
        yield echo


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    proxy = Proxy("127.0.0.1", echo.port)
    proxy.start()
    yield proxy
    proxy.close()


@contextmanager
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=120) as connection:
        yield connection


def ask(connection: socket.socket, what: bytes) -> int:
    """The port from which the server saw the question coming."""
    connection.sendall(what)
    port, said = connection.recv(1000).split()
    assert said == what
    return int(port)


def silent(connection: socket.socket, *, for_s: float = 0.05) -> bool:
    connection.settimeout(for_s)
    try:
        return connection.recv(1000) == b"nothing"
    except TimeoutError:
        return True
    finally:
        connection.settimeout(120)


def test_a_cut_holds_everything_back_and_heals(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as old:
        ask(old, b"one")
        proxy.cut()
        old.sendall(b"two")
        with client(proxy) as new:
            new.sendall(b"three")
            assert silent(old)
            assert silent(new)
            assert echo.got == [b"one"]
            proxy.heal()
            assert old.recv(1000).endswith(b"two")
            assert new.recv(1000).endswith(b"three")


def test_a_cut_of_replies_lets_requests_pass(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.cut("replies")
        connection.sendall(b"two")
        assert silent(connection)
        assert echo.got == [b"one", b"two"]
        proxy.heal()
        assert connection.recv(1000).endswith(b"two")


def test_a_cut_of_requests_lets_replies_pass(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.cut("requests")
        connection.sendall(b"two")
        assert silent(connection)
        assert echo.got == [b"one"]


def test_a_server_does_not_learn_that_a_client_died_behind_a_cut(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.cut()
    time.sleep(0.05)
    assert echo.ended == 0
    proxy.heal()
    deadline = time.monotonic() + 120
    while echo.ended == 0:
        assert time.monotonic() < deadline, "it never learns"
        time.sleep(0.005)


def test_one_session_can_be_cut_alone(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as one, client(proxy) as other:
        session = ask(one, b"one")
        ask(other, b"other")
        proxy.cut(session=session)
        one.sendall(b"more")
        assert silent(one)
        ask(other, b"more")
        with client(proxy) as another:
            ask(another, b"another")
    with pytest.raises(LookupError, match="no connection comes from port 1"):
        proxy.cut(session=1)


def test_a_reset_breaks_what_is_there_and_takes_what_comes(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            connection.recv(1000)
    with client(proxy) as connection:
        ask(connection, b"two")


def test_it_can_refuse_until_it_heals(proxy: Proxy, echo: Echo) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.refuse()
        with pytest.raises(ConnectionResetError):
            connection.recv(1000)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", proxy.port))
    proxy.heal()
    with client(proxy) as connection:
        ask(connection, b"two")


def test_a_delay_works_in_both_directions(proxy: Proxy) -> None:
    with client(proxy) as connection:
        ask(connection, b"one")
        proxy.delay(0.05)
        began = time.monotonic()
        ask(connection, b"two")
        assert time.monotonic() - began >= 0.1


def test_a_server_that_is_not_there_resets_its_clients(proxy: Proxy, echo: Echo) -> None:
    echo.close()
    with pytest.raises(ConnectionResetError), client(proxy) as connection:  # in the connect already, if it is quick
        connection.recv(1000)
