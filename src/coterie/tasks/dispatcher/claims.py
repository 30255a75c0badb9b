"""The claimed jobs of a queue, as its holder counts them, and their comparison with what is stored. Pure.

What is stored is read now and then, and what happens meanwhile is not in that read: claims made since it began stay,
and jobs that were over since do not come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from coterie.storage.contracts.jobs import JobHead, RunningJob


class ClaimedJob(NamedTuple):
    """A claimed job."""

    id: str
    part: str
    task: str
    runner: str
    """Empty: its runner is gone."""
    claim: int
    head: JobHead | None
    """As it was when it was ready; None: a former holder claimed it."""
    number: int
    """Counts what was claimed and compared here."""


class Comparison(NamedTuple):
    """What a read of the claimed jobs has shown."""

    new: list[ClaimedJob]
    """Claimed, and not known here."""
    gone: list[ClaimedJob]
    """Not claimed any more."""
    moved: list[ClaimedJob]
    """Known, as claimed for another runner or by another claim, or of a runner that is gone now."""


class ClaimedJobs:
    """The claimed jobs of one queue."""

    def __init__(self) -> None:
        self._jobs: dict[str, ClaimedJob] = {}
        self._number = 0
        self._since: int | None = None
        """The number at which the read that is under way began."""
        self._over: dict[str, int] = {}
        """Jobs that were over since then, with their claims."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[ClaimedJob]:
        return iter(self._jobs.values())

    def __contains__(self, job: object) -> bool:
        return job in self._jobs

    def get(self, job: str) -> ClaimedJob | None:
        """A job, if it is claimed."""
        return self._jobs.get(job)

    def add(self, head: JobHead, *, runner: str, claim: int) -> None:
        """A job was claimed."""
        self._number += 1
        self._jobs[head.id] = ClaimedJob(head.id, head.part, head.task, runner, claim, head, self._number)

    def end(self, job: str, claim: int) -> ClaimedJob | None:
        """A claim is over. Returns the job; None: this claim is not known here."""
        if self._since is not None:
            self._over[job] = max(claim, self._over.get(job, 0))
        known = self._jobs.get(job)
        if known is None or known.claim > claim:
            return None
        return self._jobs.pop(job)

    # Comparing

    def begin_reading(self) -> None:
        """What is stored is about to be read."""
        self._since = self._number
        self._over.clear()

    def compare(self, rows: Iterable[RunningJob], *, but: Container[str] = ()) -> Comparison:
        """Take over what was read, but for jobs that are just being claimed: they are counted already."""
        since, self._since = self._since, None
        assert since is not None, "a read was begun"
        found = Comparison([], [], [])
        stored = {row.id: row for row in rows if row.id not in but}
        for known in list(self._jobs.values()):
            if known.id not in stored and known.number <= since:
                found.gone.append(self._jobs.pop(known.id))
        for row in stored.values():
            if row.claim <= self._over.get(row.id, -1):
                continue
            before = self._jobs.get(row.id)
            if before is not None and (before.claim > row.claim or before.number > since):
                continue
            if before is not None and (before.claim, before.runner) == (row.claim, row.runner or ""):
                continue
            self._number += 1
            head = None if before is None else before.head
            now = ClaimedJob(row.id, row.part, row.task, row.runner or "", row.claim, head, self._number)
            self._jobs[row.id] = now
            if before is None:
                found.new.append(now)
            else:
                found.moved.append(now)
        self._over.clear()
        return found
