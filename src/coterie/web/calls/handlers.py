"""Calls over HTTP: entities, workflows and tasks, by name, for programs that have neither their code nor this library.

    POST /api/call/{type}/{id}/{method}         its result
    POST /api/send/{type}/{id}/{method}         202 and the id of the message
    POST /api/tasks/{name}                      sends a job: 202 and its id
    GET  /api/result/{message}                  the result of a message or job, or 202
    POST /api/workflows/{name}/{id}             starts a run
    GET  /api/workflows/{name}/{id}             how it stands, and its result

There are such routes only if the setting `http_calls` names something. Each request needs `http_calls_token`, wherever
it comes from; neither cookies nor the token of the page count, and browsers of other sites are refused.

The arguments are a JSON map by parameter name. Entities are called as `coterie call` does (`CallsByName`): a process
whose program has the type checks the arguments by the method's own types.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from coterie.entities.calls.by_name_client import CallsByName, PlainReply
from coterie.errors import (
    CoterieError,
    MessageExpired,
    SendTimeout,
    WorkflowFailed,
    WorkflowInterrupted,
    WorkflowNotFound,
    WorkflowTimeout,
)
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import EntityAddress, is_job
from coterie.kernel.plain import plain
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.text import visible
from coterie.web.access import is_foreign, may_call
from coterie.web.calls.errors import CallRefusal, refusal_of
from coterie.web.responses import instant

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from starlette.requests import Request

    from coterie.storage.contracts.units import UnitRow
    from coterie.web.calls.offer import Offer
    from coterie.web.cluster_view import WebView
    from coterie.workflows.api import WorkflowHandle
    from coterie.workflows.definition import WorkflowType

BODY_MOST_BYTES = 1024 * 1024
"""Size of the arguments of one call."""
CALLS_MOST = 256
"""Requests that are under way at once."""
WAIT_LEAST_S, WAIT_MOST_S = 0.01, 600.0
"""How long one request may wait."""
_SPARE_S = 2.0
"""How much longer than its own timeout a call may take, until the request ends without its error."""

_JSON = "application/json"
_KEY_QUOTED = re.compile(r'"(?:[^"\\]|\\["\\])*"')
KEY_MOST = 255


class HttpCalls:
    """The handlers.

    Args:
        web_view: The cluster that is called.
        offer: What may be called.
    """

    def __init__(self, web_view: WebView, offer: Offer) -> None:
        self._web_view = web_view
        self._offer = offer
        self._under_way = 0

    def routes(self) -> list[Route]:
        """The routes."""
        return [
            self._route("/api/call/{rest:path}", POST=self.call),
            self._route("/api/send/{rest:path}", POST=self.send),
            self._route("/api/tasks/{rest:path}", POST=self.send_job),
            self._route("/api/result/{rest:path}", GET=self.result),
            self._route("/api/workflows/{rest:path}", POST=self.start, GET=self.run),
        ]

    def _route(self, path: str, **handlers: Callable[[Request], Awaitable[Response]]) -> Route:
        async def answer(request: Request) -> Response:
            _require_caller(request)
            with self._slot(), refusals():
                return await handlers["GET" if request.method == "HEAD" else request.method](request)

        route = Route(path, answer, methods=list(handlers))
        route.path_regex = re.compile(route.path_regex.pattern, re.DOTALL)  # an id may contain any character
        return route

    # Entities

    async def call(self, request: Request) -> Response:
        """Call a method and wait for its result."""
        address, method = self._entity(request, "call")
        body, key, within_s = await _map_of(request), _key(request), self._within_s(request)
        with refusals(about=address, within_s=within_s):
            async with asyncio.timeout(within_s + _SPARE_S):
                result = await self._by_name().call(address, method, body, within_s=within_s, key=key)
        return json_of(result)

    async def send(self, request: Request) -> Response:
        """Send a call, now or later, without waiting for its result."""
        address, method = self._entity(request, "send")
        body, key, within_s = await _map_of(request), _key(request), self._within_s(request)
        at, delay_s = _when(request)
        with refusals(about=address, within_s=within_s):
            async with asyncio.timeout(within_s + _SPARE_S):
                sent = await self._by_name().send(
                    address, method, body, within_s=within_s, key=key, at=at, delay_s=delay_s
                )
        told = json_of({"message": sent.message_id, "persisted": sent.persisted}, 202)
        if sent.persisted:
            told.headers["location"] = _place(request, f"/api/result/{sent.message_id}")
        return told

    async def result(self, request: Request) -> Response:
        """The result of a message or job that was sent; 202 while there is none."""
        (message_id,) = _segments(request, "result", 1)
        within_s = self._within_s(request, default_s=0.0)
        try:
            async with asyncio.timeout(within_s + _SPARE_S):
                if is_job(message_id):
                    found = await self._result_of_job(message_id, within_s=within_s)
                else:
                    found = await self._by_name().result(message_id, within_s=within_s, readable=self._offer.has_method)
        except (SendTimeout, TimeoutError):
            return json_of({"message": message_id, "status": "pending"}, 202)
        return json_of(found)

    def _entity(self, request: Request, verb: str) -> tuple[EntityAddress, str]:
        entity_type, entity_id, method = _segments(request, verb, 3)
        if not self._offer.has_method(entity_type, method):
            raise _not_offered(f"{entity_type}.{method}")
        return EntityAddress(entity_type, entity_id), method

    def _by_name(self) -> CallsByName:
        return CallsByName(self._web_view.here())

    # Tasks

    async def send_job(self, request: Request) -> Response:
        """Send a job, now or later, without waiting for its result."""
        (name,) = _segments(request, "tasks", 1)
        task = self._offer.tasks().get(name) if self._offer.has_task(name) else None
        if task is None:
            raise _not_offered(f"task:{name}")
        body, key, within_s = await _map_of(request), _key(request), self._within_s(request)
        (at, delay_s), priority = _when(request), _priority(request)
        from coterie.tasks.task import Job  # only programs that have tasks load it

        with refusals(about=task.what, within_s=within_s):
            sender = self._web_view.here().job_sender
            job: Job[Any] = Job(task, task.arguments.from_json(body), sender)
            job.mark_sent()
            job.key = key
            async with asyncio.timeout(within_s + _SPARE_S):
                sent = await sender.send(job, at=at, delay_s=delay_s, priority=priority)
        told = json_of({"message": str(sent), "persisted": True}, 202)
        told.headers["location"] = _place(request, f"/api/result/{sent}")
        return told

    async def _result_of_job(self, job_id: str, *, within_s: float) -> Any:
        def plain(task: str) -> PlainReply:
            if not self._offer.has_task(task):
                raise MessageExpired(message_id=job_id)
            return PlainReply(f"result of task {task!r}")

        return await self._web_view.here().job_sender.result(job_id, within_s=within_s, type_of=plain)

    # Workflows

    async def start(self, request: Request) -> Response:
        """Start a run, once for each id."""
        kind, id_ = self._workflow(*_segments(request, "workflows", 2))
        what = f"payload of workflow {kind.name!r}"
        body = await _json_of(request)
        within_s = self._within_s(request)
        from coterie.workflows import api  # only programs that have workflows load them

        with refusals(about=what, within_s=within_s):
            payload = kind.payload.from_json(body or b"null", what=what)
            async with asyncio.timeout(within_s + _SPARE_S):
                started = await api.start(self._web_view.here(), kind, payload, id_)
        told = json_of({"workflow": kind.name, "id": id_, "status": started.row.status}, 202)
        path = f"/api/workflows/{quote(kind.name, safe='')}/{quote(id_, safe='')}"
        told.headers["location"] = _place(request, path)
        return told

    async def run(self, request: Request) -> Response:
        """How a run stands, with its result if it is done. With `?timeout=` it waits for the end first."""
        from coterie.workflows import api

        kind, id_ = self._workflow(*_segments(request, "workflows", 2))
        here, within_s = self._web_view.here, self._within_s(request, default_s=0.0)
        handle: WorkflowHandle[Any] = api.handle_of(kind, id_, here, lambda _: here())
        done: dict[str, Any] = {}
        if within_s or await handle.status() == "done":
            with suppress(WorkflowTimeout, WorkflowFailed, WorkflowInterrupted):  # the status says so
                found = await handle.result(timeout=within_s or None)
                done["result"] = PLAIN.decode(kind.result.encode(found))
        row = await here().storage.units.get(kind.unit(id_))
        if row is None:
            raise WorkflowNotFound(workflow=kind.name, id=id_)
        return json_of(_told(row) | done)

    def _workflow(self, name: str, id_: str) -> tuple[WorkflowType, str]:
        from coterie.workflows.definition import require_id

        kind = self._offer.workflows().get(name) if self._offer.has_workflow(name) else None
        if kind is None:
            raise _not_offered(f"workflow:{name}")
        return kind, require_id(id_)

    # Requests

    def _within_s(self, request: Request, *, default_s: float | None = None) -> float:
        """`?timeout=5s`; without it `default_s`, without that the setting `call_timeout`."""
        given = request.query_params.get("timeout")
        if given is None:
            usual_s = self._web_view.here().settings.call_timeout.total_seconds()
            return min(usual_s, WAIT_MOST_S) if default_s is None else default_s
        within_s = _duration_s(given, what="timeout")
        if not WAIT_LEAST_S <= within_s <= WAIT_MOST_S:
            bounds = f"one request waits for {WAIT_LEAST_S:g}s to {WAIT_MOST_S:g}s"
            raise CallRefusal(422, "invalid_argument", f"timeout is {given[:20]!r}: {bounds}")
        return within_s

    @contextmanager
    def _slot(self) -> Iterator[None]:
        if self._under_way >= CALLS_MOST:
            problem = f"{CALLS_MOST} requests are under way on this runner"
            raise CallRefusal(503, "too_many_calls", problem, "ask another runner, or later", retryable=True)
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


@contextmanager
def refusals(*, about: object = "the cluster", within_s: float = 0.0) -> Iterator[None]:
    """Turn errors into refusals of the one form. See `refusal_of`."""
    try:
        yield
    except CoterieError as error:
        raise refusal_of(error, about=about) from None
    except ValueError as error:  # an id that cannot be one
        raise CallRefusal(422, "invalid_argument", visible(str(error))) from None
    except TimeoutError:
        raise refusal_of(SendTimeout(target=str(about), waited_s=within_s)) from None


def json_of(value: Any, status: int = 200) -> Response:
    """A value as JSON: whole numbers are exact, bytes are base64, instants RFC 3339, durations ISO 8601."""
    try:
        body = msgspec.json.encode(value)
    except (TypeError, ValueError):  # keys that are no text
        body = msgspec.json.encode(plain(value))
    return Response(body, status, media_type=_JSON)


def _told(row: UnitRow) -> dict[str, Any]:
    from coterie.workflows.api import info_of

    info = info_of(row)
    return {
        "workflow": info.name,
        "id": info.id,
        "status": info.status,
        "started_at": instant(info.started_at),
        "ended_at": instant(info.ended_at),
        "problem": info.error,
    }


def _not_offered(name: str) -> CallRefusal:
    """The same, whether it exists or not."""
    hint = "the setting http_calls names what can be called"
    return CallRefusal(404, "not_offered", f"{visible(name[:200])} is not called over HTTP", hint)


def _require_caller(request: Request) -> None:
    """Refuse a request without the token, or from a page of another site."""
    if not may_call(request):
        hint = "this needs http_calls_token, in the header Authorization: Bearer …"
        raise CallRefusal(
            401, "unauthorized", "this is not for everybody", hint, headers={"www-authenticate": "Bearer"}
        )
    if is_foreign(request):
        raise CallRefusal(403, "foreign_origin", "this was sent by a page of another site", "call from a server")
    if request.method == "POST":
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _JSON:
            raise CallRefusal(415, "not_json", f"the content type is not {_JSON}")


def _segments(request: Request, verb: str, count: int) -> list[str]:
    """The parts of the path after `/api/<verb>/`, decoded one by one: `%2F` belongs to its part."""
    raw: bytes = request.scope.get("raw_path") or quote(request.scope["path"]).encode()
    _, _, rest = raw.partition(b"?")[0].partition(f"/api/{verb}/".encode())
    parts = rest.split(b"/")
    if len(parts) != count:
        hint = "write a / in an id as %2F; /openapi.json lists the paths"
        raise CallRefusal(404, "not_found", "there is nothing here", hint)
    try:
        return [unquote_to_bytes(part).decode() for part in parts]
    except UnicodeDecodeError:
        raise CallRefusal(422, "invalid_argument", "the path is not UTF-8") from None


def _place(request: Request, path: str) -> str:
    return f"{request.scope.get('root_path', '')}{path}"


def _key(request: Request) -> str | None:
    """The header `Idempotency-Key`: as it is, or as a quoted string."""
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    key = given[0].strip()
    if _KEY_QUOTED.fullmatch(key):
        key = re.sub(r"\\(.)", r"\1", key[1:-1])
    if len(given) > 1 or not key.isascii() or not key.isprintable() or not 1 <= len(key) <= KEY_MOST:
        hint = f"one header with 1 to {KEY_MOST} visible ASCII characters"
        raise CallRefusal(422, "invalid_argument", "the Idempotency-Key cannot be read", hint)
    return key


async def _map_of(request: Request) -> bytes:
    return await _json_of(request) or b"{}"


async def _json_of(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MOST_BYTES:
            problem = f"the arguments are larger than {BODY_MOST_BYTES:,} bytes"
            raise CallRefusal(413, "too_large", problem, "put large data elsewhere and send its name")
    return body.strip()


def _when(request: Request) -> tuple[datetime | None, float]:
    """`?at=2026-03-29T02:30:00Z` or `?delay=10m`."""
    at, delay = request.query_params.get("at"), request.query_params.get("delay")
    if at is not None and delay is not None:
        raise CallRefusal(422, "invalid_argument", "at and delay are both given", "give one of them")
    if at is None:
        return None, 0.0 if delay is None else _duration_s(delay, what="delay")
    try:
        due = datetime.fromisoformat(at.replace(" ", "+"))  # a + in a query is a space
    except ValueError:
        due = datetime.min  # noqa: DTZ901 it is refused below
    if due.tzinfo is None:
        raise CallRefusal(422, "invalid_argument", f"at is {at[:40]!r}", "write 2026-03-29T02:30:00Z")
    return due, 0.0


def _priority(request: Request) -> int | None:
    """`?priority=5`."""
    given = request.query_params.get("priority")
    if given is None:
        return None
    if not re.fullmatch("-?[0-9]{1,3}", given):
        raise CallRefusal(422, "invalid_argument", f"priority is {given[:20]!r}", "write -100 to 100")
    return int(given)


def _duration_s(text: str, *, what: str) -> float:
    try:
        return to_seconds(text, what=what, allow_zero=True)
    except (CoterieError, ValueError):
        raise CallRefusal(422, "invalid_argument", f"{what} is {text[:20]!r}", "write 500ms, 5s or 10m") from None
