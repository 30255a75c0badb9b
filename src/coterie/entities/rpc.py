"""`@rpc`, which marks a method of an entity as callable from any process, and the definition of such a method.

The errors that an rpc declares are results, and cross to the caller as themselves [m10]. The metrics of an rpc are
looked up once, when the program is loaded, so that a call only adds to them.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from inspect import Parameter
from typing import Any, TypeVar, cast, get_type_hints, overload

from coterie.entities.arguments import Arguments, codec_of, hints_of, item_hints
from coterie.entities.idempotency_key import ACCEPTED, can_be_key
from coterie.errors import CoterieError
from coterie.kernel import metrics
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.metrics import Series
from coterie.kernel.serialization.codec import Codec, codec_for
from coterie.work.definition import refusal, refuse_unknown

_SAMPLES = ((bool, True), (int, 7), (float, 7.5), (bytes, b"sample"))


def declared_errors(errors: Any, *, what: str) -> dict[str, type[Exception]]:
    """The declared exception classes, by the name under which they cross.

    Args:
        errors: The value of `errors=`.
        what: The rpc, for errors.

    Raises:
        ConfigurationError: One is not an exception class, has the name of another, or cannot be rebuilt from its
            `args`.
    """
    if isinstance(errors, type) or not isinstance(errors, list | tuple | set | frozenset):
        name = getattr(errors, "__name__", "Overdrawn")
        raise refusal(
            f"{what}: errors is {errors!r}, expected a list of exception classes", hint=f"write errors=[{name}]"
        )
    found: dict[str, type[Exception]] = {}
    for kind in errors:
        _require_crossing(kind, what=what)
        if found.setdefault(kind.__name__, kind) is not kind:
            raise refusal(
                f"{what} declares two errors of the name {kind.__name__}, and the caller could not tell them apart",
                hint="rename one of them",
            )
    return found


def nearest(error: BaseException, declared: dict[str, type[Exception]]) -> str | None:
    """The name under which an error crosses: that of its class or nearest declared base; None if undeclared."""
    names = (kind.__name__ for kind in type(error).__mro__ if declared.get(kind.__name__) is kind)
    return next(names, None)


def arguments_of(error: BaseException) -> tuple[Any, ...]:
    """The arguments with which the class rebuilds the error: `args`, unless it has its own `__reduce__`."""
    if not _has_own_reduce(type(error)):
        return error.args
    kind, args, *_ = cast("tuple[Any, ...]", error.__reduce__())
    if kind is not type(error):
        raise TypeError(f"{type(error).__name__}.__reduce__ names {kind!r} instead of its class")
    return tuple(args)


def _require_crossing(kind: Any, *, what: str) -> None:
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise refusal(f"{what}: errors has {kind!r}, which is no exception class")
    if not _rebuilds(kind):
        raise refusal(
            f"{what}: {kind.__name__}(*args) does not give back the error of which `args` were taken",
            hint="let its __init__ pass all that it takes to super().__init__(…), or give it a __reduce__",
        )


def _rebuilds(kind: type[Exception]) -> bool:
    """Whether a class can be called with its errors' `args`, tried with a sample unless Python itself guarantees it."""
    init: Any = kind.__init__
    if issubclass(kind, CoterieError):  # built from facts by name
        return False
    if not inspect.isfunction(init) or _has_own_reduce(kind):
        return True
    parameters = list(inspect.signature(init).parameters.values())[1:]
    if any(one.kind is Parameter.KEYWORD_ONLY for one in parameters):
        return False
    hints = _hints(init)
    sample = tuple(_sample(hints.get(one.name)) for one in parameters if one.kind is not one.VAR_KEYWORD)
    try:
        return kind(*kind(*sample).args).args == sample
    except Exception:  # noqa: BLE001 a user's class may raise anything; then it cannot be rebuilt
        return False


def _sample(hint: Any) -> Any:
    return next((value for kind, value in _SAMPLES if kind is hint), "sample")


