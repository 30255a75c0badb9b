"""The exchange of frames: to the holder of a seat, here and elsewhere, and back; what cannot be brought is dropped."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie.errors import RunnerUnavailable
from coterie.storage.contracts.jobs import JobHead
from coterie.tasks.exchange import JobExchange, merged
from coterie.tasks.frames import (
    LOOK,
    NOT_MINE,
    Assignment,
    JobCancel,
    JobOver,
    JobQuestion,
    JobsOver,
    JobsSent,
    PoolSlots,
    QueueChanged,
    Slots,
    SlotsQuestion,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.tasks.frames import Frame
    from coterie.transport.interface import PeerAddress, Request, Transport

SEAT = "queue:mail"
SLOTS = Slots(PoolSlots(3), PoolSlots(0), PoolSlots(0))


@dataclass
class Row:
    id: str
    address: str = "1.2.3.4:5"


@dataclass
class FakeDirectory:
    holders: dict[str, str] = field(default_factory=dict)
    later: dict[str, str] = field(default_factory=dict)
    """What `refresh` finds."""
    clients: tuple[str, ...] = ()

    def holder(self, seat: str) -> Row | None:
        return Row(self.holders[seat]) if seat in self.holders else None

    def runner(self, id: str) -> Row | None:
        return None if id in self.clients else Row(id)

    async def refresh(self) -> None:
        self.holders |= self.later


@dataclass
class Process:
    incarnation: str
    directory: FakeDirectory


class FakeTransport:
    """Connects on demand, and remembers what was sent."""

    def __init__(self, answer: bytes | Exception = b"") -> None:
        self.peers: set[str] = set()
        self.sent: list[tuple[str, Frame | None]] = []
        self.answer = answer

    def notify(self, peer: PeerAddress, route: int, body: bytes) -> bool:
        if peer.incarnation in self.peers:
            self.sent.append((peer.incarnation, decode(body)))
        return peer.incarnation in self.peers

    def connected(self, peer: PeerAddress) -> bool:
        return peer.incarnation in self.peers

    async def connect(self, peer: PeerAddress) -> None:
        await asyncio.sleep(0)
        self.peers.add(peer.incarnation)

    async def request(self, peer: PeerAddress, route: int, body: bytes, **_: object) -> bytes:
        self.sent.append((peer.incarnation, decode(body)))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class FakePort:
    """Both ports: remembers what came."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.is_holder = True
        self.waiting: list[Callable[[bytes], None]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *given: self.came.append((name, *given))

    def holds(self, seat: str) -> bool:
        return self.is_holder

    def slots(self, holder: str, question: SlotsQuestion) -> Slots:
        self.came.append(("slots", holder, question))
        return SLOTS

    def wait(self, question: JobQuestion, answer: Callable[[bytes], None]) -> None:
        self.waiting.append(answer)

    def forget(self, question: JobQuestion, answer: Callable[[bytes], None]) -> None:
        self.waiting.remove(answer)


@dataclass
class FakeRequest:
    body: bytes
    peer: str = "other"
    answers: list[Any] = field(default_factory=list)

    def reply(self, body: bytes) -> None:
        self.answers.append(body)

    def fail(self, code: str, facts: object) -> None:
        self.answers.append(code)


def exchange(
    holder: str | None, *, answer: bytes | Exception = b"", later: str | None = None
) -> tuple[JobExchange, FakeTransport, FakePort]:
    directory = FakeDirectory({} if holder is None else {SEAT: holder}, {} if later is None else {SEAT: later})
    made, transport, port = JobExchange(cast("Any", Process("me", directory))), FakeTransport(answer), FakePort()
    made.join(cast("Transport", transport))
    made.worker = made.holder = cast("Any", port)
    return made, transport, port


def head(id: str) -> JobHead:
    return JobHead(id, "", "send_email", "f1", 1.0)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("frame", "came"),
    [
        (JobsSent(SEAT), ("sent",)),
        (JobsOver(SEAT), ("over", "me")),
        (QueueChanged(SEAT), ("changed",)),
        (JobCancel("1", 2), ("look",)),
        (Assignment(SEAT, 1, 0.0, ()), ("assign", "me")),
    ],
)
async def test_a_frame_within_one_process_is_a_call(frame: Frame, came: tuple[str, ...]) -> None:
    made, transport, port = exchange("me")
    made.tell(SEAT, frame)
    await turns()
    assert port.came == [(*came, frame)]
    assert not transport.sent


async def test_what_is_sent_in_one_turn_of_the_loop_goes_in_one_frame() -> None:
    made, _, port = exchange("me")
    for number in "123":
        made.tell(SEAT, JobsSent(SEAT, (head(number),)))
    await turns()
    assert port.came == [("sent", JobsSent(SEAT, (head("1"), head("2"), head("3"))))]


def test_of_merged_hints_the_first_due_time_counts() -> None:
    frames = [JobsSent(SEAT, due_in_s=3.0), JobsSent(SEAT, (head("1"),)), JobsSent(SEAT, due_in_s=2.0)]
    assert merged(SEAT, frames) == JobsSent(SEAT, (head("1"),), 2.0)


