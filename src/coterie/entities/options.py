"""How definitions refuse: what is wrong with which part of the program, and what to write instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.errors import ConfigurationError, quoted
from coterie.kernel.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable


def refusal(problem: str, *, hint: str = "") -> ConfigurationError:
    """The error of a definition that cannot be used."""
    return ConfigurationError(problem=problem, hint=hint)


def refuse_unknown(given: Iterable[str], known: Collection[str], *, what: str) -> None:
    """Raise for the first option that does not exist, and name the one that was meant."""
    unknown = next((name for name in given if name not in known), None)
    if unknown is None:
        return
    import difflib  # only here: refusing is rare, and programs have to start fast

    close = difflib.get_close_matches(unknown, known, n=1)
    meant = f"did you mean {quoted(close[0])}? " if close else ""
    raise refusal(f"{what} has no option {quoted(unknown)}", hint=f"{meant}there are {', '.join(known)}")


def retry_of(value: Any, *, what: str) -> Retry | None:
    """The policy that was given, if it is one."""
    if value is not None and not isinstance(value, Retry):
        raise refusal(f"retry of {what} is {value!r}, expected a Retry", hint="write Retry(attempts=5), or Retry.never")
    return value
