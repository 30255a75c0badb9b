"""Access over HTTP: what a request may do, and the guard before all routes.

Access is decided by where a request comes from, its Host header, its token and the setting `web` (pure):

on loopback     act without `http_token`, if the Host header names this machine: a page of another site whose name
                resolves to this machine (DNS rebinding) names that site
with http_token none without the token in the Authorization header, on loopback too, where a proxy that adds no header
                looks like this machine; with it act on loopback, read elsewhere
elsewhere       none

`web=read` and `web=act` replace "act on loopback, read elsewhere". With none, only the status words of the probes are
visible. An application that mounts ours may decide itself instead, by `access=`.
"""

from __future__ import annotations

import asyncio
import hmac
import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse

from coterie.transport.identity import is_loopback
from coterie.web import responses

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from coterie.settings import WebAccess
    from coterie.settings.secret import Secret

Access = Literal["none", "read", "act"]
"""The status words of the probes only; everything that can be seen; that, and everything that can be changed."""

Decide = Callable[[Request], Access | Awaitable[Access]]
"""Decides on the access of a request, for an application that mounts ours."""

_HERE = ("localhost", "127.0.0.1", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
"""Headers that proxies add: the client is then on another machine, even if the proxy is on this one."""
_SCHEME = b"bearer "
_KEY = "coterie.access"
"""Where the guard leaves its decision in the scope of a request."""
CALL_PATHS = ("/api/call/", "/api/send/", "/api/result/", "/api/workflows/")
"""What needs the token for calls: see `calls`."""
_CALL_KEY = "coterie.may_call"
"""Where it leaves whether the request may make calls."""

log = logging.getLogger("coterie")

TOLD_EVERY_S = 60.0
"""Wrong tokens are logged at most once in this time, with their number."""

_HEADERS = (
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
_TOKEN_HINT = "this needs http_token, in the header Authorization: Bearer …"  # noqa: S105 no token
_HOST_HINT = "on this machine the Host header has to be localhost, 127.0.0.1, [::1] or the address that was bound"


def access(
    scope: Mapping[str, Any], token: Secret | None, web: WebAccess | None = None
) -> Access | Literal["misdirected"]:
    """What a request may do; "misdirected": it is addressed to another host.

    Args:
        scope: The request as ASGI describes it.
        token: The setting `http_token`; None: other machines see no details.
        web: The setting of this name.
    """
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    is_local = _is_local(scope, headers)
    if is_local and not _names_this_machine(scope, headers):
        return "misdirected"
    if not (is_local if token is None else _has_token(headers, token)):
        return "none"
    if web in ("read", "act"):
        return web
    return "act" if is_local and web is None else "read"


def access_of(request: Request) -> Access:
    """What a request may do, as the guard has decided."""
    granted: Access = request.scope[_KEY]
    return granted


def require_read(request: Request) -> None:
    """Refuse a request that may not see details.

    Raises:
        HTTPException: With status 401.
    """
    if access_of(request) == "none":
        raise HTTPException(401, _TOKEN_HINT, headers={"www-authenticate": "Bearer"})


def may_call(request: Request) -> bool:
    """Whether a request has the token for calls, as the guard has decided."""
    granted: bool = request.scope[_CALL_KEY]
    return granted


def is_foreign(request: Request) -> bool:
    """Whether a browser says that a page of another site has sent a request. Programs say nothing."""
    said = request.headers.get("sec-fetch-site", "none")
    if said not in ("none", "same-origin"):
        return True
    return "origin" in request.headers and not is_same_origin(request)


def is_same_origin(request: Request) -> bool:
    """Whether the page that sent a request is ours, as its browser says; false if the browser does not say."""
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None:
        return site == "same-origin"
    return origin is not None and urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower() != ""


def _is_local(scope: Mapping[str, Any], headers: list[tuple[bytes, bytes]]) -> bool:
    """Whether both ends of the connection are on loopback, and no proxy forwards the request."""
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


def _has_token(headers: Iterable[tuple[bytes, bytes]], token: Secret) -> bool:
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
        return False
    return hmac.compare_digest(given[0][len(_SCHEME) :].strip(), token.reveal().encode())


class RequestGuard:
    """Decides on the access of each request, and adds security headers to every response.

    Args:
        app: The application that it guards.
        token: The token that clients on other machines need.
        web: The setting of this name.
        decide: Decides instead: neither address, Host header nor token count then.
        calls_token: The token for calls, which opens nothing else; None: there are none.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: Secret | None,
        web: WebAccess | None = None,
        decide: Decide | None = None,
        calls_token: Secret | None = None,
    ) -> None:
        self._app = app
        self._token = token
        self._calls_token = calls_token
        self._web: WebAccess | None = web
        self._decide = decide
        self._wrong = _Wrong()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _Sender(send)
        calls = self._calls_token
        scope[_CALL_KEY] = calls is not None and _has_token(scope["headers"], calls)
        try:
            granted = await self._granted(scope, receive)
            if granted == "misdirected":
                refusal = responses.refusal("this is not the host that was asked for", _HOST_HINT)
                await JSONResponse(refusal, 421)(scope, receive, sender.send)
                return
            scope[_KEY] = granted
            if not scope[_CALL_KEY] and (self._is_call(scope) or (granted == "none" and self._decide is None)):
                self._note_token(scope)
            await self._app(scope, receive, sender.send)
        except Exception:
            log.exception("an answer to %s %s has failed", scope["method"], scope["path"])
            if sender.begun:
                raise
            await JSONResponse(responses.refusal("this answer has failed: see the log"), 500)(
                scope, receive, sender.send
            )

    async def _granted(self, scope: Scope, receive: Receive) -> Access | Literal["misdirected"]:
        if self._decide is None:
            return access(scope, self._token, self._web)
        decided = self._decide(Request(scope, receive))
        said = await decided if inspect.isawaitable(decided) else decided
        if said not in ("none", "read", "act"):
            raise ValueError(f"access= returned {said!r}: it has to be none, read or act")
        return "read" if said == "act" and self._web == "read" else said

    def _is_call(self, scope: Scope) -> bool:
        """Whether it needs the token for calls, on loopback too."""
        return self._calls_token is not None and any(path in scope["path"] for path in CALL_PATHS)

    def _note_token(self, scope: Scope) -> None:
        """Count a token that opens nothing, if the request has one."""
        if any(name == b"authorization" for name, _ in scope["headers"]):
            self._wrong.tell(scope.get("client"))


class _Wrong:
    """Logs the first wrong token at once, and later ones in one line per `TOLD_EVERY_S`."""

    def __init__(self) -> None:
        self._count = 0
        self._next_s = 0.0

    def tell(self, client: tuple[str, int] | None) -> None:
        """Count a request with a wrong token."""
        now_s = asyncio.get_running_loop().time()
        self._count += 1
        if now_s >= self._next_s:
            who = "unknown" if client is None else client[0]
            log.warning("%d requests over HTTP had a wrong token, the last from %s", self._count, who)
            self._count, self._next_s = 0, now_s + TOLD_EVERY_S


class _Sender:
    """Sends a response, with the security headers that it does not set itself."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            given = list(message.get("headers", ()))
            names = {name for name, _ in given}
            message = {**message, "headers": [*given, *(each for each in _HEADERS if each[0] not in names)]}
        await self._send(message)
