"""Chaos points: places in the product where a simulation may delay, reorder or take the rare branch.

    from coterie.kernel import chaos

    if chaos.on:
        await chaos.point("commit.before")       # may wait here: a yield, a moment, long
    if chaos.on and chaos.flip("batch.of_one"):  # may take the rare branch
        …
    error = chaos.failure("settle seats")        # what this standing task must raise now
    if chaos.on:
        chaos.saw("rpc", "Account/alice.charge")  # for the report of a run that fails

In production `on` is False and a point costs the reading of one global. The source of the choices belongs to the
simulator, which installs it for a run.
"""

from __future__ import annotations

from typing import Protocol

on = False


class ChaosSource(Protocol):
    """Decides what happens at a point."""

    async def point(self, name: str, /) -> None:
        """Return now or later."""
        ...

    def flip(self, name: str, /) -> bool:
        """Whether to take the rare branch."""
        ...

    def failure(self, task: str, /) -> Exception | None:
        """What a standing task must raise at this point; None: nothing."""
        ...

    def saw(self, what: str, name: str, /) -> None:
        """Code of the program runs now."""
        ...


_source: ChaosSource | None = None


async def point(name: str) -> None:
    """A point where other tasks may run in between."""
    if _source is not None:
        await _source.point(name)


def flip(name: str) -> bool:
    """A point with a rare branch: whether to take it."""
    return _source is not None and _source.flip(name)


def failure(task: str) -> Exception | None:
    """What a standing task must raise at this point; None: nothing."""
    return None if _source is None else _source.failure(task)


def saw(what: str, name: str) -> None:
    """Report which code of the program runs now: an rpc, a message, a step, a tick, a singleton."""
    if _source is not None:
        _source.saw(what, name)


def source() -> ChaosSource | None:
    """The installed source, if any."""
    return _source


def install(source: ChaosSource | None) -> None:
    """Turn chaos on with a source, or off with None."""
    global _source, on
    _source = source
    on = source is not None
