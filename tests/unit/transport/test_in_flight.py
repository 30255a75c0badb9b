"""The table of requests: ids never used again, one outcome each, bounds in both counts and bytes."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest

from coterie.errors import MailboxFull, MalformedMessage, RunnerUnavailable, SendTimeout
from coterie.testing.run import current_loop
from coterie.transport import in_flight
from coterie.transport.in_flight import OutgoingRequests, unavailable
from coterie.transport.interface import TransportLimits
from coterie.transport.protocol import (
    CancelFrame,
    EndFrame,
    FailureFrame,
    ItemFrame,
    ProtocolError,
    ReplyFrame,
    RequestFrame,
    decode,
    encode,
    pack_error,
)

LIMITS = TransportLimits(body_most_bytes=10_000, in_flight=4, in_flight_bytes=20_000, waiting=3)


class Table:
    """Calls, with what they send."""

    def __init__(self, limits: TransportLimits = LIMITS) -> None:
        self.sent: list[Any] = []
        self.calls = OutgoingRequests(asyncio.get_running_loop(), peer="web-2", send=self._send, limits=limits)

    def _send(self, frame: object, lone: bool = False) -> None:
        self.sent.append(frame)

    def ask(self, body: bytes = b"", *, within_s: float = 5.0) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(self.calls.request(1, body, within_s, b""))

    def asked(self) -> list[int]:
        return [frame.id for frame in self.sent if isinstance(frame, RequestFrame)]


@pytest.mark.simulated(seeds=3)
async def test_ids_count_up_and_are_never_used_again_incident_39() -> None:
    table = Table()
    first = table.ask()
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.sleep(0)
    second = table.ask()
    await asyncio.sleep(0)
    assert table.asked() == [1, 2]
    table.calls.replied(ReplyFrame(1, b"for the cancelled one"))
    assert not second.done()
    assert table.calls.dropped == 1
    table.calls.replied(ReplyFrame(2, b"for the second"))
    assert await second == b"for the second"


@pytest.mark.simulated(seeds=3)
async def test_a_reply_in_the_same_turn_as_a_cancellation_is_dropped_without_harm() -> None:
    table = Table()
    call = table.ask()
    await asyncio.sleep(0)
    call.cancel()
    table.calls.replied(ReplyFrame(1, b"late"))
    with pytest.raises(asyncio.CancelledError):
        await call
    assert len(table.calls) == 0
    assert not [frame for frame in table.sent if isinstance(frame, CancelFrame)], "it was answered: nothing to cancel"


@pytest.mark.simulated(seeds=1)
@pytest.mark.parametrize(
    "frame", [ReplyFrame(7, b""), FailureFrame(7, "x"), ItemFrame(7, b""), EndFrame(7), ReplyFrame(0, b"")], ids=repr
)
async def test_an_answer_to_what_was_never_asked_breaks_off(frame: Any) -> None:
    calls = Table().calls
    handlers: dict[Any, Any] = {
        ReplyFrame: calls.replied,
        FailureFrame: calls.failed,
        ItemFrame: calls.item,
        EndFrame: calls.ended,
    }
    handle = handlers[type(frame)]
    with pytest.raises(ProtocolError, match="0 were asked"):
        handle(frame)


@pytest.mark.simulated(seeds=1)
async def test_a_stream_item_for_a_plain_request_is_dropped() -> None:
    table = Table()
    call = table.ask()
    await asyncio.sleep(0)
    table.calls.item(ItemFrame(1, b"what?"))
    table.calls.replied(ReplyFrame(1, b"reply"))
    assert await call == b"reply"


@pytest.mark.simulated(seeds=1)
async def test_an_expired_call_is_cancelled_at_the_peer_and_its_late_reply_dropped() -> None:
    table = Table()
    with pytest.raises(SendTimeout, match=r"no reply from runner web-2 within 0\.25s"):
        await table.ask(within_s=0.25)
    assert table.sent[-1] == CancelFrame(1)
    table.calls.replied(ReplyFrame(1, b"late"))
    assert table.calls.dropped == 1


@pytest.mark.simulated(seeds=1)
async def test_a_failure_is_raised_as_the_error_it_was() -> None:
    table = Table()
    call = table.ask()
    await asyncio.sleep(0)
    table.calls.failed(FailureFrame(1, *pack_error(MailboxFull(entity="Account/alice", waiting=7))))
    with pytest.raises(MailboxFull):
        await call


@pytest.mark.simulated(seeds=1)
async def test_a_loss_tells_each_whether_it_can_have_left() -> None:
    table = Table()
    calls = [table.ask() for _ in range(6)]  # four in flight, two wait for room
    await asyncio.sleep(0.1)
    table.calls.left_id = 2
    table.calls.lost(unavailable("web-2", "gone", sent=True))
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert [getattr(error, "sent", None) for error in errors] == [True, True, False, False, False, False]
    assert {type(error) for error in errors} == {RunnerUnavailable}
    assert len({id(error) for error in errors}) == 6, "an error object belongs to one caller"
    with pytest.raises(RunnerUnavailable, match="gone"):
        await table.ask()


@pytest.mark.simulated(seeds=1)
async def test_a_body_beyond_the_limit_is_refused_before_anything_is_sent() -> None:
    table = Table()
    with pytest.raises(MalformedMessage, match="10001 bytes"):
        await table.ask(bytes(10_001))
    assert table.sent == []
    assert table.calls.last_id == 0


@pytest.mark.simulated(seeds=5)
async def test_bounds_hold_and_everybody_is_served_in_order_whatever_is_cancelled() -> None:
    chance = random.Random(current_loop().seed)
    table = Table(replace(LIMITS, waiting=1_000))
    calls: list[asyncio.Task[bytes]] = []
    for number in range(300):
        calls.append(table.ask(b"%d " % number + bytes(chance.choice([0, 600, 9_000])), within_s=60.0))
        if chance.random() < 0.3:
            chance.choice(calls).cancel()
        await asyncio.sleep(0)
        waiting = table.calls._waiting
        assert len(waiting) <= LIMITS.in_flight
        assert table.calls._bytes <= LIMITS.in_flight_bytes
        if waiting and chance.random() < 0.5:
            table.calls.replied(ReplyFrame(chance.choice(list(waiting)), b""))
    while not all(call.done() for call in calls):
        for number in list(table.calls._waiting):
            table.calls.replied(ReplyFrame(number, b""))
        await asyncio.sleep(0)
    bodies = [int(frame.body.split(b" ")[0]) for frame in table.sent if isinstance(frame, RequestFrame)]
    assert bodies == sorted(bodies), "first come, first served"
    assert len(table.calls) == table.calls._bytes == len(table.calls._queue) == 0


@pytest.mark.simulated(seeds=1)
async def test_more_than_the_bound_of_those_who_wait_are_refused_unsent() -> None:
    table = Table()
    calls = [table.ask() for _ in range(4 + 3 + 1)]
    await asyncio.sleep(0.1)
    with pytest.raises(RunnerUnavailable, match="3 requests wait for room already") as told:
        await calls[-1]
    assert not told.value.sent
    assert not any(call.done() for call in calls[:-1])
    table.calls.lost(unavailable("web-2", "gone", sent=True))
    await asyncio.gather(*calls, return_exceptions=True)


@pytest.mark.simulated(seeds=1)
async def test_a_single_body_larger_than_the_bound_on_bytes_still_gets_through() -> None:
    table = Table(replace(LIMITS, in_flight_bytes=5_000))
    first, second = table.ask(bytes(9_000)), table.ask(bytes(9_000))
    await asyncio.sleep(0.1)
    assert table.asked() == [1]
    table.calls.replied(ReplyFrame(1, b""))
    await asyncio.sleep(0.1)
    table.calls.replied(ReplyFrame(2, b""))
    assert (await first, await second) == (b"", b"")


class Named:
    """A target that counts how often its name was made."""

    made = 0

    def __str__(self) -> str:
        self.made += 1
        return "Account/alice.withdraw"


@pytest.mark.simulated(seeds=1)
async def test_errors_name_what_the_request_was_for_and_only_then_is_the_name_made() -> None:
    table, target = Table(), Named()

    def ask(body: bytes = b"", within_s: float = 5.0) -> asyncio.Task[bytes]:
        return asyncio.ensure_future(table.calls.request(1, body, within_s, b"", target))

    first = ask()
    await asyncio.sleep(0)
    table.calls.replied(ReplyFrame(1, b""))
    await first
    assert target.made == 0
    with pytest.raises(SendTimeout, match=r"no reply from Account/alice\.withdraw on runner web-2 within 0\.25s"):
        await ask(within_s=0.25)
    with pytest.raises(MalformedMessage, match=r"Account/alice\.withdraw"):
        await ask(bytes(10_001))
    last = ask()
    await asyncio.sleep(0)
    table.calls.lost(unavailable("web-2", "gone", sent=True))
    with pytest.raises(RunnerUnavailable, match=r"cannot be reached for Account/alice\.withdraw: gone"):
        await last


class Silent:
    """What the table sees of a stream."""

    until_s, target = 1e9, None

    def __init__(self) -> None:
        self.error: Any = None

    def finish(self, error: Any) -> None:
        self.error = error


@pytest.mark.simulated(seeds=1)
async def test_streams_count_like_requests_in_number_and_in_bytes() -> None:
    """A peer counts both, and refuses what is beyond its terms."""
    table = Table()
    streams = [Silent() for _ in range(3)]
    for stream in streams:
        await table.calls.enter(6_000, 5.0, None)
        table.calls.opened(stream)  # type: ignore[arg-type] # what the table uses of one
    first, second = table.ask(), table.ask()
    await asyncio.sleep(0.1)
    assert table.asked() == [4], "the fourth of four"
    table.calls.replied(ReplyFrame(4, b""))
    await asyncio.sleep(0.1)
    large = table.ask(bytes(3_000))  # 18,000 and 3,000 of 20,000 bytes
    assert table.asked() == [4, 5]
    table.calls.replied(ReplyFrame(5, b""))
    await asyncio.sleep(0.1)
    assert table.asked() == [4, 5]
    table.calls.ended(EndFrame(1))
    await asyncio.sleep(0.1)
    assert table.asked() == [4, 5, 6]
    table.calls.lost(unavailable("web-2", "gone", sent=True))
    results = await asyncio.gather(first, second, large, return_exceptions=True)
    assert [type(result) for result in results] == [bytes, bytes, RunnerUnavailable]
    assert [type(stream.error) for stream in streams] == [type(None), RunnerUnavailable, RunnerUnavailable]
    assert table.calls._sizes == {}


@pytest.mark.simulated(seeds=3)
async def test_what_is_asked_without_a_coroutine_is_answered_failed_and_left_like_a_request() -> None:
    table = Table()

    def ask(within_s: float = 5.0) -> tuple[asyncio.Future[bytes], Any]:
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        return answer, table.calls.ask(answer, 1, b"body", within_s, "x")

    (first, _), (second, _), (third, asked), (fourth, _) = ask(), ask(0.5), ask(), ask()
    assert table.asked() == [1, 2, 3, 4]
    assert ask()[1] is None  # no room
    table.calls.replied(ReplyFrame(1, b"answer"))
    assert first.result() == b"answer"
    asked.cancel()
    third.cancel()
    asked.cancel()  # it is over
    assert [frame.id for frame in table.sent if isinstance(frame, CancelFrame)] == [3]
    with pytest.raises(SendTimeout):
        await second
    table.calls.lost(unavailable("web-2", "it broke", sent=True))
    with pytest.raises(RunnerUnavailable):
        await fourth
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    assert table.calls.ask(answer, 1, b"body", 5.0, "x") is None
    assert table.asked() == [1, 2, 3, 4]


@pytest.mark.simulated(seeds=3)
async def test_what_is_asked_without_a_coroutine_passes_by_nobody_who_waits_for_room() -> None:
    table = Table()
    calls = [table.ask() for _ in range(5)]
    await asyncio.sleep(0)
    answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    table.calls.replied(ReplyFrame(1, b""))
    assert table.calls.ask(answer, 1, b"body", 5.0, "x") is None
    assert table.calls.ask(answer, 1, bytes(1000), 5.0, "x") is None
    for number in range(2, 6):
        await asyncio.sleep(0)
        table.calls.replied(ReplyFrame(number, b""))
    await asyncio.gather(*calls)
    assert table.calls.ask(answer, 1, bytes(1000), 5.0, "x") is None  # large ones are weighed
    assert table.calls.ask(answer, 1, b"body", 5.0, "x") is not None


@pytest.mark.simulated(seeds=3)
async def test_a_request_whose_time_is_over_expires_and_its_frame_is_one_that_the_peer_can_read() -> None:
    """What it cannot read costs everybody the connection."""
    table = Table()
    with pytest.raises(SendTimeout):
        await table.ask(within_s=-1.5)
    assert decode(encode(table.sent[0])) == RequestFrame(1, 1, b"", 0)


@pytest.mark.parametrize(("within_s", "shown"), [(-0.015, "within 0s"), (0.25, "within 0.25s")])
def test_nobody_has_waited_for_less_than_nothing(within_s: float, shown: str) -> None:
    """It said "no reply from runner a within -0.015s"."""
    assert shown in in_flight.late("a", within_s).message
