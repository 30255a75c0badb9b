"""The errors that an rpc declares: they are results, and cross to the caller as themselves [m10]."""

from __future__ import annotations

import inspect
from inspect import Parameter
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from coterie.errors import CoterieError
from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

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
