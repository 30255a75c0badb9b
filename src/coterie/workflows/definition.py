"""Builds a `WorkflowType` from a function. All validation happens here, when the program is loaded."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_type_hints

from coterie.entities.arguments import locals_around
from coterie.errors import ConfigurationError
from coterie.kernel.ids import EntityAddress, Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import PLAIN, Codec, codec_for
from coterie.kernel.text import require_text
from coterie.settings import parsers
from coterie.work.definition import refusal, refuse_unknown, retry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from coterie.kernel.retry import Retry
    from coterie.workflows.workflow import Workflow

    WorkflowBody = Callable[[Workflow, Any], Coroutine[Any, Any, Any]]


_WRONG_CODE = (NameError, AttributeError, TypeError, ImportError)
"""Errors that say that the program is wrong, not what it works on."""


class WorkflowOptions(TypedDict, total=False):
    """The options of `@cluster.workflow(…)`."""

    name: str | None
    """Its name in the cluster. Default: the name of the function."""
    group: str
    """The shard group whose runners run it. Default: `default`."""
    retry: Retry | None
    """Retry policy for steps that raise. Default: no retries."""
    on_failure: Literal["undo", "hold"]
    """What a run does that has failed: run its compensations (the default), or nothing until `retry` or `interrupt`."""
    stuck_on: Sequence[type[Exception]]
    """Errors of the function itself, outside of steps, that do not fail a run: it is suspended and tried again when its
    shard gets another holder, at `resume`, and after 10 s, doubling to 10 min. Default: `NameError`, `AttributeError`,
    `TypeError` and `ImportError`, which other code may not raise."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WorkflowType:
    """The definition of one workflow, made once."""

    name: str
    body: WorkflowBody
    group: str
    payload: Codec[Any]
    result: Codec[Any]
    retry: Retry | None
    """The default retry policy of its steps; None: no retries."""
    on_failure: Literal["undo", "hold"]
    stuck_on: tuple[type[Exception], ...]
    """The errors of the function itself that suspend a run instead of failing it."""
    version: str
    """The version of its code: a hash of the function's bytecode."""

    def unit(self, id: str) -> str:
        """The key of one run."""
        return unit_of(self.name, id)

    def seat(self, id: str, shards: int) -> str:
        """The seat on which one run lives."""
        return Seat.shard(ShardId(self.group, shard_number(f"workflow {self.name}", id, shards)))


def unit_of(name: str, id: str) -> str:
    """The key of one run."""
    return f"workflow:{name}/{id}"


def define(body: Any, options: WorkflowOptions) -> WorkflowType:
    """Build the workflow that a function describes.

    Raises:
        ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
    """
    refuse_unknown(options, WorkflowOptions.__annotations__, what="a workflow")
    name = str(options.get("name") or getattr(body, "__name__", ""))
    what = f"workflow {name!r}"
    hint = f"write async def {name if name.isidentifier() else 'work'}(workflow, payload)"
    if not inspect.iscoroutinefunction(inspect.unwrap(body)):
        raise refusal(f"{what}: {getattr(body, '__name__', body)!r} is no async function", hint=hint)
    parameters = _parameters(body, what, hint)
    hints = _hints(body, (parameters[1], "return"), what)
    return WorkflowType(
        name=_require_name(name),
        body=body,
        group=parsers.name().read(options.get("group", "default"), what=f"group of {what}"),
        payload=_codec(hints.get(parameters[1], Any), f"payload of {what}"),
        result=_codec(hints.get("return", Any), f"result of {what}"),
        retry=retry_of(options.get("retry"), what=what),
        on_failure=_on_failure(options.get("on_failure", "undo"), what),
        stuck_on=_stuck_on(options.get("stuck_on", _WRONG_CODE), what),
        version=_version(body),
    )


def require_id(id: Any) -> str:
    """Validate the id of a run: both databases must return it exactly [incident 17]."""
    if not isinstance(id, str) or not id.strip():
        raise ValueError(f"id of a workflow is {id!r}, expected text that is not empty")
    return EntityAddress("workflow", require_text(id, what="id of a workflow")).id


def _require_name(name: Any) -> str:
    try:
        return EntityAddress(name, "id").type
    except (ValueError, TypeError, AttributeError) as error:
        raise refusal(str(error).replace("entity type", "workflow's name")) from error


def _on_failure(value: Any, what: str) -> Literal["undo", "hold"]:
    if value not in ("undo", "hold"):
        raise refusal(f"{what}: on_failure is {value!r}", hint='write on_failure="undo" or "hold"')
    return "hold" if value == "hold" else "undo"


def _stuck_on(value: Any, what: str) -> tuple[type[Exception], ...]:
    given = tuple(value) if isinstance(value, list | tuple | set | frozenset) else (value,)
    if not all(isinstance(each, type) and issubclass(each, Exception) for each in given):
        raise refusal(f"{what}: stuck_on is {value!r}", hint="write classes of exceptions, as in stuck_on=[NameError]")
    return given


def _parameters(body: Any, what: str, hint: str) -> list[str]:
    signature = inspect.signature(body)
    try:
        signature.bind(None, None)
    except TypeError:
        raise refusal(f"{what} does not take two arguments, itself and its payload", hint=hint) from None
    return [*signature.parameters, ""][:2] if len(signature.parameters) > 1 else [*signature.parameters, "", ""]


def _hints(body: Any, names: Sequence[str], what: str) -> dict[str, Any]:
    """The types of its payload and its result; the annotation of its first parameter may exist for checkers only."""
    fn = inspect.unwrap(body)
    annotations = getattr(fn, "__annotations__", {})
    wanted = SimpleNamespace(__annotations__={name: annotations[name] for name in names if name in annotations})
    try:
        return get_type_hints(wanted, globalns=getattr(fn, "__globals__", {}), localns=locals_around(fn))
    except Exception as error:
        raise refusal(
            f"{what}: its annotations cannot be read: {error}",
            hint="annotations are needed when the program runs: import their types outside of `if TYPE_CHECKING`",
        ) from error


def _codec(kind: Any, what: str) -> Codec[Any]:
    if kind is Any:
        return PLAIN
    try:
        return codec_for(kind)
    except ConfigurationError as error:
        raise refusal(f"{what}: {error.message}") from error


def _version(body: Any) -> str:
    code = getattr(inspect.unwrap(body), "__code__", None)
    data = b"" if code is None else code.co_code + repr([c for c in code.co_consts if isinstance(c, str)]).encode()
    return hashlib.sha256(data).hexdigest()[:12]
