"""Which other runners may be evicted by their lease: those whose counter stood still while we could see it move [M1].

After an outage of the database, or a step of its clock, every lease has run out at once, and the first runner to
return must not take that for the death of all others. So what counts is what an observer saw itself: the time between
its own successful renewals, while none of them was late.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.storage.interface import Sighting


@dataclass(frozen=True, slots=True)
class Suspect:
    """A runner that may be evicted if its counter is still the same and, if so asked, its lease has run out."""

    id: str
    counter: int
    expired: bool
    """Whether the eviction must find it expired. False: it stood still for so long that no clock matters."""


class Watch:
    """What one runner has seen of the others' leases, over its own successful renewals.

    Args:
        ttl_ns: For so long a counter stands still before an expired lease is believed; twice that before any is.
        gap_ns: Two renewals of our own that lie further apart prove nothing about the time between: we could not
            renew, or were paused, and so perhaps was everybody.

    Promise:
        No outage and no step of a clock makes a runner a suspect that renews again when the database is back.
        A runner that has died is a suspect TTL and two renewals after its death at the latest, if ours are on time.
    """

    def __init__(self, *, ttl_ns: int, gap_ns: int) -> None:
        self._ttl_ns = ttl_ns
        self._gap_ns = gap_ns
        self._sent_ns: int | None = None
        self._seen: dict[str, _Seen] = {}

    def saw(self, others: Iterable[Sighting], *, sent_ns: int, got_ns: int) -> None:
        """A renewal of our own has succeeded, and has shown the leases of all others."""
        passed_ns = self._passed_ns(sent_ns)
        late_ns = got_ns - sent_ns
        self._seen = {each.id: self._after(each, passed_ns=passed_ns, late_ns=late_ns) for each in others}
        self._sent_ns = sent_ns

    def evictable(self) -> list[Suspect]:
        """Who may be evicted, by what was last seen."""
        return [
            Suspect(runner, seen.counter, expired=seen.still_ns < 2 * self._ttl_ns)
            for runner, seen in sorted(self._seen.items())
            if seen.still_ns >= (self._ttl_ns if seen.expired else 2 * self._ttl_ns)
        ]

    def has_moved(self, runner: str) -> bool:
        """Whether a runner has renewed its lease since we first saw it."""
        seen = self._seen.get(runner)
        return seen is not None and seen.moved

    def _passed_ns(self, sent_ns: int) -> int:
        """The time since our renewal before this one, as far as it counts."""
        gap_ns = 0 if self._sent_ns is None else sent_ns - self._sent_ns
        return gap_ns if gap_ns <= self._gap_ns else 0

    def _after(self, sighting: Sighting, *, passed_ns: int, late_ns: int) -> _Seen:
        before = self._seen.get(sighting.id)
        if before is None or before.counter != sighting.counter:
            # It was read at some moment until the answer came, so the time until then is not counted.
            return _Seen(sighting.counter, -late_ns, sighting.expired, moved=before is not None)
        return _Seen(sighting.counter, before.still_ns + passed_ns, sighting.expired, before.moved)


@dataclass(frozen=True, slots=True)
class _Seen:
    """A counter, for how long we know it to have stood still, what the database said of its lease, if it moved."""

    counter: int
    still_ns: int
    expired: bool
    moved: bool
