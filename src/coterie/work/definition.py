"""Checks of definitions: each refusal says what is wrong with which part of the program, and what to write instead."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any

from coterie.errors import ConfigurationError, InvalidArgument, quoted
from coterie.kernel.ids import EntityAddress
from coterie.kernel.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable


def refusal(problem: str, *, hint: str = "") -> ConfigurationError:
    """The error of an invalid definition."""
    return ConfigurationError(problem=problem, hint=hint)


def refuse_unknown(given: Iterable[str], known: Collection[str], *, what: str) -> None:
    """Raise for the first option that does not exist, and suggest the closest one."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return
    import difflib  # only here: refusals are rare, and programs have to start fast

    close = difflib.get_close_matches(unknown, known, n=1)
    meant = f"did you mean {quoted(close[0])}? " if close else ""
    raise refusal(f"{what} has no option {quoted(unknown)}", hint=f"{meant}there are {', '.join(known)}")


def not_in_cluster(name: str, known: Iterable[str], *, kind: str) -> ValueError:
    """The error for a name of which the cluster has no singleton or cron."""
    return ValueError(f"there is no {kind} {name!r} in this cluster: there are {', '.join(known) or 'none'}")


def retry_of(value: Any, *, what: str, by_class: bool = True) -> Retry | None:
    """The given retry policy, if it is a `Retry` or None; and has `on` and `unless` only where they are of use."""
    if value is not None and not isinstance(value, Retry):
        raise refusal(f"retry of {what} is {value!r}, expected a Retry", hint="write Retry(attempts=5), or Retry.never")
    if value is not None and value.decides_by_class and not by_class:
        raise refusal(
            f"retry of {what} has on or unless: any error is retried",
            hint="leave them out, or retry in a step",
        )
    return value


_EXAMPLES = {
    "singleton": '@cluster.singleton("importer")',
    "cron": '@cluster.cron("nightly", "0 3 * * *")',
    "schedule": 'cluster.schedules.put("nightly", "0 3 * * *", …)',
}


def require_name(name: Any, *, kind: str) -> str:
    """The name of a singleton, cron or schedule, if both databases can return it exactly."""
    if not isinstance(name, str):
        raise refusal(f"name of a {kind} is {name!r}, expected text", hint=f"write {_EXAMPLES[kind]}")
    try:
        return EntityAddress(kind, name).id
    except InvalidArgument as error:
        raise refusal(f"name {name!r} of a {kind} has half a surrogate pair, which is no text") from error
    except ValueError as error:
        problem = str(error).replace("an entity id", f"a {kind}'s name").replace("entity id", f"{kind}'s name")
        raise refusal(problem) from error


def require_body(body: Any, *, what: str, argument: str, instead: str = "") -> None:
    """Refuse a body that is not a function of one argument.

    Args:
        body: The body.
        what: What it is for.
        argument: The name of its argument.
        instead: Plain functions are refused too, with what to do about blocking code. Empty: they run in threads.
    """
    shown = getattr(body, "__name__", repr(body))
    kind = "async def" if instead or is_async(body) else "def"
    hint = f"write {kind} {shown if shown.isidentifier() else 'work'}({argument})"
    if instead and is_plain(body):
        raise refusal(f"{what}: {shown} is no async function", hint=f"{hint}; {instead}")
    if not (is_async(body) or is_plain(body)):
        raise refusal(f"{what}: {shown} is no {'async ' if instead else ''}function", hint=hint)
    if not takes_one(body):
        raise refusal(f"{what}: {shown} does not take one argument, its {argument}", hint=hint)


def is_async(fn: Any) -> bool:
    """Whether a callable is an `async def`, or wraps one: it is called on the loop, and its result awaited."""
    return any(inspect.iscoroutinefunction(each) for each in _layers(fn))


def is_plain(fn: Any) -> bool:
    """Whether a callable is a plain function, method or callable object, and no generator: it runs in a thread."""
    if type(fn) is FunctionType and fn.__code__.co_flags & inspect.CO_COROUTINE:
        return False  # the most frequent case, asked for each step: what it wraps cannot change the answer
    layers = _layers(fn)
    if not callable(fn) or isinstance(fn, type):
        return False
    return not any(
        inspect.iscoroutinefunction(each) or inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each)
        for each in layers
    )


def _layers(fn: Any) -> list[Any]:
    """A callable, and what it wraps: by `functools.wraps`, as a partial, as an object with `__call__`."""
    layers = [fn]
    while True:
        outer = layers[-1]
        if isinstance(outer, partial):
            inner = outer.func
        elif hasattr(outer, "__wrapped__"):
            inner = outer.__wrapped__
        elif inspect.isroutine(outer) or isinstance(outer, type) or not callable(outer):
            return layers
        else:
            inner = type(outer).__call__
        layers.append(inner)


def takes_one(function: Callable[..., Any]) -> bool:
    """Whether a function can be called with one argument."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:
        return True  # some functions that are not written in Python have no signature
    return True
