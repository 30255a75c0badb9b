"""The part of the OpenAPI document that describes calls: each method with the JSON schema of its arguments and result.

Schemas are made of the same annotations by which arguments are checked. A type whose schema cannot be made (a class
that checks its values by itself) is described as any value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from coterie.kernel.serialization.models import is_model_type
from coterie.web.calls.handlers import KEY_MOST, WAIT_MOST_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from msgspec.structs import FieldInfo

    from coterie.entities.rpc import Rpc
    from coterie.tasks.definition import TaskType
    from coterie.web.calls.offer import Offer
    from coterie.workflows.definition import WorkflowType

_OURS = "program."
"""Before the names of the program's classes, so that none of them replaces a schema of ours."""
_SCHEME = "calls"


def described(offer: Offer) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The paths, the schemas and the security scheme of what can be called."""
    methods = [(entity_type, rpc, rpc.arguments.fields) for entity_type, rpc in offer.methods()]
    runs, tasks = list(offer.runs()), [(task, task.arguments.fields) for task in offer.offered_tasks()]
    kinds = [field.type for _, _, fields in methods for field in fields]
    kinds += [rpc.result.type for _, rpc, _ in methods]
    kinds += [field.type for _, fields in tasks for field in fields]
    kinds += [kind for run in runs for kind in (run.payload.type, run.result.type)]
    schemas = Schemas(kinds)
    paths: dict[str, Any] = {}
    for entity_type, rpc, fields in methods:
        place = f"{quote(entity_type.name, safe='')}/{{id}}/{rpc.name}"
        arguments = _arguments(fields, schemas)
        paths[f"/api/call/{place}"] = {"post": _call(rpc, arguments, schemas)}
        paths[f"/api/send/{place}"] = {"post": _send(rpc, arguments)}
    for run in runs:
        place = f"/api/workflows/{quote(run.name, safe='')}/{{id}}"
        paths[place] = {"post": _start(run, schemas), "get": _run(run, schemas)}
    for task, fields in tasks:
        paths[f"/api/tasks/{quote(task.name, safe='')}"] = {"post": _job(task, _arguments(fields, schemas))}
    paths["/api/result/{message}"] = {"get": _result()}
    scheme = {"type": "http", "scheme": "bearer", "description": "http_calls_token"}
    components = {**schemas.components, "CallError": _ERROR, "Sent": _SENT, "Run": _RUN}
    return paths, components, {_SCHEME: scheme}


class Schemas:
    """The JSON schemas of types.

    Args:
        kinds: All types that are asked for.
    """

    def __init__(self, kinds: Sequence[Any]) -> None:
        self.components: dict[str, Any] = {}
        self._kinds = kinds  # kept, since they are known by their identity: some types have no hash
        self._schemas: dict[int, Any] = {}
        try:
            self._add(kinds)
        except Exception:  # noqa: BLE001 two local classes of one name, or a hook of a class that raises: one by one
            for kind in kinds:
                self._add_alone(kind)

    def of(self, kind: Any) -> Any:
        """The schema of one of them."""
        return self._schemas[id(kind)]

    def _add(self, kinds: Sequence[Any]) -> None:
        template = f"#/components/schemas/{_OURS}{{name}}"
        found, components = msgspec.json.schema_components(kinds, schema_hook=_of_class, ref_template=template)
        named = {f"{_OURS}{name}": schema for name, schema in components.items()}
        if any(self.components.get(name, schema) != schema for name, schema in named.items()):
            raise ValueError("another class of this name has another schema")
        self._schemas |= {id(kind): schema for kind, schema in zip(kinds, found, strict=True)}
        self.components |= named

    def _add_alone(self, kind: Any) -> None:
        try:
            self._add([kind])
        except Exception:  # noqa: BLE001 as above
            self._schemas[id(kind)] = {}


def _of_class(kind: type) -> dict[str, Any]:
    """The schema of a class that msgspec does not know; nothing is promised of it if it has none."""
    if is_model_type(kind):
        schema: dict[str, Any] = kind.model_json_schema(ref_template="#/$defs/{model}")
        return {} if "$defs" in schema else schema  # its references would lead nowhere in our document
    base = next((base for base in (bool, int, float, str) if issubclass(kind, base)), None)
    return {} if base is None else msgspec.json.schema(base)


# ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────


def _call(rpc: Rpc, arguments: Any, schemas: Schemas) -> dict[str, Any]:
    answers = {"200": _json("Its result.", schemas.of(rpc.result.type)), "504": _error("It has no result in time.")}
    return _posted(f"Call {rpc.what} and wait for its result.", arguments, answers, _options(rpc))


def _send(rpc: Rpc, arguments: Any) -> dict[str, Any]:
    stored = "It is stored." if rpc.persisted else "A runner has accepted it."
    answers = {"202": _json(stored, _ref("Sent")), "504": _error("It is not known whether it was sent.")}
    parameters = [*_options(rpc), *(_LATER if rpc.persisted else [])]
    return _posted(f"Send {rpc.what} without waiting for its result.", arguments, answers, parameters)


def _job(task: TaskType, arguments: Any) -> dict[str, Any]:
    answers = {"202": _json("It is stored.", _ref("Sent")), "504": _error("It is not known whether it was stored.")}
    parameters = [_TIMEOUT, _KEY, *_LATER, _PRIORITY]
    return _posted(f"Send a job of {task.name}.", arguments, answers, parameters, has_id=False)


def _start(run: WorkflowType, schemas: Schemas) -> dict[str, Any]:
    answers = {"202": _json("It is started, or was before.", _ref("Run")), "504": _error("It is not known.")}
    return _posted(f"Start a run of {run.name}, once for each id.", schemas.of(run.payload.type), answers, [_TIMEOUT])


def _run(run: WorkflowType, schemas: Schemas) -> dict[str, Any]:
    told = {"allOf": [_ref("Run"), {"properties": {"result": schemas.of(run.result.type)}}]}
    return _got(f"How a run of {run.name} stands, and its result.", {"200": _json("The run.", told)}, [_ID, _TIMEOUT])


def _result() -> dict[str, Any]:
    message = {"name": "message", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
    answers = {
        "200": _json("Its result.", {}),
        "202": _json("It has none yet.", _ref("Sent")),
        "409": _error("It ended with a declared error, or was cancelled."),
    }
    return _got("The result of a message that was sent.", answers, [message, _TIMEOUT])


def _arguments(fields: Sequence[FieldInfo], schemas: Schemas) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {each.name: schemas.of(each.type) for each in fields},
        "required": [each.name for each in fields if each.required],
        "additionalProperties": False,
    }


def _options(rpc: Rpc) -> list[dict[str, Any]]:
    return [_TIMEOUT, *([_KEY] if rpc.persisted else [])]


def _posted(
    summary: str, body: Any, answers: dict[str, Any], parameters: list[dict[str, Any]], *, has_id: bool = True
) -> dict[str, Any]:
    refused = {
        "409": _error("A declared error of the handler; or the key or id was used with other arguments."),
        "413": _error("The body is too large."),
        "415": _error("The body is no JSON."),
        "429": _error("The mailbox is full."),
    }
    content = {"required": True, "content": {"application/json": {"schema": body}}}
    return {**_got(summary, answers | refused, [*([_ID] if has_id else []), *parameters]), "requestBody": content}


def _got(summary: str, answers: dict[str, Any], parameters: list[dict[str, Any]]) -> dict[str, Any]:
    refused = {
        "401": _error("Without the token."),
        "403": _error("Sent by a page of another site."),
        "404": _error("There is none, or http_calls does not name it."),
        "421": _json("On loopback, with a Host header that names another machine.", _ref("Error")),
        "422": _error("The arguments, the id or an option do not fit."),
        "500": _error("The handler has failed."),
        "503": _error("No runner or database answers, or too many calls are under way."),
    }
    return {"summary": summary, "security": _SECURITY, "parameters": parameters, "responses": answers | refused}


def _error(description: str) -> dict[str, Any]:
    return _json(description, _ref("CallError"))


def _json(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_SECURITY: list[dict[str, list[str]]] = [{_SCHEME: []}]
_TEXT = {"type": "string"}
_DURATION = "^[0-9]{1,4}(ms|s|m)$"
_LATER = [
    {"name": "delay", "in": "query", "schema": {"type": "string", "pattern": _DURATION}},
    {"name": "at", "in": "query", "schema": {"type": "string", "format": "date-time"}},
]
_PRIORITY = {"name": "priority", "in": "query", "schema": {"type": "integer", "minimum": -100, "maximum": 100}}
_ID = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "Any text; a / in it is written as %2F.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 250, "pattern": "^[^\\u0000]+$"},
}
_TIMEOUT = {
    "name": "timeout",
    "in": "query",
    "description": f"How long to wait, {WAIT_MOST_S:g}s at most.",
    "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,1}s$"},
}
_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Calls with the same key are one call.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MOST, "pattern": "^[A-Za-z0-9_.:-]+$"},
}
_ERROR = {
    "type": "object",
    "required": ["error", "code", "retryable"],
    "properties": {
        "error": _TEXT,
        "code": _TEXT,
        "hint": _TEXT,
        "retryable": {"type": "boolean"},
        "type": {**_TEXT, "description": "The class of the handler's error."},
        "message": {**_TEXT, "description": "The message that is stored, and runs."},
    },
}
_SENT = {
    "type": "object",
    "required": ["message"],
    "properties": {"message": _TEXT, "persisted": {"type": "boolean"}, "status": _TEXT},
}
_RUN = {
    "type": "object",
    "required": ["workflow", "id", "status"],
    "properties": {
        "workflow": _TEXT,
        "id": _TEXT,
        "status": {"enum": ["running", "suspended", "done", "failed", "interrupted"]},
        "started_at": {**_TEXT, "format": "date-time"},
        "ended_at": {"type": ["string", "null"], "format": "date-time"},
        "problem": {"type": ["string", "null"]},
    },
}
