"""Who may see what: decided by where a request comes from, to whom it is addressed, and its token. Pure.

on loopback     everything without `http_token`, if the Host header names this machine: a page of another site whose
                name was made to lead here (DNS rebinding) names that site
with http_token the words of the probes; everything else with it in the Authorization header, on loopback too, where a
                proxy that adds no header looks like this machine
elsewhere       the words of the probes
"""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING, Literal

from coterie.transport.identity import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from coterie.settings.secret import Secret

Access = Literal["all", "words", "none"]
"""All there is to see; the words of the probes only; nothing, since the request is not meant for us."""

_HERE = ("localhost", "127.0.0.1", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
"""What proxies add: then whoever asks is elsewhere, though the proxy is on this machine."""
_SCHEME = b"bearer "


def access(scope: Mapping[str, Any], token: Secret | None) -> Access:
    """What a request may see.

    Args:
        scope: The request as ASGI describes it.
        token: The setting `http_token`; None: nobody elsewhere sees details.
    """
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    if _is_local(scope, headers):
        if not _names_this_machine(scope, headers):
            return "none"
        if token is None:
            return "all"
    return "all" if token is not None and _has_token(headers, token) else "words"


def _is_local(scope: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether both ends of the connection are on loopback, and nobody forwards for others."""
    ends = (scope.get("client"), scope.get("server"))
    if not all(end is not None and is_loopback(str(end[0])) for end in ends):
        return False
    return not any(name in _FORWARDED for name, _ in headers)


def _names_this_machine(scope: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    hosts = [value for name, value in headers if name == b"host"]
    return len(hosts) == 1 and _host_name(hosts[0].decode("latin-1")) in (*_HERE, str(scope["server"][0]))


def _host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        name, _, rest = host[1:].partition("]")
        return name if not rest or rest.startswith(":") else ""
    return host.partition(":")[0].lower()


def _has_token(headers: list[tuple[bytes, bytes]], token: Secret) -> bool:
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
        return False
    return hmac.compare_digest(given[0][len(_SCHEME) :].strip(), token.reveal().encode())
