"""The ASGI application: its routes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from coterie.errors import CoterieError
from coterie.kernel.random import Random
from coterie.observe.health import Reason
from coterie.observe.view import PAGES
from coterie.web import assets, responses
from coterie.web.access import RequestGuard, access_of, may_call, require_read
from coterie.web.acts import Acts
from coterie.web.calls.handlers import HttpCalls
from coterie.web.details import Details
from coterie.web.feed import MOST as STREAMS_MOST
from coterie.web.feed import Feed
from coterie.web.openapi import document

if TYPE_CHECKING:
    from starlette.requests import Request

    from coterie.web.access import Decide
    from coterie.web.cluster_view import WebView


LOOKED_WITHIN_S = 3.0
"""Time limit for reading the cluster: less than the timeouts of scrapers and monitors."""

_TOKEN_BYTES = 16
_EVENTS = "text/event-stream"


def build(web_view: WebView, *, decide: Decide | None = None) -> Starlette:
    """The application for a `WebView`.

    Args:
        web_view: What it shows.
        decide: Decides on the access of each request; None: see `access`.
    """
    pages = Endpoints(web_view, asks_token=decide is None and web_view.token is not None)
    routes = [
        Route("/live", pages.live),
        Route("/ready", pages.ready),
        Route("/startup", pages.startup),
        Route("/health", pages.health),
        Route("/metrics", pages.metrics),
        Route("/openapi.json", pages.openapi),
    ]
    if web_view.web != "off":
        routes += [
            Route("/", pages.index),
            Route("/page/{file:path}", pages.asset),
            Route("/api/session", pages.session),
            Route("/api/view", pages.view),
            Route("/api/stream", pages.stream),
            *Details(web_view).routes(),
            *Acts(web_view, token=pages.act_token).routes(),
        ]
    offer = web_view.offer
    if offer is not None:
        offer.warn()
        routes += HttpCalls(web_view, offer).routes()
    calls_token = None if offer is None else offer.token
    guard = Middleware(RequestGuard, token=web_view.token, web=web_view.web, decide=decide, calls_token=calls_token)
    made = Starlette(
        routes=routes,
        middleware=[guard],
        exception_handlers={HTTPException: _refused, CoterieError: _failed, TimeoutError: _late},
    )
    made.router.redirect_slashes = False  # redirects would follow the Host header of the request
    return made


class Endpoints:
    """The handler of each path.

    Args:
        web_view: What they show.
        asks_token: Whether a reader without access can give the token in the page.
    """

    def __init__(self, web_view: WebView, *, asks_token: bool) -> None:
        self._web_view = web_view
        self._asks_token = asks_token
        self._feed = Feed(web_view)
        self.act_token = Random().token(_TOKEN_BYTES).hex()
        """Proves that an act was sent by the page, which is given it: other sites cannot read it."""

    async def live(self, request: Request) -> Response:
        """200 whenever the event loop runs."""
        reasons = self._web_view.failing()
        if not reasons:
            return JSONResponse(responses.probe("live"))
        told = reasons if access_of(request) != "none" else None
        return JSONResponse(responses.probe("degraded", told))

    async def ready(self, request: Request) -> Response:
        """Judged by the facts of this process and their age."""
        reasons = await self._web_view.unready()
        return _probed(request, "unready" if reasons else "ready", reasons)

    async def startup(self, request: Request) -> Response:
        """Whether the runner has started; never reverts."""
        reasons = self._web_view.unstarted()
        return _probed(request, "starting" if reasons else "started", reasons)

    async def health(self, request: Request) -> Response:
        """The health of the whole cluster."""
        require_read(request)
        try:
            async with asyncio.timeout(LOOKED_WITHIN_S):
                judged = await self._web_view.health()
        except CoterieError as error:
            why = _unknown(error.message, error.hint)
        except TimeoutError:
            why = _unknown(f"no answer within {LOOKED_WITHIN_S:g}s", "/ready tells how this runner stands")
        else:
            return JSONResponse(responses.health(judged), 503 if judged.status == "unhealthy" else 200)
        return JSONResponse(responses.unknown(why, *await self._web_view.unready()), 503)

    async def index(self, request: Request) -> Response:
        """The page for browsers; for everything else the text of `coterie status`."""
        if "text/html" in request.headers.get("accept", ""):
            self._require_page(request)
            return assets.respond(request, assets.assets()[assets.INDEX], cached=False)
        require_read(request)
        async with asyncio.timeout(LOOKED_WITHIN_S):
            return PlainTextResponse(await self._web_view.status() + "\n", headers={"vary": "accept"})

    async def asset(self, request: Request) -> Response:
        """A file of the page."""
        self._require_page(request)
        found = assets.assets().get(request.path_params["file"])
        if found is None:
            raise HTTPException(404)
        return assets.respond(request, found)

    def _require_page(self, request: Request) -> None:
        """Refuse the files of the page, unless a reader can give the token in it: they have no data of the cluster."""
        if not self._asks_token:
            require_read(request)

    async def session(self, request: Request) -> Response:
        """What the page needs to know of whom it serves."""
        require_read(request)
        granted = access_of(request)
        return JSONResponse(
            {
                "cluster": self._web_view.cluster,
                "runner": self._web_view.runner,
                "version": self._web_view.version,
                "access": granted,
                "token": self.act_token if granted == "act" else None,
                "redacted": self._web_view.redacted,
            }
        )

    async def view(self, request: Request) -> Response:
        """Pages of the read model; all of them if none is named."""
        require_read(request)
        pages = _pages(request)
        async with asyncio.timeout(LOOKED_WITHIN_S):
            seen = await self._web_view.view(pages)
        etag = responses.etag(seen)
        if assets.matches(request, etag):
            return Response(status_code=304, headers={"etag": etag})
        return Response(responses.view(seen), headers={"content-type": "application/json", "etag": etag})

    async def stream(self, request: Request) -> Response:
        """The same pages as server-sent events."""
        require_read(request)
        pages = _pages(request)
        headers = {"x-accel-buffering": "no"}
        if request.method == "HEAD":
            return Response(media_type=_EVENTS, headers=headers)
        opened = await self._feed.open(pages, request.headers.get("last-event-id", ""))
        if opened is None:
            problem = f"{STREAMS_MOST} streams are open on this runner"
            return JSONResponse(responses.refusal(problem, "close other tabs, or read /api/view"), 503)
        return StreamingResponse(opened.events(), media_type=_EVENTS, headers=headers)

    async def metrics(self, request: Request) -> Response:
        """The metrics of this process."""
        require_read(request)
        text, kind = await self._web_view.metrics(request.headers.get("accept", ""))
        return Response(text, headers={"content-type": kind})

    async def openapi(self, request: Request) -> Response:
        """The OpenAPI document, for callers too."""
        if not may_call(request):
            require_read(request)
        view = self._web_view
        return JSONResponse(document(view.version, page=view.web != "off", offer=view.offer))


def _probed(request: Request, word: str, reasons: tuple[Reason, ...]) -> Response:
    told = reasons if access_of(request) != "none" else None
    return JSONResponse(responses.probe(word, told), 503 if reasons else 200)


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
    if isinstance(error, responses.HttpRefusal):
        return JSONResponse(error.body, error.status_code, headers=dict(error.headers or {}))
    known: dict[int, Any] = {
        400: ("there is no such page", error.detail),
        401: ("this is not for everybody", error.detail),
        404: ("there is nothing here", "/openapi.json lists what there is"),
        405: (f"only {(error.headers or {}).get('Allow', 'GET')} is answered here", ""),
    }
    problem, hint = known.get(error.status_code, (error.detail, ""))
    return JSONResponse(responses.refusal(problem, hint), error.status_code, headers=dict(error.headers or {}))


async def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, CoterieError), "it is the handler for those"
    return JSONResponse(responses.refusal(error.message, error.hint), responses.status_of(error))


async def _late(_: Request, __: Exception) -> Response:
    return JSONResponse(responses.refusal("no answer in time", "/ready tells how this runner stands"), 503)
