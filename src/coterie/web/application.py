"""The ASGI application: its routes, and the access check before them.

Access is decided by where a request comes from, its Host header, and its token (pure):

on loopback     everything without `http_token`, if the Host header names this machine: a page of another site whose
                name resolves to this machine (DNS rebinding) names that site
with http_token the status words of the probes; everything else with the token in the Authorization header, on loopback
                too, where a proxy that adds no header looks like this machine
elsewhere       the status words of the probes
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from typing import TYPE_CHECKING, Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie.errors import CoterieError
from coterie.observe.health import Reason
from coterie.observe.view import PAGES
from coterie.transport.identity import is_loopback
from coterie.web import responses
from coterie.web.openapi import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from coterie.settings.secret import Secret
    from coterie.web.cluster_view import WebView


Access = Literal["all", "words", "none"]
"""Everything; the status words of the probes only; nothing, since the request is addressed to another host."""

_HERE = ("localhost", "127.0.0.1", "::1")
_FORWARDED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-real-ip", b"via")
"""Headers that proxies add: the client is then on another machine, even if the proxy is on this one."""
_SCHEME = b"bearer "


def access(scope: Mapping[str, Any], token: Secret | None) -> Access:
    """What a request may see.

    Args:
        scope: The request as ASGI describes it.
        token: The setting `http_token`; None: other machines see no details.
    """
    headers: list[tuple[bytes, bytes]] = list(scope["headers"])
    if _is_local(scope, headers):
        if not _names_this_machine(scope, headers):
            return "none"
        if token is None:
            return "all"
    return "all" if token is not None and _has_token(headers, token) else "words"


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


def _has_token(headers: list[tuple[bytes, bytes]], token: Secret) -> bool:
    given = [value for name, value in headers if name == b"authorization"]
    if len(given) != 1 or given[0][: len(_SCHEME)].lower() != _SCHEME:
        return False
    return hmac.compare_digest(given[0][len(_SCHEME) :].strip(), token.reveal().encode())


log = logging.getLogger("coterie")

LOOKED_WITHIN_S = 3.0
"""Time limit for determining the health of the cluster: less than the timeouts of scrapers and monitors."""

TOLD_EVERY_S = 60.0
"""Wrong tokens are logged at most once in this time, with their number."""

_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
_TOKEN_HINT = "this needs http_token, in the header Authorization: Bearer …"  # noqa: S105 no token
_HOST_HINT = "on this machine the Host header has to be localhost, 127.0.0.1, [::1] or the address that was bound"


def build(sight: WebView) -> Starlette:
    """The application for a `WebView`."""
    pages = Endpoints(sight)
    made = Starlette(
        routes=[
            Route("/live", pages.live),
            Route("/ready", pages.ready),
            Route("/startup", pages.startup),
            Route("/health", pages.health),
            Route("/metrics", pages.metrics),
            Route("/api/view", pages.view),
            Route("/openapi.json", pages.openapi),
        ],
        middleware=[Middleware(RequestGuard, token=sight.token)],
        exception_handlers={HTTPException: _refused},
    )
    made.router.redirect_slashes = False  # redirects would follow the Host header of the request
    return made


class Endpoints:
    """The handler of each path."""

    def __init__(self, sight: WebView) -> None:
        self._sight = sight

    async def live(self, request: Request) -> Response:
        """200 whenever the event loop runs."""
        reasons = self._sight.failing()
        if not reasons:
            return JSONResponse(responses.probe("live"))
        told = reasons if request.scope["coterie.access"] == "all" else None
        return JSONResponse(responses.probe("degraded", told))

    async def ready(self, request: Request) -> Response:
        """Judged by the facts of this process and their age."""
        reasons = await self._sight.unready()
        return _probed(request, "unready" if reasons else "ready", reasons)

    async def startup(self, request: Request) -> Response:
        """Whether the runner has started; never reverts."""
        reasons = self._sight.unstarted()
        return _probed(request, "starting" if reasons else "started", reasons)

    async def health(self, request: Request) -> Response:
        """The health of the whole cluster."""
        _require_all(request)
        try:
            async with asyncio.timeout(LOOKED_WITHIN_S):
                judged = await self._sight.health()
        except CoterieError as error:
            why = _unknown(error.message, error.hint)
        except TimeoutError:
            why = _unknown(f"no answer within {LOOKED_WITHIN_S:g}s", "/ready tells how this runner stands")
        else:
            return JSONResponse(responses.health(judged), 503 if judged.status == "unhealthy" else 200)
        return JSONResponse(responses.unknown(why, *await self._sight.unready()), 503)

    async def view(self, request: Request) -> Response:
        """Pages of the read model; all of them if none is named."""
        _require_all(request)
        pages = _pages(request)
        try:
            async with asyncio.timeout(LOOKED_WITHIN_S):
                seen = await self._sight.view(pages)
        except CoterieError as error:
            return JSONResponse(responses.refusal(error.message, error.hint), 503)
        except TimeoutError:
            problem = f"no answer within {LOOKED_WITHIN_S:g}s"
            return JSONResponse(responses.refusal(problem, "/ready tells how this runner stands"), 503)
        return JSONResponse(responses.view(seen))

    async def metrics(self, request: Request) -> Response:
        """The metrics of this process."""
        _require_all(request)
        text, kind = await self._sight.metrics(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document."""
        _require_all(request)
        return JSONResponse(document(self._sight.version))