def _hints(init: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(init)
    except Exception:  # noqa: BLE001 an annotation is code; without it the sample is text
        return {}


def _has_own_reduce(kind: type[BaseException]) -> bool:
    return inspect.isfunction(kind.__reduce__)


class RpcMetrics:
    """The metrics of one rpc: outcomes of its calls, durations of its handler, usual outcomes of its messages.

    Args:
        entity_type: The name of its entity type.
        rpc: The name of the rpc.
        persisted: Whether its calls are persisted.
    """

    __slots__ = ("declared", "done", "done_declared", "failed", "ok", "sent", "took")

    def __init__(self, entity_type: str, rpc: str, *, persisted: bool) -> None:
        self.ok = metrics.CALLS.of(entity_type, rpc, "ok")
        self.declared = metrics.CALLS.of(entity_type, rpc, "declared")
        self.failed = metrics.CALLS.of(entity_type, rpc, "failed")
        self.took = metrics.CALL_DURATION.spread(entity_type, rpc)
        self.sent = metrics.MESSAGES_SENT.of(entity_type, rpc) if persisted else Series()
        self.done = metrics.MESSAGES.of(entity_type, rpc, "ok") if persisted else Series()
        self.done_declared = metrics.MESSAGES.of(entity_type, rpc, "declared") if persisted else Series()

    @property
    def successes(self) -> float:
        """Calls and messages that ended by a result or a declared error."""
        return self.ok.value + self.declared.value + self.done.value + self.done_declared.value


Fn = TypeVar("Fn", bound=Callable[..., Coroutine[Any, Any, Any]] | Callable[..., AsyncIterator[Any]])

_MARK = "__coterie_rpc__"


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """The options of `@rpc(…)`."""

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
    """Let any process call this method of an entity. Written with or without parentheses.

    An `async def` returns one result; an async generator (with `yield` in it) returns a stream of items. Parameters
    and result must be annotated: payloads are encoded by these types, and refused if they do not fit.

    Example:
        ```python
        @rpc(persisted=True, key="order_id", errors=[Overdrawn])
        async def charge(self, order_id: str, cents: int) -> int: ...
        ```

    Args:
        fn: The method.
        options: By name:
                    persisted: The call is written to the database before it is acknowledged.
                    key: The parameter, or parameters, whose values identify a repeated call.
                    errors: The exceptions that are results: they reach the caller as themselves, others as
                        `RemoteError`.
                    timeout: How long a caller waits. None: the setting `call_timeout`.

    Raises:
            ConfigurationError: It is not an `async def`, or an option is invalid.
    """
    refuse_unknown(options, RpcOptions.__dataclass_fields__, what="@rpc")
    declared = RpcOptions(**options)
    return _mark(fn, declared) if fn is not None else lambda fn: _mark(fn, declared)


def options_of(member: object) -> RpcOptions | None:
    """The options of a method that is marked with `@rpc`; None for anything else."""
    found: RpcOptions | None = getattr(getattr(member, "__func__", member), _MARK, None)  # also of a static method
    return found


def _mark(fn: Any, options: RpcOptions) -> Any:
    if not inspect.isfunction(fn):
        raise refusal(
            f"@rpc stands before {fn!r}, which is no method",
            hint='write options by name, as in @rpc(timeout="5s"), and put @rpc nearest to an `async def` with self',
        )
    bare = inspect.unwrap(fn)  # without other decorators
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
    """The definition of one rpc of one entity type, created once."""

    name: str
    what: str
    """The name in errors: `Account.charge`."""
    fn: Callable[..., Any]
    arguments: Arguments
    result: Codec[Any]
    """The codec of the result; of one item, if it is a stream."""
    errors: dict[str, type[Exception]]
    """The declared errors, by the name under which they cross."""
    persisted: bool
    key: tuple[str, ...]
    """The parameters that form the key."""
    timeout_s: float | None
    is_stream: bool
    result_what: str
    """The name of the result in errors."""
    counted: RpcMetrics

    def encode_result(self, value: Any) -> bytes:
        """Encode a result, or an item of a stream, into bytes known to decode: a wrong type is found here."""
        return self.result.checked(value, what=self.result_what)

    def decode_result(self, data: bytes) -> Any:
        """Decode what `encode_result` encoded."""
        return self.result.decode(data, what=self.result_what)


def make_rpc(fn: Callable[..., Any], options: RpcOptions, cls: type, *, name: str, what: str) -> Rpc:
    """The definition of a marked method.

    Args:
        fn: The method.
        options: The options of its `@rpc`.
        cls: Its class.
        name: The method's name.
        what: The name in errors.

    Raises:
        ConfigurationError: Its signature, its annotations or its options are invalid.
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
        counted=RpcMetrics(what.rpartition(".")[0], name, persisted=options.persisted),
    )


def _key(options: RpcOptions, names: tuple[str, ...], hints: dict[str, Any], *, what: str) -> tuple[str, ...]:
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
