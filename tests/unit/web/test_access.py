"""Who may see what over HTTP: incident 42, INV-X2, INV-X4."""

from __future__ import annotations

from typing import Any

import pytest

from coterie.settings.secret import Secret
from coterie.web.access import access

TOKEN = Secret("correct-horse-battery-staple")
HERE, ELSEWHERE = "127.0.0.1", "10.0.0.7"


def scope(
    *, client: str | None = HERE, server: str | None = HERE, host: str | None = "localhost:7650", **headers: str
) -> dict[str, Any]:
    given = {"host": host, **headers}
    return {
        "client": client and (client, 50_000),
        "server": server and (server, 7650),
        "headers": [(name.replace("_", "-").encode(), text.encode()) for name, text in given.items() if text],
    }


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:7650", "127.0.0.1:7650", "[::1]", "[::1]:7650"])
def test_on_loopback_everything_is_seen_where_there_is_no_token(host: str) -> None:
    """With one it is asked for there too: a proxy on this machine that adds no header looks like the machine itself."""
    assert access(scope(host=host), None) == "act"
    assert access(scope(host=host), TOKEN) == "none"
    assert access(scope(host=host, authorization=f"Bearer {TOKEN.reveal()}"), TOKEN) == "act"


@pytest.mark.parametrize("ends", [("::1", "::1"), ("127.0.0.2", "127.0.0.2"), ("::ffff:127.0.0.1", "::ffff:127.0.0.1")])
def test_loopback_has_many_addresses(ends: tuple[str, str]) -> None:
    client, server = ends
    assert access(scope(client=client, server=server), None) == "act"


def test_the_address_that_was_bound_is_a_name_of_this_machine() -> None:
    assert access(scope(client="127.0.0.2", server="127.0.0.2", host="127.0.0.2:7650"), None) == "act"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:7650",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "[::1]evil.example",
        "[::2]:7650",
        "localhost@evil.example",
        None,
    ],
)
def test_a_rebound_name_sees_nothing(host: str | None) -> None:
    """Incident 42: a page whose name leads to this machine is refused, with a token too: a browser might hold one."""
    assert access(scope(host=host), None) == "misdirected"
    assert access(scope(host=host, authorization=f"Bearer {TOKEN.reveal()}"), TOKEN) == "misdirected"


def test_two_hosts_are_one_too_many() -> None:
    asked = scope(host="localhost")
    asked["headers"].append((b"host", b"evil.example"))
    assert access(asked, None) == "misdirected"


@pytest.mark.parametrize("ends", [(ELSEWHERE, "10.0.0.1"), (ELSEWHERE, HERE), (HERE, "10.0.0.1"), (None, None)])
def test_from_elsewhere_only_the_words_are_seen(ends: tuple[str | None, str | None]) -> None:
    """INV-X4: what a stranger on the network learns is a word."""
    client, server = ends
    for token in (None, TOKEN):
        assert access(scope(client=client, server=server, host="runner:7650"), token) == "none"


@pytest.mark.parametrize("header", ["forwarded", "x_forwarded_for", "x_forwarded_host", "x_real_ip", "via"])
def test_a_proxy_on_this_machine_asks_for_others(header: str) -> None:
    """Whatever the header says: it may come from whoever asks."""
    assert access(scope(**{header: HERE}), None) == "none"
    assert access(scope(**{header: HERE, "authorization": f"Bearer {TOKEN.reveal()}"}), TOKEN) == "read"


@pytest.mark.parametrize(
    ("authorization", "seen"),
    [
        (f"Bearer {TOKEN.reveal()}", "read"),
        (f"bearer  {TOKEN.reveal()} ", "read"),
        (f"Bearer {TOKEN.reveal()}x", "none"),
        (f"Bearer {TOKEN.reveal()[:-1]}", "none"),
        (TOKEN.reveal(), "none"),
        (f"Basic {TOKEN.reveal()}", "none"),
        ("Bearer ", "none"),
        ("Bearer \u00e9", "none"),
        ("", "none"),
    ],
)
def test_the_token_opens_from_elsewhere(authorization: str, seen: str) -> None:
    """INV-X2: in the Authorization header, whole and right."""
    assert access(scope(client=ELSEWHERE, authorization=authorization), TOKEN) == seen


def test_without_the_setting_no_token_opens() -> None:
    assert access(scope(client=ELSEWHERE, authorization="Bearer "), None) == "none"
    assert access(scope(client=ELSEWHERE, authorization="Bearer None"), None) == "none"


def test_two_tokens_are_one_too_many() -> None:
    asked = scope(client=ELSEWHERE, authorization=f"Bearer {TOKEN.reveal()}")
    asked["headers"].append((b"authorization", b"Bearer guess"))
    assert access(asked, TOKEN) == "none"


@pytest.mark.parametrize("header", ["cookie", "x_token", "x_api_key"])
def test_the_token_counts_in_no_other_header(header: str) -> None:
    assert access(scope(client=ELSEWHERE, **{header: f"Bearer {TOKEN.reveal()}"}), TOKEN) == "none"
