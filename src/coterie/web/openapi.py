"""The OpenAPI document at /openapi.json."""

from __future__ import annotations

from typing import Any

from coterie.observe.view import PAGES

_TEXT = {"type": "string"}
_INSTANT = {"type": ["string", "null"], "format": "date-time"}
_COUNT = {"type": "integer", "minimum": 0}
_SECONDS = {"type": ["number", "null"]}
_STATUS = {"enum": ["healthy", "degraded", "unhealthy"]}


def document(version: str) -> dict[str, Any]:
    """The whole document."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "coterie",
            "version": version,
            "description": "Probes, health and metrics of one runner. "
            "From other machines everything but the words of the probes needs the token.",
        },
        "servers": [{"url": "."}],
        "paths": {
            "/live": _probe("Whether the process turns its loop. Asks nobody.", "live"),
            "/ready": _probe("Whether work may be sent here: it makes progress.", "ready", "unready"),
            "/startup": _probe("Whether it has started; stays so until the process ends.", "started", "starting"),
            "/health": _health(),
            "/metrics": _metrics(),
            "/api/view": _view(),
            "/openapi.json": {"get": _guarded("This document.", {"200": _json("The document.", {"type": "object"})})},
        },
        "components": {
            "schemas": {"Reason": _REASON, "Probe": _PROBE, "Health": _HEALTH, "View": _VIEW, "Error": _ERROR},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "http_token"}},
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


def _view() -> dict[str, Any]:
    named = {
        "name": "pages",
        "in": "query",
        "description": "Which pages; all of them if left out.",
        "style": "form",
        "explode": False,
        "schema": {"type": "array", "items": {"enum": list(PAGES)}, "minItems": 1},
    }
    answers = {
        "200": _json("The pages, all of one moment.", _ref("View")),
        "400": _json("There is no such page.", _ref("Error")),
        "503": _json("The database could not be asked.", _ref("Error")),
    }
    return {"get": {**_guarded("Pages of the read model.", answers), "parameters": [named]}}


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


_REFUSED = {"421": _json("On loopback, with a Host header that names another machine.", _ref("Error"))}
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
