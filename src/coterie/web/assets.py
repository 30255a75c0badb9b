"""The files of the page in the browser, as they are sent: read once, compressed once, and only those that are there."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

FOLDER = Path(__file__).parent / "page"
INDEX = "index.html"

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""The content types of what is served; other files of the folder are not."""


@dataclass(frozen=True, slots=True)
class Asset:
    """A file of the page."""

    body: bytes
    compressed: bytes
    content_type: str
    etag: str


@cache
def assets(folder: Path = FOLDER) -> Mapping[str, Asset]:
    """The files that are served, by their path in the folder."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.suffix in _TYPES)
    return {path.relative_to(folder).as_posix(): _read(path) for path in files}


def _read(path: Path) -> Asset:
    body = path.read_bytes()
    etag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    return Asset(body, gzip.compress(body, mtime=0), _TYPES[path.suffix], etag)


def respond(request: Request, asset: Asset, *, cached: bool = True) -> Response:
    """The response with a file: nothing but 304 if the browser has it, compressed if it accepts that.

    Args:
        request: The request.
        asset: The file.
        cached: Whether the browser may keep it; it asks each time whether it has changed.
    """
    headers = {"content-type": asset.content_type, "vary": "accept, accept-encoding"}
    if cached:
        headers |= {"etag": asset.etag, "cache-control": "no-cache"}
        if matches(request, asset.etag):
            return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(asset.compressed, headers={**headers, "content-encoding": "gzip"})
    return Response(asset.body, headers=headers)


def matches(request: Request, etag: str) -> bool:
    """Whether the client has this version already."""
    known = (each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(","))
    return etag.removeprefix("W/") in known
