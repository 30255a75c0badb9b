"""Chaos points: places in the product where a simulation may delay, reorder or take the rare way.

    from coterie.kernel import chaos

    if chaos.on:
        await chaos.point("commit.before")       # may wait here: a yield, a moment, long
    if chaos.on and chaos.flip("batch.of_one"):  # may take the rare way
        …
    error = chaos.failure("settle seats")        # what this standing task shall raise now
    if chaos.on:
        chaos.saw("rpc", "Account/alice.charge")  # for the report of a run that fails

In production `on` is False and a point costs the reading of one global. The source of the choices belongs to the
simulator, which installs it for a run.
"""

from __future__ import annotations

from typing import Protocol

on = False


class ChaosSource(Protocol):
    """Who decides what happens at a point."""

    async def point(self, name: str, /) -> None:
        """Come back now or later."""
        ...

    def flip(self, name: str, /) -> bool:
        """Whether to take the rare way."""
        ...

    def failure(self, task: str, /) -> Exception | None:
        """What a standing task shall raise where it is; None: nothing."""
        ...

    def saw(self, what: str, name: str, /) -> None:
        """Code of the program runs now."""
        ...


_source: ChaosSource | None = None


async def point(name: str) -> None:
    """A place where others may come in between."""
    if _source is not None:
        await _source.point(name)


def flip(name: str) -> bool:
    """A place with a rare way: whether to take it."""
    return _source is not None and _source.flip(name)


def failure(task: str) -> Exception | None:
    """What a standing task shall raise where it is; None: nothing."""
    return None if _source is None else _source.failure(task)


def saw(what: str, name: str) -> None:
    """Say which code of the program runs now: an rpc, a message, a step, a tick, a singleton."""
    if _source is not None:
        _source.saw(what, name)


def source() -> ChaosSource | None:
    """Who decides at the moment."""
    return _source


def install(source: ChaosSource | None) -> None:
    """Turn chaos on with a source, or off with None."""
    global _source, on
    _source = source
    on = source is not None
