"""`@rpc`, which marks a method of an entity as callable from any process, and what is known of such a method."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from coterie.entities.annotations import codec_of, hints_of, item_hints
from coterie.entities.counting import Counted
from coterie.entities.declared import declared_errors
from coterie.entities.keys import ACCEPTED, can_be_key
from coterie.entities.payloads import Arguments
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.serialization.codec import codec_for
from coterie.work.definition import refusal, refuse_unknown

if TYPE_CHECKING:
    from coterie.kernel.serialization.codec import Codec

Fn = TypeVar("Fn", bound=Callable[..., Coroutine[Any, Any, Any]] | Callable[..., AsyncIterator[Any]])

_MARK = "__coterie_rpc__"


@dataclass(frozen=True, slots=True)
class Options:
    """What was written in `@rpc(…)`."""

    persisted: bool = False
    key: str | tuple[str, ...] | None = None
    errors: Sequence[type[Exception]] = ()
    timeout: Duration | None = None


@overload
def rpc(fn: Fn, /) -> Fn: ...
@overload
def rpc(
    *,
    persisted: bool = False,
    key: str | tuple[str, ...] | None = None,
    errors: Sequence[type[Exception]] = (),
    timeout: Duration | None = None,
) -> Callable[[Fn], Fn]: ...
def rpc(fn: Any = None, /, **options: Any) -> Any:
    """Let any process call this method of an entity, with and without parentheses.

    An `async def` gives one result; an async generator (with `yield` in it) gives a stream of items. Parameters
    and result are annotated: by these types payloads are encoded, and refused if they do not fit.

    Example:
        ```python
        @rpc(persisted=True, key="order_id", errors=[Overdrawn])
        async def charge(self, order_id: str, cents: int) -> int: ...
        ```

    Args:
        fn: The method.
        options: By name:
            persisted: The call is written to the database before it is acknowledged.
            key: The parameter, or parameters, whose values make a repeated call the same call.
            errors: The exceptions that are results: they reach the caller as themselves, others as `RemoteError`.
            timeout: How long a caller waits. None: the setting `call_timeout`.

    Raises:
        ConfigurationError: It is no `async def`, or an option cannot be used.
    """
    refuse_unknown(options, Options.__dataclass_fields__, what="@rpc")
    declared = Options(**options)
    return _mark(fn, declared) if fn is not None else lambda fn: _mark(fn, declared)


def options_of(member: object) -> Options | None:
    """The options of a method that was marked with `@rpc`; None for anything else."""
    found: Options | None = getattr(getattr(member, "__func__", member), _MARK, None)  # also of a static method
    return found


def _mark(fn: Any, options: Options) -> Any:
    if not inspect.isfunction(fn):
        raise refusal(
            f"@rpc stands before {fn!r}, which is no method",
            hint='write options by name, as in @rpc(timeout="5s"), and put @rpc nearest to an `async def` with self',
        )
    bare = inspect.unwrap(fn)  # what other decorators wrapped
    if not (inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare)):
        raise refusal(
            f"{_short(fn)} is a plain function, and an rpc is awaited", hint=f"write async def {fn.__name__}(…)"
        )
    setattr(fn, _MARK, options)
    return fn


def _short(fn: Any) -> str:
    return str(fn.__qualname__).rpartition("<locals>.")[2]


@dataclass(frozen=True, slots=True, eq=False)
class Rpc:
    """All that is known of one rpc of one entity type, made once."""

    name: str
    what: str
    """How errors call it: `Account.charge`."""
    fn: Callable[..., Any]
    arguments: Arguments
    result: Codec[Any]
    """Of the result; of one item, if it is a stream."""
    errors: dict[str, type[Exception]]
    """Those declared, by the name under which they cross."""
    persisted: bool
    key: tuple[str, ...]
    """The parameters that make the key."""
    timeout_s: float | None
    is_stream: bool
    result_what: str
    """How errors call the result."""
    counted: Counted

    def encode_result(self, value: Any) -> bytes:
        """A result, or an item of a stream, known to decode: a handler's mistake is found where it was made."""
        return self.result.checked(value, what=self.result_what)

    def decode_result(self, data: bytes) -> Any:
        """What `encode_result` encoded."""
        return self.result.decode(data, what=self.result_what)


def make_rpc(fn: Callable[..., Any], options: Options, cls: type, *, name: str, what: str) -> Rpc:
    """What is known of a marked method.

    Args:
        fn: The method.
        options: Those of its `@rpc`.
        cls: Its class.
        name: The method's name.
        what: How errors call it.

    Raises:
        ConfigurationError: Its signature, its annotations or its options cannot be used.
    """
    is_stream = inspect.isasyncgenfunction(inspect.unwrap(fn))
    hints = hints_of(fn, cls, what=what)
    arguments = Arguments(fn, hints, what=what)
    results = item_hints(hints, what=what) if is_stream else hints
    if is_stream and options.persisted:
        raise refusal(
            f"{what} is an async generator, which cannot be persisted for now", hint="leave out persisted=True"
        )
    return Rpc(
        name=name,
        what=what,
        fn=fn,
        arguments=arguments,
        result=codec_of(results, "return", what=what, part="its result", example="-> int, or -> None"),
        errors=declared_errors(options.errors, what=what),
        persisted=options.persisted,
        key=_key(options, arguments.names, hints, what=what),
        timeout_s=seconds_or_none(options.timeout, what=f"timeout of {what}"),
        is_stream=is_stream,
        result_what=f"result of {what}",
        counted=Counted(what.rpartition(".")[0], name, persisted=options.persisted),
    )


def _key(options: Options, names: tuple[str, ...], hints: dict[str, Any], *, what: str) -> tuple[str, ...]:
    if options.key is None:
        return ()
    key = tuple(options.key) if isinstance(options.key, list | tuple) else (options.key,)
    unknown = next((name for name in key if name not in names), None)
    if unknown is not None or not key:
        takes = f"its parameters are {', '.join(names)}" if names else "it has no parameters"
        raise refusal(f"{what}: key is {options.key!r}, and that names no parameter", hint=takes)
    if not options.persisted:
        raise refusal(
            f"{what} has a key and is not persisted", hint="write persisted=True too: keys are kept in the database"
        )
    never = next((name for name in key if not can_be_key(hints[name])), None)
    if never is not None:
        raise refusal(
            f"{what}: parameter {never} is of type {codec_for(hints[never]).name}, which makes no key", hint=ACCEPTED
        )
    return key