async def test_frames_wait_for_a_connection_and_arrive_in_order() -> None:
    made, transport, _ = exchange("other")
    frames = [JobsOver(SEAT, (JobOver(job, 1),)) for job in "123"]
    for frame in frames:
        made.tell(SEAT, frame)
    assert not transport.sent
    await turns()
    assert transport.sent == [("other", frame) for frame in frames]


async def test_the_holder_of_a_seat_is_looked_up_if_it_is_unknown() -> None:
    made, transport, _ = exchange(None, later="other")
    made.tell(SEAT, QueueChanged(SEAT))
    await turns()
    assert transport.sent == [("other", QueueChanged(SEAT))]


async def test_a_frame_for_a_seat_without_a_holder_is_dropped() -> None:
    made, transport, port = exchange(None)
    made.tell(SEAT, QueueChanged(SEAT))
    await turns()
    assert (transport.sent, port.came) == ([], [])


async def test_the_end_of_a_job_is_asked_of_the_holder_here() -> None:
    made, _, port = exchange("me")
    asking = asyncio.create_task(made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=5))
    await turns()
    port.waiting[0](b"reply")
    assert await asking == b"reply"


async def test_a_question_that_nobody_waits_for_any_more_is_forgotten() -> None:
    made, _, port = exchange("me")
    assert await made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=0) == LOOK
    assert not port.waiting


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (b"reply", b"reply"),
        (RunnerUnavailable(runner="other", target="", problem="", sent=False, hint=""), NOT_MINE),
        (RunnerUnavailable(runner="other", target="", problem="", sent=True, hint=""), LOOK),
    ],
)
async def test_the_end_of_a_job_is_asked_of_the_holder_elsewhere(answer: bytes | Exception, told: bytes) -> None:
    made, transport, _ = exchange("other", answer=answer)
    assert await made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=5) == told
    assert transport.sent == [("other", JobQuestion("1", SEAT))]


async def test_without_a_holder_nobody_is_asked() -> None:
    made, _, _ = exchange(None)
    assert await made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=5) == NOT_MINE


async def test_slots_are_asked_here_and_elsewhere() -> None:
    made, _, _ = exchange("me", answer=encode(SLOTS))
    assert await made.ask_slots("me", SlotsQuestion(SEAT, 1), within_s=1) == SLOTS
    assert await made.ask_slots("other", SlotsQuestion(SEAT, 1), within_s=1) == SLOTS


async def test_questions_of_others_are_answered() -> None:
    made, _, port = exchange("me")
    slots, end, junk = (
        FakeRequest(body) for body in (encode(SlotsQuestion(SEAT, 1)), encode(JobQuestion("1", SEAT)), b"?")
    )
    for request in (slots, end, junk):
        made.on_request(cast("Request", request))
    port.waiting[0](b"reply")
    assert (slots.answers, end.answers, junk.answers) == ([encode(SLOTS)], [b"reply"], ["malformed_message"])


async def test_a_caller_that_has_left_is_forgotten() -> None:
    made, _, port = exchange("me")
    request = FakeRequest(encode(JobQuestion("1", SEAT)))
    made.on_request(cast("Request", request))
    made.on_cancel(cast("Request", request))
    assert not port.waiting


async def test_a_process_without_queues_says_so_and_drops_frames() -> None:
    made, _, _ = exchange("me")
    made.worker = made.holder = None
    request = FakeRequest(encode(JobQuestion("1", SEAT)))
    made.on_request(cast("Request", request))
    assert request.answers == [NOT_MINE]
    made.on_notify("other", 7, encode(JobsSent(SEAT)), {})
    made.on_notify("other", 7, b"junk", {})
    assert await made.ask_slots("me", SlotsQuestion(SEAT, 1), within_s=1) is None


async def test_a_hint_of_a_client_that_took_us_for_the_holder_is_passed_on_once() -> None:
    made, transport, port = exchange("other")
    made._here.directory.clients = ("client",)  # type: ignore[attr-defined]
    port.is_holder = False
    hint = JobsSent(SEAT, (head("1"),))
    made.on_notify("client", 7, encode(hint), {})
    made.on_notify("runner", 7, encode(hint), {})
    await turns()
    assert (transport.sent, port.came) == ([("other", hint)], [])


@pytest.mark.parametrize(
    "answer", [NOT_MINE, RunnerUnavailable(runner="gone", target="", problem="", sent=False, hint="")]
)
async def test_who_asked_the_wrong_runner_finds_the_holder(answer: bytes | Exception) -> None:
    made, transport, _ = exchange("gone", later="other", answer=answer)
    assert await made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=5) == NOT_MINE
    await turns()
    transport.answer = b"reply"
    assert await made.ask_holder(SEAT, JobQuestion("1", SEAT), within_s=5) == b"reply"
    assert [peer for peer, _ in transport.sent] == ["gone", "other"]
    await made.stop()
