"""Frames of jobs: what is encoded is decoded, what is added by a newer version is skipped, what is junk is dropped."""

from __future__ import annotations

import msgspec
import pytest

from coterie.storage.contracts.jobs import JobDelivery, JobHead
from coterie.tasks import wire
from coterie.tasks.wire import (
    Assignment,
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
FRAMES: list[wire.Frame] = [
    JobsSent("queue:mail", (HEAD,), due_in_s=3.5),
    SlotsQuestion("queue:mail", 4),
    Assignment("queue:mail", 4, 1_800_000_000.25, (DELIVERY,)),
    JobsOver("queue:mail", (JobOver("1", 3, reply=b"\x01"), JobOver("2", 1, "later", again_s=2.5)), SLOTS),
    JobQuestion("1", "queue:mail"),
    JobCancel("1", 3),
    QueueChanged("queue:mail"),
]


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_a_frame_is_decoded_as_it_was_encoded(frame: wire.Frame) -> None:
    assert wire.decode(wire.encode(frame)) == frame


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_fields_that_a_newer_version_has_added_are_skipped(frame: wire.Frame) -> None:
    fields = msgspec.msgpack.decode(wire.encode(frame))
    assert wire.decode(wire.encode([*fields, "new"])) == frame


def test_slots_are_decoded_as_they_were_encoded() -> None:
    assert wire.decode_slots(wire.encode(SLOTS)) == SLOTS


@pytest.mark.parametrize("junk", [b"", b"\xc1", b"\x90", wire.encode([99, "queue:mail"]), wire.encode([1, ""])])
def test_junk_is_dropped(junk: bytes) -> None:
    assert wire.decode(junk) is None
    assert wire.decode_slots(junk) is None
