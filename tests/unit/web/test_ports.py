"""Where HTTP listens: the default port moves if it is taken, a chosen one does not."""

from __future__ import annotations

import socket
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import pytest

from coterie import ConfigurationError, Settings
from coterie.web import server
from coterie.web.server import bind

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def somebody_elses() -> Iterator[int]:
    """A port that is taken, with free ones after it as likely as not."""
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        yield taken.getsockname()[1]


def by_default(port: int) -> Settings:
    """Settings that nobody has chosen, with another port than 7650, which may be in use on this machine."""
    settings = Settings.load({}, environ={})
    object.__setattr__(settings, "http_listen", f"127.0.0.1:{port}")
    assert settings.origin("http_listen") == "default"
    return settings


def test_the_default_port_moves_to_the_next_free_one() -> None:
    with somebody_elses() as port:
        bound = bind(by_default(port))
        with closing(bound.socket):
            moved = bound.socket.getsockname()[1]
            assert port < moved < port + server.TRIED_MOST
            assert bound.was_taken
            assert bound.url == f"http://127.0.0.1:{moved}"


def test_the_default_port_is_taken_when_it_is_free() -> None:
    with somebody_elses() as port:
        pass
    bound = bind(by_default(port))
    with closing(bound.socket):
        assert bound.socket.getsockname()[1] == port
        assert not bound.was_taken


def test_when_none_is_free_it_says_how_many_were_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "TRIED_MOST", 1)
    with somebody_elses() as port, pytest.raises(ConfigurationError, match="this port is taken"):
        bind(by_default(port))


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_chosen_port_that_is_taken_is_refused(how: str) -> None:
    with somebody_elses() as port:
        chosen = f"127.0.0.1:{port}"
        arguments, variables = ({"http_listen": chosen}, {}) if how == "argument" else ({}, {"http_listen": chosen})
        settings = Settings.load(arguments, {f"COTERIE_{name.upper()}": text for name, text in variables.items()})
        with pytest.raises(ConfigurationError) as refused:
            bind(settings)
    assert refused.value.message == f"http_listen is {chosen}: this port is taken"
    assert "0 for any free one" in refused.value.hint


def test_those_who_share_a_chosen_port_take_the_next_ones_and_never_the_chosen_one() -> None:
    """Whoever of them comes first: the first one would be refused."""
    with somebody_elses() as port:
        pass
    settings = Settings.load({"http_listen": f"127.0.0.1:{port}"}, {})
    taken = [bind(settings, number=number) for number in (2, 3, 2, 1)]
    with closing(taken[0].socket), closing(taken[1].socket), closing(taken[2].socket), closing(taken[3].socket):
        assert [bound.port > port for bound in taken] == [True, True, True, False]
        assert len({bound.port for bound in taken}) == 4
        assert taken[2].was_taken, "another one has its place"
        assert taken[3].port == port


def test_port_zero_takes_any_and_was_not_taken() -> None:
    bound = bind(Settings.load({"http_listen": "127.0.0.1:0"}, {}))
    with closing(bound.socket):
        assert bound.socket.getsockname()[1] > 0
        assert not bound.was_taken


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
def test_an_address_that_is_not_ours_is_refused(host: str) -> None:
    with pytest.raises(ConfigurationError, match="it cannot be bound"):
        bind(Settings.load({"http_listen": f"{host}:7650"}, {}))


def test_ipv6_is_written_in_brackets() -> None:
    try:
        bound = bind(Settings.load({"http_listen": "[::1]:0"}, {}))
    except ConfigurationError:
        pytest.skip("no IPv6 here")
    with closing(bound.socket):
        assert bound.url.startswith("http://[::1]:")
