"""`@rpc`, which marks a method of an entity as callable from any process, and the definition of such a method.

A plain `def` becomes a coroutine function whose body runs in a thread, so that callers await every rpc alike. The
metrics of an rpc are looked up once, when the program is loaded, so that a call only adds to them.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, overload

from coterie.entities.arguments import Arguments, codec_of, hints_of, item_hints
from coterie.entities.declared_errors import declared_errors
from coterie.entities.host.work import handling
from coterie.entities.idempotency_key import ACCEPTED, can_be_key
from coterie.kernel import metrics
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.metrics import Series
from coterie.kernel.serialization.codec import Codec, codec_for
from coterie.work.definition import is_async, refusal, refuse_unknown, retry_of
from coterie.work.threads import in_thread

if TYPE_CHECKING:
    from coterie.kernel.retry import Retry


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
P = ParamSpec("P")
T = TypeVar("T")

_MARK = "__coterie_rpc__"
_THREADED = "__coterie_threaded__"


@dataclass(frozen=True, slots=True)
class RpcOptions:
    """The options of `@rpc(…)`."""

    persisted: bool = False
    key: str | tuple[str, ...] | None = None
    errors: Sequence[type[Exception]] = ()
    timeout: Duration | None = None
    retry: Retry | None = None


class RpcDecorator(Protocol):
    """What `@rpc(…)` is: it makes a coroutine function of a plain function, and leaves others as they are."""

    @overload
    def __call__(self, fn: Fn, /) -> Fn: ...  # type: ignore[overload-overlap] # the first one that fits is meant
    @overload
    def __call__(self, fn: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...


@overload
def rpc(fn: Fn, /) -> Fn: ...  # type: ignore[overload-overlap] # as above
@overload
def rpc(fn: Callable[P, T], /) -> Callable[P, Coroutine[Any, Any, T]]: ...
@overload
def rpc(
    *,
    persisted: bool = False,
    key: str | tuple[str, ...] | None = None,
    errors: Sequence[type[Exception]] = (),
    timeout: Duration | None = None,
    retry: Retry | None = None,
) -> RpcDecorator: ...
def rpc(fn: Any = None, /, **options: Any) -> Any:
    """Let any process call this method of an entity. Written with or without parentheses.

    An `async def` returns one result; an async generator (with `yield` in it) returns a stream of items. A plain `def`
    runs in a thread (the setting `threads`), and is awaited like the others, also by methods of its own class.
    Parameters and result must be annotated: payloads are encoded by these types, and refused if they do not fit.

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
                    retry: How often and after which exceptions a persisted call is tried again. None: as the entity
                        type says.

    Raises:
            ConfigurationError: It is no function, or a generator, or an option is invalid.
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
    if inspect.isgeneratorfunction(inspect.unwrap(fn)):
        raise refusal(
            f"{_short(fn)} is a generator, and a stream is an async one", hint=f"write async def {fn.__name__}(…)"
        )
    if not (is_async(fn) or inspect.isasyncgenfunction(inspect.unwrap(fn))):
        fn = _threaded(fn)
    setattr(fn, _MARK, options)
    return fn


def _threaded(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A coroutine function whose body runs in a thread; outside of a runner, as in a unit test, at once."""

    @functools.wraps(fn)
    async def call(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        body, work = functools.partial(fn, self, *args, **kwargs), handling.get()
        if work is None:
            return body()
        hosted, host = work.resident.hosted, work.resident.shard.host
        alone = work.address if hosted.concurrency == 1 else None
        return await in_thread(host.threads, body, what=work.target, alone=alone, is_nested=bool(work.chain))

    setattr(call, _THREADED, True)
    return call


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
    retry: Retry | None
    """None: the policy of its entity type."""
    is_threaded: bool
    """Whether its body runs in a thread, which a cancellation does not end."""
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
        retry=_retry(options, what=what),
        is_threaded=getattr(fn, _THREADED, False),
        result_what=f"result of {what}",
        counted=RpcMetrics(what.rpartition(".")[0], name, persisted=options.persisted),
    )


def _retry(options: RpcOptions, *, what: str) -> Retry | None:
    if options.retry is not None and not options.persisted:
        raise refusal(
            f"{what} has retry and is not persisted",
            hint="write persisted=True too: only a stored call is tried again after its handler has raised",
        )
    return retry_of(options.retry, what=what)


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
