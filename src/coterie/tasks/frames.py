"""The frames between senders, the holder of a queue's seat, and the runners that run its jobs. Pure.

    sender ── JobsSent ─────────▶ holder       there is something new to claim
    waiter ── JobQuestion ══════▶ holder       answered when the job is over
    holder ── SlotsQuestion ════▶ runner       answered with `Slots`
    holder ── Assignment ───────▶ runner       these jobs are claimed for it
    runner ── JobsOver ─────────▶ holder       their bodies have ended; what is free now
    sender ── JobCancel ────────▶ runner       look at the claim of this job now
    operator ─ QueueChanged ────▶ holder       read the queue's row now
    operator ─ EditJob ═════════▶ runner       answered with the id of the job that it has sent

═══ is a request, ─── a notice. Every frame is only a hint: what is lost is found in storage. In one process the same
structs are passed to the same functions.

Each travels as an array, its number first. Fields are only ever added at the end, with a default, so that two versions
of coterie understand each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from coterie.entities.calls.wire import LOOK, MALFORMED, NOT_MINE, Name
from coterie.storage.contracts.jobs import JobDelivery, JobHead  # noqa: TC001 msgspec reads annotations at run time

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOOK", "MALFORMED", "NOT_MINE"]

Pool = Literal["loop", "thread", "process"]
"""Where the bodies of a task run. Each job takes a slot of `jobs`, and one of its pool if that is another."""

UNRANKED_S: Final = 0.0
"""Instead of the rank of a job whose sender does not know it: it was stored with something else, without a receipt."""

REPLY_MOST_BYTES: Final = 64 * 1024
"""A larger reply is not sent to the holder: the caller reads it from storage."""


class KnownTask(Struct, array_like=True, frozen=True, gc=False):
    """A task that a runner can run."""

    fingerprint: str
    """Of its parameters, as this runner's program has them."""
    pool: Pool = "loop"


class PoolSlots(Struct, array_like=True, frozen=True, gc=False):
    """Slots of one pool of a runner. The holder takes `free + mine` for what its jobs may use at most."""

    free: int
    mine: int = 0
    """Used by jobs of the seat that this is reported to."""


class Slots(Struct, array_like=True, frozen=True):
    """What a runner can take."""

    jobs: PoolSlots
    threads: PoolSlots
    processes: PoolSlots
    is_draining: bool = False
    """Whether it begins nothing more."""
    tasks: dict[str, KnownTask] | None = None
    """All tasks that it knows, by name; None: as it said last."""


class JobsSent(Struct, array_like=True, tag=1, frozen=True):
    """Jobs were stored on a seat, or made ready again."""

    seat: Name
    heads: tuple[JobHead, ...] = ()
    """Those that are ready."""
    due_in_s: float | None = None
    """When the first of the others is due; None: there are no others."""


class SlotsQuestion(Struct, array_like=True, tag=2, frozen=True):
    """The holder of a seat asks what a runner can take. For 5 s the runner also sends changes to it."""

    seat: Name
    epoch: int


class Assignment(Struct, array_like=True, tag=3, frozen=True):
    """Jobs were claimed for a runner."""

    seat: Name
    epoch: int
    sent_s: float
    """The database's clock, as the holder knows it, in seconds since 1970: one that is old is looked up first."""
    deliveries: tuple[JobDelivery, ...]


JobOutcome = Literal["ended", "later", "returned"]
"""ended: it will not run again. later: it is due again. returned: given back, ready at once."""


class JobOver(Struct, array_like=True, frozen=True, gc=False):
    """The body of a job has ended, or was never begun: its slot is free."""

    id: str
    claim: int
    """0: it was not claimed (a job that waited was cancelled)."""
    outcome: JobOutcome = "ended"
    reply: bytes | None = None
    """As stored, of a job that ended; None: read it from storage."""
    again_s: float = 0.0
    """When it is due again, if later."""


class JobsOver(Struct, array_like=True, tag=4, frozen=True):
    """Jobs are over, and what the runner can take now; also sent without jobs when only that has changed."""

    seat: Name
    jobs: tuple[JobOver, ...] = ()
    slots: Slots | None = None
    """None: the sender does not run jobs (it has cancelled one that waited)."""


class JobQuestion(Struct, array_like=True, tag=5, frozen=True):
    """Wait for the end of a job. The answer is its reply as stored, `NOT_MINE`, or `LOOK`: read storage."""

    id: Name
    seat: Name


class JobCancel(Struct, array_like=True, tag=6, frozen=True):
    """A running job was cancelled, or its claim is gone."""

    id: Name
    claim: Annotated[int, Meta(ge=0)]


class QueueChanged(Struct, array_like=True, tag=7, frozen=True):
    """The row of a queue has changed: limits, pause."""

    seat: Name


class EditJob(Struct, array_like=True, tag=8, frozen=True):
    """Send a dead job again with other arguments. The answer is the new one's id; empty: its task is unknown here."""

    id: Name
    task: Name
    arguments: bytes
    """A JSON map by parameter name."""


Frame = JobsSent | SlotsQuestion | Assignment | JobsOver | JobQuestion | JobCancel | QueueChanged | EditJob

encode = msgspec.msgpack.Encoder().encode
_decode: Callable[[bytes], Frame] = msgspec.msgpack.Decoder(Frame).decode
_decode_slots = msgspec.msgpack.Decoder(Slots).decode


def decode(body: bytes) -> Frame | None:
    """Decode a frame; None if it cannot be decoded: it is of a newer version, and was only a hint."""
    try:
        return _decode(body)
    except MALFORMED:
        return None


def decode_slots(body: bytes) -> Slots | None:
    """Decode the answer to a `SlotsQuestion`; None if it cannot be decoded."""
    try:
        return _decode_slots(body)
    except MALFORMED:
        return None
