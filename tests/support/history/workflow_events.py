"""Events of durable work, for histories: what was committed about units, and what their bodies saw. See `ownership`.

Steps, sleeps, waits and compensations of one unit have names of their own, so that a name is enough to know which one.
What they gave is text. Instants are the database's, in seconds. What bodies and clients note stands where it was noted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tests.support.history.ownership import Event


@dataclass(frozen=True, slots=True)
class Begun(Event):
    """There is a unit, on a seat."""

    unit: str
    seat: str
    kind: str = "workflow"


@dataclass(frozen=True, slots=True)
class Suspended(Event):
    """Nobody has a unit in memory."""

    unit: str


@dataclass(frozen=True, slots=True)
class Woken(Event):
    """A suspended unit is to go on."""

    unit: str


@dataclass(frozen=True, slots=True)
class Interrupting(Event):
    """A unit shall end."""

    unit: str


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """A unit is over: how, and what it gave, the names with what each gave; who wrote that, if that is known."""

    unit: str
    status: str
    result: tuple[str, ...] = ()
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Stored(Event):
    """Something was stored at a place of a unit: what it gave, or (not done) that it is waited for."""

    unit: str
    name: str
    given: str = ""
    kind: str = "step"
    done: bool = True
    epoch: int = 0
    """By whom it was run, if it says so."""
    due_s: float | None = None
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Changed(Event):
    """What was stored was written over: what a step or a wait gave, or the value of a deferred."""

    unit: str
    name: str
    is_value: bool = False


@dataclass(frozen=True, slots=True)
class Dropped(Event):
    """What was stored was deleted: a step, or the value of a deferred."""

    unit: str
    name: str
    is_value: bool = False


@dataclass(frozen=True, slots=True)
class Valued(Event):
    """A deferred has its value; as one of a parent, if its name is that of a child."""

    unit: str
    name: str
    given: str
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Planned(Event):
    """What a run that ends well has seen, name by name."""

    unit: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class StartTold(Event):
    """Somebody was told that a workflow is started."""

    unit: str


@dataclass(frozen=True, slots=True)
class ResolveTold(Event):
    """What somebody was told who resolved a deferred."""

    unit: str
    name: str
    given: str
    outcome: Literal["ok", "already", "unknown"]


@dataclass(frozen=True, slots=True)
class StepBegan(Event):
    """The function of a step, or of a compensation, was called."""

    unit: str
    name: str
    epoch: int
    is_undo: bool = False
    branch: str = ""
    """Empty: nothing runs beside it."""


@dataclass(frozen=True, slots=True)
class Promised(Event):
    """A body has said what undoes something."""

    unit: str
    name: str
    branch: str = ""


@dataclass(frozen=True, slots=True)
class Waits(Event):
    """A body comes to something that it waits for."""

    unit: str
    name: str


@dataclass(frozen=True, slots=True)
class Saw(Event):
    """What a body was given: by a step, a sleep, a deferred, a child, as its kind says."""

    unit: str
    name: str
    given: str
    kind: str = "step"
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Calm(Event):
    """Nothing breaks any more, and all seats have found their holders."""

    now_s: float


@dataclass(frozen=True, slots=True)
class Silence(Event):
    """Whatever has begun should be over."""

    now_s: float
