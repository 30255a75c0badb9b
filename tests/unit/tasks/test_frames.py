"""Frames of jobs: what is encoded is decoded, what is added by a newer version is skipped, what is junk is dropped."""

from __future__ import annotations

import msgspec
import pytest

from coterie.storage.contracts.jobs import JobDelivery, JobHead
from coterie.tasks import frames
from coterie.tasks.frames import (
    Assignment,
    EditJob,
    JobCancel,
    JobOver,
    JobQuestion,
    JobsOver,
    JobsSent,
    KnownTask,
    PoolSlots,
    QueueChanged,
    Slots,
    SlotsQuestion,
)

HEAD = JobHead("1", "acme", "send_email", "f1", 12.5, lost=1, priority=-3)
DELIVERY = JobDelivery("1", "queue:mail", "acme", "send_email", "f1", b"\x90", "k", 3, "runner", 2, 1, 99.5, "trace")
SLOTS = Slots(
    PoolSlots(98, 2),
    PoolSlots(10),
    PoolSlots(0),
    tasks={"send_email": KnownTask("f1"), "zip": KnownTask("f2", "thread")},
)
FRAMES: list[frames.Frame] = [
    JobsSent("queue:mail", (HEAD,), due_in_s=3.5),
    SlotsQuestion("queue:mail", 4),
    Assignment("queue:mail", 4, 1_800_000_000.25, (DELIVERY,)),
    JobsOver("queue:mail", (JobOver("1", 3, reply=b"\x01"), JobOver("2", 1, "later", again_s=2.5)), SLOTS),
    JobQuestion("1", "queue:mail"),
    JobCancel("1", 3),
    QueueChanged("queue:mail"),
    EditJob("1", "send_email", b'{"to": "ann"}'),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_decoded_as_it_was_encoded(frame: frames.Frame) -> None:
    assert frames.decode(frames.encode(frame)) == frame


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_fields_that_a_newer_version_has_added_are_skipped(frame: frames.Frame) -> None:
    fields = msgspec.msgpack.decode(frames.encode(frame))
    assert frames.decode(frames.encode([*fields, "new"])) == frame


def test_slots_are_decoded_as_they_were_encoded() -> None:
    assert frames.decode_slots(frames.encode(SLOTS)) == SLOTS


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x90", frames.encode([99, "queue:mail"]), frames.encode([1, ""])])
def test_junk_is_dropped(junk: bytes) -> None:
    assert frames.decode(junk) is None
    assert frames.decode_slots(junk) is None
