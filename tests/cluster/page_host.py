"""A FastAPI application that mounts the page of `page_program` at a prefix, and has that of a runner behind another.

uvicorn tests.cluster.page_host:application
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import httpx
from fastapi import FastAPI
from starlette.background import BackgroundTask
from starlette.responses import Response, StreamingResponse

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


application = FastAPI(lifespan=cluster.lifespan)
application.mount("/coterie", web.app(cluster))
application.add_route("/tools/ops/{path:path}", forward, methods=["GET", "POST"])


@application.get("/")
async def home() -> str:
    """A page of the application."""
    return "home"
