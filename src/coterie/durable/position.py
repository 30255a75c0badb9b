"""The place of a step in its unit: its branch, and its position there. The same in every run of the same code [M10].

    root        step, step, gather ─┬─ step, step      branch "0"
                                    └─ step            branch "1"
                step                                   the root continues

A branch is a task: the first step called in a task begins a branch below the one that the task inherited. A step takes
its place when it is called, not when it runs, so that `gather(unit.step(…), unit.step(…))` has a fixed order. Steps
cannot nest: a stored step does not run again, and the steps that it called would be missing.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from coterie.errors import StepDiverged
from coterie.kernel.text import storable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextvars import Token

    from coterie.storage.contracts.units import StepKind, StepRow

    Task = asyncio.Task[object] | None


@dataclass(slots=True, eq=False)
class Branch:
    """One branch of a unit."""

    path: str
    task: Task
    next: int = 0
    children: int = 0
    undos: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """A place for a step, with its kind and name."""

    branch: str
    position: int
    kind: StepKind
    name: str
    digest: bytes = b""


_here: ContextVar[Mapping[Places, Branch]] = ContextVar("coterie_branches")
"""The branches that run here, one for each unit. Never mutated, always replaced."""
_NONE: Mapping[Places, Branch] = MappingProxyType({})
_INSIDE = Branch("inside of a step", None)


class Places:
    """The branches of one run of a unit, and what is stored at their places.

    Args:
        unit: Its name, for errors.
    """

    def __init__(self, unit: str) -> None:
        self.is_branched = False
        """Whether there are branches besides the root."""
        self._unit = unit
        self._rows: dict[tuple[str, int], StepRow] = {}

    def add(self, rows: Iterable[StepRow]) -> None:
        """Add stored rows."""
        for row in rows:
            self._rows[row.branch, row.position] = row

    def begin(self) -> None:
        """Make the current task the root, so that tasks it starts are branches, even if they call a step first."""
        self.enter(Branch("", asyncio.current_task()))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A block in which a step runs."""
        token = self.enter(_INSIDE)
        try:
            yield
        finally:
            _here.reset(token)

    def next_place(self, kind: StepKind, name: str, digest: bytes = b"") -> Place:
        """The next place of the current branch.

        Raises:
            RuntimeError: A step is running here, and steps do not nest.
        """
        branch = self._outside(kind, name)
        place = Place(branch.path, branch.next, kind, name, digest)
        branch.next += 1
        return place

    def next_child(self, name: str, *, formerly: str) -> Place:
        """The next place of this branch for a child; `formerly` is the name that version 0.1 stored there."""
        place = self.next_place("child", name)
        row = self._rows.get((place.branch, place.position))
        is_former = row is not None and (row.kind, row.name) == ("child", formerly)
        return Place(place.branch, place.position, "child", formerly) if is_former else place

    @property
    def has_children(self) -> bool:
        """Whether a child was ever started."""
        return any(row.kind in ("child", "start") for row in self._rows.values())

    def below(self, place: Place, number: int) -> str:
        """The branch that a place and a number name: of an item, or of one side of a race."""
        self.is_branched = True
        return f"{place.branch}@{place.position}.{number}"

    def is_begun_below(self, place: Place) -> bool:
        """Whether anything is stored in such branches of a place."""
        inside = f"{place.branch}@{place.position}."
        return any(row.branch.startswith(inside) for row in self._rows.values())

    def rows_below(self, place: Place, number: int) -> list[StepRow]:
        """What is stored in such a branch, and in those that it has begun."""
        path = self.below(place, number)
        inside = (f"{path}.", f"{path}@")
        return [row for row in self._rows.values() if row.branch == path or row.branch.startswith(inside)]

    def begin_below(self, place: Place, number: int) -> None:
        """Make the current task such a branch."""
        self.enter(Branch(self.below(place, number), asyncio.current_task()))

    def next_compensation(self, name: str, digest: bytes) -> Place:
        """The next place of this branch for a compensation. The order of branches differs from run to run."""
        branch = self._outside("compensation", name)
        place = Place(f"undo {branch.path}".rstrip(), branch.undos, "compensation", name, digest)
        branch.undos += 1
        return place

    def row_at(self, place: Place) -> StepRow | None:
        """The row stored at a place.

        Raises:
            StepDiverged: Another step is stored there.
        """
        row = self._rows.get((place.branch, place.position))
        if row is None:
            return None
        same = row.kind == place.kind and row.name == place.name
        if not same or (row.digest and place.digest and row.digest != place.digest):
            found, stored = _shown(place.kind, place.name), _shown(row.kind, row.name)
            if same:
                found += " with other arguments"
            raise StepDiverged(unit=self._unit, found=found, stored=stored)
        return row

    def patched(self, name: str) -> tuple[bool, Place | None]:
        """Whether the new code runs, and the marker to store for it, if any.

        Where another step is stored, or an unfinished step of the old code, the old code runs.
        """
        branch = self._branch()
        row = self._rows.get((branch.path, branch.next))
        if row is not None and (row.kind, row.name) != ("patch", name):
            return False, None
        place = self.next_place("patch", name)
        return True, None if row is not None else place

    def _outside(self, kind: StepKind, name: str) -> Branch:
        branch = self._branch()
        if branch is _INSIDE:
            raise RuntimeError(
                f"{_shown(kind, name)!r} of {self._unit} was called inside of a step, and steps do not nest: call it "
                f"before or after"
            )
        return branch

    def _branch(self) -> Branch:
        task = asyncio.current_task()
        inherited = _here.get(_NONE).get(self)
        if inherited is None:
            raise RuntimeError(f"{self._unit} goes on in its own block and its tasks alone, and this is neither")
        if inherited.task is task or inherited is _INSIDE:
            return inherited
        path = f"{inherited.path}.{inherited.children}" if inherited.path else str(inherited.children)
        inherited.children += 1
        self.is_branched = True
        branch = Branch(path, task)
        self.enter(branch)
        return branch

    def enter(self, branch: Branch) -> Token[Mapping[Places, Branch]]:
        """Continue here in a branch."""
        return _here.set({**_here.get(_NONE), self: branch})

    def exit(self) -> None:
        """The unit is over; the current task continues without it."""
        _here.set({places: branch for places, branch in _here.get(_NONE).items() if places is not self})


def _shown(kind: str, name: str) -> str:
    return name if kind == "step" else f"{kind} {name}"


def named(name: Any, what: str) -> str:
    """A name given by the user, as plain text that both databases accept.

    Raises:
        ValueError: It is not a valid name.
    """
    is_line = isinstance(name, str) and 0 < len(name) <= 200 and "\n" not in name and "\x00" not in name
    if not is_line or not (name.isascii() or storable(name) == name):
        raise ValueError(f"name of {what} is {name!r}, expected a short text on one line")
    return name if type(name) is str else str.__str__(name)
