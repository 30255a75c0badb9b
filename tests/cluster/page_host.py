"""An application that mounts the page of `page_program` at a prefix, and has that of a runner behind another one.

uvicorn tests.cluster.page_host:application
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Mount, Route

from coterie import web
from tests.cluster.page_program import cluster

if TYPE_CHECKING:
    from starlette.requests import Request

http = httpx.AsyncClient(base_url=os.environ["BEHIND"], timeout=None)


async def forward(request: Request) -> Response:
    """As a proxy that takes its prefix away."""
    asked = http.build_request(
        request.method,
        "/" + request.path_params["path"],
        params=request.query_params,
        headers=request.headers.raw,
        content=await request.body(),
    )
    answer = await http.send(asked, stream=True)
    headers = dict(answer.headers)
    return StreamingResponse(answer.aiter_raw(), answer.status_code, headers, background=BackgroundTask(answer.aclose))


async def home(_: Request) -> Response:
    return PlainTextResponse("a page of the application")


application = Starlette(
    routes=[
        Route("/", home),
        Mount("/coterie", web.app(cluster)),
        Route("/tools/ops/{path:path}", forward, methods=["GET", "POST"]),
    ],
    lifespan=cluster.lifespan,
)