class RequestGuard:
    """Refuses requests without access, and adds security headers to every response.

    Args:
        app: The application that it guards.
        token: The token that clients on other machines need.
    """

    def __init__(self, app: ASGIApp, *, token: Secret | None) -> None:
        self._app = app
        self._token = token
        self._wrong = _Wrong()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sender = _Sender(send)
        seen = scope["coterie.access"] = access(scope, self._token)
        if seen == "words" and any(name == b"authorization" for name, _ in scope["headers"]):
            self._wrong.tell(scope.get("client"))
        if seen == "none":
            await JSONResponse(responses.refusal("this is not the host that was asked for", _HOST_HINT), 421)(
                scope, receive, sender.send
            )
            return
        try:
            await self._app(scope, receive, sender.send)
        except Exception:
            log.exception("an answer to %s %s has failed", scope["method"], scope["path"])
            if sender.begun:
                raise
            await JSONResponse(responses.refusal("this answer has failed: see the log"), 500)(
                scope, receive, sender.send
            )


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
    """Sends a response, with the security headers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun = True
            message = {**message, "headers": [*message.get("headers", ()), *_HEADERS]}
        await self._send(message)


def _probed(request: Request, word: str, reasons: tuple[Reason, ...]) -> Response:
    told = reasons if request.scope["coterie.access"] == "all" else None
    return JSONResponse(responses.probe(word, told), 503 if reasons else 200)


def _require_all(request: Request) -> None:
    if request.scope["coterie.access"] != "all":
        raise HTTPException(401, _TOKEN_HINT, headers={"www-authenticate": "Bearer"})


def _pages(request: Request) -> tuple[str, ...]:
    """The pages that `?pages=overview,cron` names."""
    named = request.query_params.get("pages")
    pages = PAGES if named is None else tuple(dict.fromkeys(named.split(",")))
    if not set(pages) <= set(PAGES):
        raise HTTPException(400, f"pages is a list of {', '.join(PAGES)}, with commas")
    return pages


def _unknown(problem: str, hint: str) -> Reason:
    return Reason(status="unhealthy", what="the database", problem=problem, hint=hint)


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "it is the handler for those"
    known: dict[int, Any] = {
        400: ("there is no such page", error.detail),
        401: ("this is not for everybody", error.detail),
        404: ("there is nothing here", "/openapi.json lists what there is"),
        405: ("only GET and HEAD are answered here", ""),
    }
    problem, hint = known.get(error.status_code, (error.detail, ""))
    return JSONResponse(responses.refusal(problem, hint), error.status_code, headers=dict(error.headers or {}))
