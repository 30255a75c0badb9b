"""The services of a runner for one occupant, of which a test gives those that it is about."""

from __future__ import annotations

from typing import Any

from coterie.kernel.clock import Dial
from coterie.kernel.random import Random
from coterie.kernel.service import Tasks
from coterie.kernel.supervisor import Supervisor
from coterie.settings import Settings
from coterie.work.middleware import Middleware
from coterie.work.services import Services
from coterie.work.threads import InlineThreads
from tests.support.manual_clock import ManualClock


def services(*, settings: dict[str, Any] | None = None, **given: Any) -> Services:
    """Services with a clock that stands still; what is not given is not to be used.

    Args:
        settings: Settings other than the defaults.
        given: Fields of `Services`.
    """
    clock = ManualClock()
    rest: dict[str, Any] = {
        "cluster": None,
        "settings": Settings.load({"url": "sqlite://", **(settings or {})}, environ={}),
        "storage": None,
        "clock": clock,
        "chance": Random(1),
        "dial": Dial(lambda: clock.steady_ns() / 1e9, clock.wall_ns() / 1e9),
        "runner": "r1",
        "tasks": Tasks("test"),
        "supervisor": Supervisor(Random(1)),
        "resign": None,
        "tokens_of": None,
        "threads": InlineThreads(),
        "middleware": Middleware(),
    }
    return Services(**rest | given)
