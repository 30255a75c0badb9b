"""The OpenAPI document at /openapi.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.observe.jobs.filter import JOB_WORDS
from coterie.observe.message_filter import STATES
from coterie.observe.view import PAGES
from coterie.web.calls.schemas import described
from coterie.web.details import LIST_MOST, TAG_MOST

if TYPE_CHECKING:
    from coterie.web.calls.offer import Offer

_TEXT = {"type": "string"}
_INSTANT = {"type": ["string", "null"], "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_SECONDS = {"type": ["number", "null"]}
_STATUS = {"enum": ["healthy", "degraded", "unhealthy"]}


def document(version: str, *, page: bool = True, offer: Offer | None = None) -> dict[str, Any]:
    """The whole document.

    Args:
        version: Of this library.
        page: Whether there is the page: see the setting `web`.
        offer: What can be called; None: nothing.
    """
    calls, schemas, schemes = ({}, {}, {}) if offer is None else described(offer)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "coterie",
            "version": version,
            "description": "Probes, health and metrics of one runner, and the page in the browser. "
            "From other machines everything but the words of the probes needs the token.",
        },
        "servers": [{"url": "."}],
        "paths": {
            "/live": _probe("Whether the process turns its loop. Asks nobody.", "live"),
            "/ready": _probe("Whether work may be sent here: it makes progress.", "ready", "unready"),
            "/startup": _probe("Whether it has started; stays so until the process ends.", "started", "starting"),
            "/health": _health(),
            "/metrics": _metrics(),
            "/openapi.json": {"get": _guarded("This document.", {"200": _json("The document.", {"type": "object"})})},
            **(_page() if page else {}),
            **calls,
        },
        "components": {
            "schemas": {
                "Reason": _REASON,
                "Probe": _PROBE,
                "Health": _HEALTH,
                "View": _VIEW,
                "Session": _SESSION,
                "Act": _ACT,
                "Error": _ERROR,
                **schemas,
            },
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "http_token"},
                **schemes,
            },
        },
    }


def _probe(summary: str, yes: str, no: str | None = None) -> dict[str, Any]:
    answers = {"200": _json(f'"{yes}"', _ref("Probe"))}
    if no is not None:
        answers["503"] = _json(f'"{no}", and why', _ref("Probe"))
    return {"get": {"summary": summary, "responses": answers | _REFUSED}}


def _health() -> dict[str, Any]:
    answers = {
        "200": _json("It is healthy or degraded.", _ref("Health")),
        "503": _json("It is unhealthy, or that could not be found out.", _ref("Health")),
    }
    return {"get": _guarded("How the whole cluster stands, and why.", answers)}


def _page() -> dict[str, Any]:
    return {
        "/": _index(),
        "/page/{file}": _asset(),
        "/api/session": _session(),
        "/api/view": _view(),
        "/api/stream": _stream(),
        **{f"/api/{name}": _detail(*described) for name, described in _DETAILS.items()},
        "/api/acts/{act}": _act(),
    }


_NAME = {"type": "string", "minLength": 1, "pattern": "^[^\\u0000]+$"}
_PART = {"type": "string", "pattern": "^[^\\u0000]*$"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIST_MOST}
_AT = {"type": "string", "format": "date-time"}
_ID = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
_FILTER = {
    **dict.fromkeys(("type", "method", "error", "key", "after"), _PART),
    "entity": {**_PART, "description": "The id of an entity; with type."},
    "state": {"enum": list(STATES)},
    "older": {"type": "string", "pattern": "^[0-9]{1,4}[smhd]$"},
    "limit": _LIMIT,
}

_JOB_FILTER = {
    **dict.fromkeys(("task", "queue", "error", "key", "after"), _PART),
    "state": {"enum": list(JOB_WORDS)},
    "tag": {"type": "string", "maxLength": TAG_MOST, "pattern": "^[^=\\u0000]+=[^\\u0000]*$"},
    "older": {"type": "string", "pattern": "^[0-9]{1,4}[smhd]$"},
    "limit": _LIMIT,
}

_DETAILS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "singleton": ("A singleton: its states, and who led.", {"name": _NAME}, ["line", "state", "saved", "history"]),
    "cron": ("A cron: its next and last ticks.", {"name": _NAME}, ["line", "next", "history"]),
    "ticks": (
        "The ticks of crons on a line of time: of the named ones, else of the first 200.",
        {"name": {"type": "array", "items": _NAME}, "from": _AT, "until": _AT},
        ["from", "until", "crons", "more"],
    ),
    "shards/moves": ("Moves of shards of the last hour, the oldest first.", {}, ["since", "moves"]),
    "entities": ("The active entities of a type.", {"type": _NAME, "limit": _LIMIT}, ["entities", "more"]),
    "entity": ("An entity.", {"type": _NAME, "id": _NAME}, ["type", "id", "known", "state"]),
    "messages": ("Messages, the newest first; after= goes on.", _FILTER, ["messages", "more"]),
    "message": ("A message.", {"id": _NAME}, ["message"]),
    "jobs": ("Jobs, the newest first; after= goes on.", _JOB_FILTER, ["jobs", "more"]),
    "job": ("A job.", {"id": _NAME}, ["job"]),
    "schedules": (
        "Schedules made at run time, by name, with their instants until then; after= goes on.",
        {"prefix": _PART, "after": _PART, "limit": _LIMIT, "until": _AT},
        ["now", "until", "schedules", "more"],
    ),
    "schedule": ("A schedule made at run time.", {"name": _NAME}, ["schedule"]),
    "workflow": ("A run of a workflow.", {"name": _NAME, "id": _NAME}, ["line", "steps", "waits"]),
    "activity": ("What was done, the newest first.", {"before": _ID, "limit": _LIMIT}, ["rows", "more"]),
    "kv": ("Keys, in order.", {"prefix": _PART, "after": _PART, "limit": _LIMIT}, ["entries", "more"]),
}
"""By route: what it shows, its parameters (those that may not be empty are required), fields that are always there."""


def _detail(summary: str, parameters: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    answers = {
        "200": _json("As docs/page.md describes it.", {"type": "object", "required": fields}),
        "400": _json("A parameter is missing or does not fit.", _ref("Error")),
        "403": _json("The setting redact hides what was asked for.", _ref("Error")),
        "404": _json("There is none.", _ref("Error")),
        "503": _json("The database could not be asked, or this runner is not up.", _ref("Error")),
    }
    asked = [
        {"name": name, "in": "query", "required": schema is _NAME, "schema": schema}
        for name, schema in parameters.items()
    ]
    return {"get": {**_guarded(summary, answers), "parameters": asked}}


def _act() -> dict[str, Any]:
    parameters = [
        {"name": "act", "in": "path", "required": True, "schema": _TEXT},
        {"name": "preview", "in": "query", "description": "Say what it would do, and do nothing.", "schema": _TEXT},
        {"name": "x-coterie-act", "in": "header", "required": True, "description": "Of /api/session.", "schema": _TEXT},
    ]
    answers = {
        "200": _json("It is done; or what it would do.", _ref("Act")),
        "400": _json("The body cannot be read, or does not fit.", _ref("Error")),
        "403": _json("It may not act, or was not sent by the page.", _ref("Error")),
        "404": _json("There is no such act, or nothing of this name.", _ref("Error")),
        "409": _json("It is in another state.", _ref("Error")),
        "413": _json("The body is too large.", _ref("Error")),
        "415": _json("The body is no JSON.", _ref("Error")),
        "503": _json("The database or a runner could not be asked.", _ref("Error")),
    }
    body = {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}
    guarded = _guarded("Change something, and record who did.", answers)
    return {"post": {**guarded, "parameters": parameters, "requestBody": body}}


def _index() -> dict[str, Any]:
    content = {"text/html": {"schema": _TEXT}, "text/plain": {"schema": _TEXT}}
    answers = {
        "200": {"description": "The page for browsers, else the text of coterie status.", "content": content},
        "503": _json("The database could not be asked.", _ref("Error")),
    }
    return {"get": _guarded("The page in the browser.", answers)}


def _asset() -> dict[str, Any]:
    file = {"name": "file", "in": "path", "required": True, "schema": _TEXT}
    types = ("text/css", "text/html", "text/javascript", "text/plain", "image/svg+xml")
    answers = {
        "200": {"description": "The file.", "content": {each: {"schema": _TEXT} for each in types}},
        "304": _UNCHANGED,
        "404": _json("There is no such file.", _ref("Error")),
    }
    return {"get": {**_guarded("A file of the page.", answers), "parameters": [file]}}


def _session() -> dict[str, Any]:
    answers = {"200": _json("Who answers, and what this client may do.", _ref("Session"))}
    return {"get": _guarded("What the page needs to know first.", answers)}


def _view() -> dict[str, Any]:
    answers = {
        "200": _json("The pages, all of one moment.", _ref("View")),
        "304": _UNCHANGED,
        "400": _json("There is no such page.", _ref("Error")),
        "503": _json("The database could not be asked.", _ref("Error")),
    }
    return {"get": {**_guarded("Pages of the read model.", answers), "parameters": [_PAGES_NAMED]}}


def _stream() -> dict[str, Any]:
    last = {"name": "Last-Event-ID", "in": "header", "description": "The id of the last event seen.", "schema": _TEXT}
    events = "Events: view (a View), changes ({revision, at, runner, set, remove}), bye."
    answers = {
        "200": {"description": events, "content": {"text/event-stream": {"schema": {"type": "object"}}}},
        "400": _json("There is no such page.", _ref("Error")),
        "503": _json("The database could not be asked, or too many streams are open.", _ref("Error")),
    }
    return {"get": {**_guarded("The pages and what changes in them.", answers), "parameters": [_PAGES_NAMED, last]}}


def _metrics() -> dict[str, Any]:
    text = {"schema": _TEXT}
    content = {"text/plain": text, "application/openmetrics-text": text}
    return {"get": _guarded("For Prometheus.", {"200": {"description": "The metrics.", "content": content}})}


def _guarded(summary: str, answers: dict[str, Any]) -> dict[str, Any]:
    refused = {"401": _json("From another machine, without the token.", _ref("Error"))}
    return {"summary": summary, "security": [{}, {"token": []}], "responses": answers | refused | _REFUSED}


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": required | optional}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_PAGES_NAMED = {
    "name": "pages",
    "in": "query",
    "description": "Which pages; all of them if left out.",
    "style": "form",
    "explode": False,
    "schema": {"type": "array", "items": {"enum": list(PAGES)}, "minItems": 1},
}
_REFUSED = {"421": _json("On loopback, with a Host header that names another machine.", _ref("Error"))}
_UNCHANGED = {"description": "What If-None-Match names is what there is."}
_ERROR = _object({"error": _TEXT}, hint=_TEXT)
_REASON = _object({"status": _STATUS, "what": _TEXT, "problem": _TEXT, "hint": _TEXT}, runner=_TEXT)
_PROBE = _object({"status": _TEXT}, reasons=_list(_ref("Reason")))
_RUNNER = _object(
    {"id": _TEXT, "name": _TEXT, "answered": {"type": "boolean"}},
    version=_TEXT,
    ready={"type": "boolean"},
    draining={"type": "boolean"},
    up_s=_SECONDS,
    seats=_COUNT,
    entities=_COUNT,
    waiting=_COUNT,
    running=_COUNT,
    loop_lag_s=_SECONDS,
    storage_s=_SECONDS,
    clock_offset_s=_SECONDS,
    lease_left_s=_SECONDS,
    memory_bytes=_COUNT,
)
_SINGLETON = _object(
    {
        "name": _TEXT,
        "leader": {"type": ["string", "null"]},
        "epoch": _COUNT,
        "alive_at": _INSTANT,
        "progress_at": _INSTANT,
        "last_run_at": _INSTANT,
        "runs": _COUNT,
        "expected_interval_s": _SECONDS,
        "ok": {"type": "boolean"},
    }
)
_CRON = _object(
    {
        "name": _TEXT,
        "schedule": _TEXT,
        "timezone": _TEXT,
        "runner": {"type": ["string", "null"]},
        "epoch": _COUNT,
        "last_run_at": _INSTANT,
        "next_at": _INSTANT,
        "paused_at": _INSTANT,
        "runs": _COUNT,
        "ok": {"type": "boolean"},
    }
)
_HEALTH = _object(
    {"status": _STATUS, "at": _INSTANT, "reasons": _list(_ref("Reason"))},
    runners=_object({"count": _COUNT, "healthy": _COUNT, "list": _list(_RUNNER)}),
    shards=_object({"count": _COUNT, "owned": _COUNT}),
    entities={"type": ["integer", "null"], "minimum": 0},
    singletons=_list(_SINGLETON),
    crons=_list(_CRON),
    messages=_object({"overdue_s": {"type": "number"}, "dead": _COUNT}),
)
_VIEW = _object(
    {
        "revision": _COUNT,
        "at": _INSTANT,
        "runner": {"type": ["string", "null"]},
        "data": {"type": "object", "properties": {page: {} for page in PAGES}, "additionalProperties": False},
    }
)
_SESSION = _object(
    {
        "cluster": _TEXT,
        "runner": {"type": ["string", "null"]},
        "version": _TEXT,
        "access": {"enum": ["read", "act"]},
        "token": {"type": ["string", "null"]},
        "redacted": {"type": "boolean"},
    }
)
_ACT = {
    "oneOf": [
        _object({"will": _TEXT, "count": _COUNT}),
        _object({"done": _TEXT, "count": _COUNT}),
    ]
}
