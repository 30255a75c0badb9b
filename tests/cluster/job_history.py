"""What journals and the database say about jobs, read together and judged: T1, T2, T6 and T9 of real processes."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.cluster.job_trail import rows_left
from tests.support.history.jobs import (
    BodiesWithinLimits,
    BodyBegan,
    BodyOver,
    CancelHolds,
    CancelTold,
    ClaimsGrow,
    EveryJobEnds,
    JobClaimed,
    JobEnded,
    JobFreed,
    JobRevived,
    JobSent,
    JobStored,
    WithinLimits,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tests.cluster.job_trail import LeftJob
    from tests.support.history.ownership import Event

RECEIPT = "receipt"
WITHOUT_RECEIPT = {"threaded", "processed"}
"""Their bodies are plain functions, which send nothing."""
WINDOW_S = 60.0
SHARE = 0.02
"""By how much the starts of a window may differ from what its rate allows."""


@dataclass
class Notes:
    """What all processes have noted."""

    tried: set[int] = field(default_factory=set)
    sent: dict[int, str] = field(default_factory=dict)
    """The ids of jobs that were acknowledged, by number."""
    told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """What clients were told of the ends of jobs."""
    cancelled: dict[str, int] = field(default_factory=dict)
    """When they were told that nothing of a job will commit."""
    bodies: list[tuple[int, str, str, str]] = field(default_factory=list)
    """Instant, "began" or "over", job and runner."""
    failed: Counter[str] = field(default_factory=Counter)
    """Errors of clients: they asked again."""

    def take(self, line: dict[str, Any]) -> None:
        """One line of a journal."""
        what, at_ns = line["what"], line["at_ns"]
        if what in ("began", "over"):
            self.bodies.append((at_ns, what, line["job"], line["runner"]))
        elif what == "tried":
            self.tried.add(line["number"])
        elif what == "sent":
            self.sent[line["number"]] = line["job"]
        elif what == "told":
            self.told[line["job"]].add(line["how"])
        elif what == "cancelled":
            self.cancelled[line["job"]] = at_ns
        elif what == "failed":
            self.failed[line["code"]] += 1

    @classmethod
    def read(cls, folder: Path) -> Notes:
        """All journals of a folder, as far as their lines are whole."""
        notes = cls()
        for path in folder.glob("*.jsonl"):
            data = path.read_bytes()
            for line in data[: data.rfind(b"\n") + 1].splitlines():
                notes.take(json.loads(line))
        return notes


def judge(committed: Sequence[tuple[int, Event]], notes: Notes, left: Sequence[LeftJob]) -> Counter[str]:
    """Raise an error if a job was lost, ended twice or exceeded a limit; how many there were of each kind.

    Everything must be over. The claim of a body is the last one of its job for its runner when it began.

    Raises:
        Violation: A promise of T1, T2, T6 or T9 is broken.
        AssertionError: What clients were told, or what jobs have sent, does not fit what is there.
    """
    history = _merged(committed, notes)
    told = [JobSent(job) for job in notes.sent.values()]
    checkers = EveryJobEnds(), ClaimsGrow(), WithinLimits(), BodiesWithinLimits(), CancelHolds()
    for event in [*history, *told, *rows_left(left)]:
        for checker in checkers:
            checker.see(event)
    for checker in checkers:
        checker.finish()
    _judge_told(committed, notes, left)
    _judge_sent(notes, left)
    return _counted(committed, notes, left)


def _merged(committed: Sequence[tuple[int, Event]], notes: Notes) -> list[Event]:
    """All in one order: what is committed in its own, and what was noted among it by its instant."""
    claims: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for at_ns, event in committed:
        if isinstance(event, JobClaimed):
            claims[event.job, event.runner].append((at_ns, event.claim))
    placed: list[tuple[int, int, Event]] = [(at_ns, 0, event) for at_ns, event in committed]
    running: dict[tuple[str, str], int] = {}
    for at_ns, what, job, runner in sorted(notes.bodies):
        if what == "began":
            made = claims[job, runner]
            number = bisect_right(made, (at_ns, 1 << 62))
            assert number, f"a body of {job} began on {runner}, for which it was not claimed by then"
            claim = running[job, runner] = made[number - 1][1]
            placed.append((at_ns, 1, BodyBegan(job, claim, runner)))
        else:
            placed.append((at_ns, 1, BodyOver(job, running[job, runner])))
    placed += ((at_ns, 1, CancelTold(job)) for job, at_ns in notes.cancelled.items())
    return [event for _, _, event in sorted(placed, key=lambda each: each[:2])]


def _judge_told(committed: Sequence[tuple[int, Event]], notes: Notes, left: Sequence[LeftJob]) -> None:
    """What clients were told of an end is the end."""
    revived = {event.job for _, event in committed if isinstance(event, JobRevived)}
    states = {each.id: each.state for each in left}
    for job, hows in notes.told.items():
        for how in hows:
            fits = how == states.get(job) or (how == "dead" and job in revived)
            assert fits, f"somebody was told that {job} is {how}, and it is {states.get(job)}"
    for job in notes.cancelled:
        assert states.get(job) == "cancelled", f"{job} was said to be cancelled, and is {states.get(job)}"


def _judge_sent(notes: Notes, left: Sequence[LeftJob]) -> None:
    """Each number is one job, and one that is done has sent one receipt: nobody else has."""
    jobs = {each.number: each for each in left if each.task != RECEIPT}
    assert len(jobs) == sum(each.task != RECEIPT for each in left), "a number was stored twice"
    for number in notes.sent:
        assert number in jobs, f"job {number} was acknowledged, and is lost"
    assert jobs.keys() <= notes.tried, "a job was sent by nobody"
    receipts = Counter(each.number for each in left if each.task == RECEIPT)
    for job in jobs.values():
        due = int(job.state == "done" and job.task not in WITHOUT_RECEIPT)
        assert receipts[job.number] == due, f"{job} has sent {receipts[job.number]} receipts"
    assert receipts.keys() <= jobs.keys(), "a receipt was sent by nobody"


def _counted(committed: Sequence[tuple[int, Event]], notes: Notes, left: Sequence[LeftJob]) -> Counter[str]:
    counts = Counter(each.state for each in left)
    counts["claims"] = sum(isinstance(event, JobClaimed) for _, event in committed)
    counts["bodies"] = sum(what == "began" for _, what, _, _ in notes.bodies)
    counts["cut off"] = counts["bodies"] - sum(what == "over" for _, what, _, _ in notes.bodies)
    counts["unanswered"] = len(notes.tried - notes.sent.keys())
    return counts


class Peak(NamedTuple):
    """The most jobs that held slots at once."""

    seat: str
    running: int
    in_partition: int


def peaks(committed: Iterable[tuple[int, Event]]) -> list[Peak]:
    """How many jobs of each queue held slots at once: a limit that was never reached shows nothing."""
    places: dict[str, tuple[str, str]] = {}
    running: defaultdict[str, Counter[str]] = defaultdict(Counter)
    most: defaultdict[str, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for _, event in committed:
        if isinstance(event, JobStored):
            places[event.job] = event.seat, event.part
        elif isinstance(event, JobClaimed | JobFreed):
            seat, part = places[event.job]
            running[seat][part] += 1 if isinstance(event, JobClaimed) else -1
            all_, own = most[seat]
            most[seat] = max(all_, running[seat].total()), max(own, running[seat][part])
    return [Peak(seat, *counts) for seat, counts in sorted(most.items())]


class RateWindows(NamedTuple):
    """The starts of a queue in all windows of one length."""

    windows: int
    least: float
    """Starts of the emptiest one, as a share of what the rate allows."""
    most: float


def starts_of(committed: Iterable[tuple[int, Event]], seat: str) -> list[int]:
    """When jobs of a queue were claimed, in nanoseconds."""
    seats: dict[str, str] = {}
    starts = []
    for _, event in committed:
        if isinstance(event, JobStored):
            seats[event.job] = event.seat
        elif isinstance(event, JobClaimed) and seats[event.job] == seat:
            starts.append(event.at_ns)
    return sorted(starts)


def rate_windows(
    starts: Sequence[int], calm: Iterable[tuple[int, int]], *, rate: float, window_s: float = WINDOW_S
) -> RateWindows:
    """Count the starts in each window within the calm spans: from each start, and from each instant after one."""
    window_ns = round(window_s * 1e9)
    shares = []
    for since_ns, until_ns in calm:
        inside = [at_ns for at_ns in starts if since_ns <= at_ns <= until_ns]
        first = [since_ns, *inside, *(at_ns + 1 for at_ns in inside)]
        for begin_ns in first:
            if begin_ns + window_ns <= until_ns:
                count = bisect_right(inside, begin_ns + window_ns - 1) - bisect_right(inside, begin_ns - 1)
                shares.append(count / (rate * window_s))
    assert shares, f"no calm lasted {window_s:g}s: nothing can be said of the rate"
    return RateWindows(len(shares), min(shares), max(shares))


def judge_rate(windows: RateWindows, *, share: float = SHARE) -> None:
    """Refuse windows with too few or too many starts.

    Raises:
        AssertionError: One differs by more than `share` from what the rate allows.
    """
    assert windows.least >= 1 - share, f"a window had {windows.least:.1%} of the starts that its rate allows"
    assert windows.most <= 1 + share, f"a window had {windows.most:.1%} of the starts that its rate allows"


def longest_gap_s(starts: Sequence[int]) -> float:
    """The longest time without a start."""
    return max(((later - earlier) / 1e9 for earlier, later in pairwise(starts)), default=0.0)


def ends_of(committed: Iterable[tuple[int, Event]]) -> int:
    """How many ends were committed."""
    return sum(isinstance(event, JobEnded) for _, event in committed)
