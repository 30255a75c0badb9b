"""Looking at the cluster for a command: pages of the read model, and what most views have in common."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from coterie.cli.asking import refuse
from coterie.cli.showing import instant, relative
from coterie.observe.pages import Viewing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from coterie.cli.asking import Asking
    from coterie.observe.view import View

_APART_S = 0.4
"""Between two looks, to learn what happens in a second."""


def viewing(asking: Asking) -> Viewing:
    """What looks for a command."""
    return Viewing(asking.here)


async def page(asking: Asking, name: str) -> tuple[Any, View]:
    """A page, and the view that it is from."""
    view = await viewing(asking).look([name])
    return view.data[name], view


async def sampled(asking: Asking, name: str) -> tuple[Any, View]:
    """The same after two looks, so that it knows what happens in a second."""
    look = viewing(asking)
    first = await look.look(["runners"])
    if first.data["runners"]:
        await asyncio.sleep(_APART_S)
    view = await look.look([name])
    return view.data[name], view


@contextmanager
def refusing(*, hint: str = "") -> Iterator[None]:
    """What the cluster does not know is a "no", in two lines."""
    try:
        yield
    except ValueError as error:
        refuse(str(error), hint=hint)


def both(at: datetime | None, now: datetime) -> str:
    """An instant where there is room for it: in full, and how far away."""
    return "never" if at is None else f"{instant(at)} ({relative(at, now)})"


def fields(pairs: Sequence[tuple[str, str]]) -> str:
    """A thing's properties, a line each; those without a value are left out."""
    wide = max((len(name) for name, _ in pairs), default=0)
    further = f"\n{'':<{wide}}  "  # the next line of a value does not look like another property
    shown = ((name, further.join(value.split("\n"))) for name, value in pairs if value)
    return "\n".join(f"{name:<{wide}}  {value}" for name, value in shown)


def quick(seconds: float | None) -> str:
    """`0.8 ms`, `1.2 s`; nothing is a dash."""
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def counted(number: float | None) -> str:
    """`1,204`; what nobody knows is a dash, never 0."""
    return "-" if number is None else f"{number:,.0f}"


def one_line(text: str | None) -> str:
    """The first line of a text."""
    return (text or "").partition("\n")[0]
