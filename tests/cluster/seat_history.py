"""What the holders have noted, read together and judged: who held which seat when, and whose writes were accepted."""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Event:
    """One line of a journal. All journals of a machine share a clock."""

    runner: str
    what: str
    at_ns: int
    seat: str = ""
    epoch: int = 0
    incarnation: str = ""
    key: str = ""
    version: int = 0
    sent_ns: int = 0
    more: dict[str, Any] = field(default_factory=dict)


class Journals:
    """The journals of all processes in a folder, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._kinds: dict[str, list[Event]] = defaultdict(list)
        self._granted: dict[str, Event] = {}
        self._ended: set[tuple[str, int]] = set()
        self._read: dict[Path, int] = {}

    @property
    def events(self) -> list[Event]:
        """All events so far."""
        self._refresh()
        return [event for events in self._kinds.values() for event in events]

    def of(self, what: str, *, runner: str | None = None, since_ns: int = 0) -> list[Event]:
        """The events of a kind, of one runner or all, after a moment, in the order of their times."""
        self._refresh()
        found = [e for e in self._kinds[what] if runner in (None, e.runner) and e.at_ns >= since_ns]
        return sorted(found, key=lambda event: event.at_ns)

    def holders(self) -> dict[str, Event]:
        """For each seat the grant that still stands: the last one, unless it was given back or lost."""
        self._refresh()
        return {seat: grant for seat, grant in self._granted.items() if (seat, grant.epoch) not in self._ended}

    def held_by(self, runner: str) -> list[str]:
        """The seats that a runner holds, as far as it knows."""
        return sorted(seat for seat, grant in self.holders().items() if grant.runner == runner)

    def _refresh(self) -> None:
        for path in self.folder.glob("*.jsonl"):
            for event in self._new_lines(path):
                self._kinds[event.what].append(event)
                if event.what == "granted" and event.epoch > self._epoch_of(event.seat):
                    self._granted[event.seat] = event
                elif event.what in ("drained", "lost"):
                    self._ended.add((event.seat, event.epoch))

    def _epoch_of(self, seat: str) -> int:
        return self._granted[seat].epoch if seat in self._granted else 0

    def _new_lines(self, path: Path) -> Iterator[Event]:
        with path.open("rb") as file:
            file.seek(self._read.get(path, 0))
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        for line in whole.splitlines():
            fields = json.loads(line)
            known = {name: fields.pop(name) for name in Event.__dataclass_fields__ if name in fields}
            yield Event(runner=path.name.partition(".")[0], more=fields, **known)


def judge(events: Iterable[Event]) -> dict[str, int]:
    """Raise an AssertionError if two holders' writes interleave; how many events of each kind there were.

    A write is late for certain only if it was *sent* after the successor had noted its grant: an answer may be read
    late. The versions of a seat's own state are its commit order, whenever they were noted [INV-F2, INV-F3].
    """
    seats: dict[str, list[Event]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for event in events:
        counts[event.what] += 1
        if event.seat:
            seats[event.seat].append(event)
    for seat, its in seats.items():
        _judge_grants(seat, [event for event in its if event.what == "granted"])
        _judge_chain(seat, its)
        _judge_late(seat, its)
    return counts


def _judge_grants(seat: str, grants: Sequence[Event]) -> None:
    epochs = [grant.epoch for grant in grants]
    assert len(epochs) == len(set(epochs)), f"{seat}: one epoch was granted twice: {grants}"


def _judge_chain(seat: str, events: Sequence[Event]) -> None:
    chain = sorted((e for e in events if e.what == "written" and e.key == seat), key=lambda e: (e.version, e.epoch))
    for one, other in itertools.pairwise(chain):
        assert one.version < other.version, f"{seat}: version {one.version} was written twice: {one}, {other}"
        assert one.epoch <= other.epoch, f"{seat}: epoch {other.epoch} wrote after {one.epoch}: {one}, {other}"
    for loaded in (event for event in events if event.what == "loaded"):
        for write in chain:
            missed = write.epoch < loaded.epoch and write.version > loaded.version
            assert not missed, f"{seat}: {loaded} did not find {write}"


def _judge_late(seat: str, events: Sequence[Event]) -> None:
    grants = [event for event in events if event.what == "granted"]
    for write in (event for event in events if event.what == "written"):
        for grant in grants:
            late = grant.epoch > write.epoch and write.sent_ns > grant.at_ns
            assert not late, f"{seat}: {write} was accepted after {grant}"
