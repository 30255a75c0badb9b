"""What every wire must give the transport: played unchanged on TCP, sealed TCP, TLS and the simulator's network."""

from __future__ import annotations

import asyncio
import os
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import MailboxFull, MalformedMessage, RemoteError, RunnerUnavailable, SendTimeout, ShuttingDown
from coterie.transport.interface import PeerAddress
from coterie.transport.streams import ITEM_BYTES
from tests.contract.transports import BROKEN, COUNT, ECHO, FAIL, KEEP, QUICK, Runner, TransportRunners, play, until
from tests.support.loop_time import LoopTime

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.contract.transports import Scenario

    Play = Callable[[Scenario], None]

SEEDS = int(os.environ.get("COTERIE_TRANSPORT_SEEDS", "4"))


@pytest.fixture(params=["tcp", "tls", "sealed", *(f"sim-{seed}" for seed in range(SEEDS))])
def perform(request: pytest.FixtureRequest, tmp_path: Path) -> Play:
    return partial(play, request.param, folder=tmp_path)


async def pair(world: TransportRunners, **options: Any) -> tuple[Runner, Runner]:
    server = await world.runner(name="server", **options)
    client = await world.runner(name="client", **options)
    return client, server


async def outcome(call: Any) -> Any:
    """The reply, or the error."""
    try:
        return await call
    except Exception as error:
        return error


def test_a_request_gets_its_reply_both_ways_over_one_connection(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        assert await client.request(server, ECHO, b"there") == b"there"
        assert await server.request(client, ECHO, b"and back") == b"and back"
        assert len(client.connections) == len(server.connections) == 1
        assert client.transport.connected(server.peer)

    perform(scenario)


def test_replies_find_their_callers_in_any_order(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        calls = [asyncio.ensure_future(client.request(server, KEEP, b"%d" % number)) for number in range(200)]
        await until(lambda: len(server.desk.kept) == 200)
        kept = list(server.desk.kept)
        random.Random(7).shuffle(kept)
        for request in kept:
            request.reply(b"reply to " + request.body)
        assert await asyncio.gather(*calls) == [b"reply to %d" % number for number in range(200)]

    perform(scenario)


def test_a_failure_arrives_as_the_error_that_it_was(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        error = await outcome(client.request(server, FAIL, b""))
        assert isinstance(error, MailboxFull)
        assert (error.entity, error.waiting) == ("Account/alice", 7)

    perform(scenario)


def test_a_handler_that_raises_fails_its_request_and_no_other(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        error = await outcome(client.request(server, BROKEN, b""))
        assert isinstance(error, RemoteError)
        assert error.type_name == "IndexError"
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


def test_headers_and_the_deadline_reach_the_handler(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        call = asyncio.ensure_future(
            client.transport.request(server.peer, KEEP, b"", within_s=100.0, headers={"traceparent": "00-ab"})
        )
        await until(lambda: bool(server.desk.kept))
        request = server.desk.kept[0]
        now_s = asyncio.get_running_loop().time()
        assert dict(request.headers) == {"traceparent": "00-ab"}
        assert request.peer == client.incarnation
        assert 10.0 < request.until_s - now_s <= 100.1
        request.reply(b"")
        await call

    perform(scenario)


def test_a_notice_arrives_and_is_dropped_without_connection(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        assert not client.transport.notify(server.peer, 9, b"lost")
        await client.transport.connect(server.peer)
        assert client.transport.notify(server.peer, 9, b"told", headers={"a": "b"})
        await until(lambda: bool(server.desk.notices))
        assert server.desk.notices == [(client.incarnation, 9, b"told", {"a": "b"})]

    perform(scenario)


def test_a_call_expires_at_its_deadline_and_the_handler_is_told(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        await client.transport.connect(server.peer)
        began_s = asyncio.get_running_loop().time()
        async with LoopTime() as taken:
            error = await outcome(client.request(server, KEEP, b"", within_s=0.3))
        assert isinstance(error, SendTimeout)
        assert asyncio.get_running_loop().time() - began_s >= 0.3
        assert taken.seconds < 2.0
        await until(lambda: server.desk.cancelled == server.desk.kept)
        server.desk.kept[0].reply(b"too late")
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


def test_a_cancelled_call_reaches_the_handler_and_its_reply_nobody(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        call = asyncio.ensure_future(client.request(server, KEEP, b""))
        await until(lambda: bool(server.desk.kept))
        was_open = server.desk.kept[0].is_open
        call.cancel()
        await until(lambda: server.desk.cancelled == server.desk.kept)
        assert call.cancelled()
        assert was_open > server.desk.kept[0].is_open
        server.desk.kept[0].reply(b"nobody waits")
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


def test_a_body_at_the_limit_passes_and_one_byte_more_is_not_sent(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        limits = replace(QUICK, body_most_bytes=300_000)
        client, server = await pair(world, limits=limits)
        body = bytes(range(256)) * 1172
        at_limit = body[:300_000]
        assert await client.request(server, ECHO, at_limit) == at_limit
        error = await outcome(client.request(server, ECHO, at_limit + b"!"))
        assert isinstance(error, MalformedMessage)
        assert "300001 bytes" in error.message
        assert len(server.desk.bodies) == 1
        assert len(client.connections) == 1

    perform(scenario)


def test_a_reply_beyond_the_limit_fails_its_request_and_not_the_connection(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world, limits=replace(QUICK, body_most_bytes=100_000))
        server.desk.routes[77] = lambda request: request.reply(bytes(100_001))
        error = await outcome(client.request(server, 77, b""))
        assert isinstance(error, MalformedMessage)
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


def test_the_smaller_limit_of_the_two_holds(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        server = await world.runner(name="server", limits=replace(QUICK, body_most_bytes=70_000))
        client = await world.runner(name="client")
        assert isinstance(await outcome(client.request(server, ECHO, bytes(70_001))), MalformedMessage)
        assert server.desk.bodies == []
        assert await client.request(server, ECHO, bytes(70_000)) == bytes(70_000)

    perform(scenario)


def test_no_more_is_asked_of_a_peer_than_it_takes(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        server = await world.runner(name="server", limits=replace(QUICK, in_flight=3))
        client = await world.runner(name="client")
        replies = await asyncio.gather(
            *(client.request(server, KEEP, b"") for _ in range(3)),
            _serve(server, 30),
            *(client.request(server, KEEP, b"") for _ in range(27)),
        )
        assert replies.count(b"served") == 30

    perform(scenario)


def test_a_stream_gives_its_items_in_order_and_ends(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        stream = client.transport.stream(server.peer, COUNT, b"500 10", within_s=20)
        numbers = [int(item.split(b" ")[0]) async for item in stream]
        assert numbers == list(range(500))
        assert [item async for item in stream] == []

    perform(scenario)


def test_a_stream_runs_no_further_ahead_of_its_reader_than_the_window(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        window_bytes, size = 50_000, 1_000
        client, server = await pair(world, limits=replace(QUICK, window_bytes=window_bytes))
        stream = client.transport.stream(server.peer, COUNT, b"400 1000", within_s=20)
        ahead_most = window_bytes // size + 2
        for number in range(400):
            assert int((await anext(stream.__aiter__())).split(b" ")[0]) == number
            assert server.desk.sent_items <= number + 1 + ahead_most
            if number == 10:  # a slow reader: the sender comes to rest
                await asyncio.sleep(0.2)
                assert server.desk.sent_items < 11 + ahead_most
        assert window_bytes // (size + ITEM_BYTES) <= ahead_most

    perform(scenario)


def test_a_reader_that_leaves_ends_the_stream_at_its_sender(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        stream = client.transport.stream(server.peer, COUNT, b"100000 1000", within_s=20)
        await anext(stream.__aiter__())
        await stream.aclose()
        await until(lambda: bool(server.desk.cancelled))
        await until(lambda: server.desk.tasks[0].done())
        error = server.desk.tasks[0].exception()
        assert isinstance(error, RunnerUnavailable)
        assert [item async for item in stream] == []
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


def test_a_stream_that_fails_says_why_after_its_items(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)

        async def work(request: Any) -> None:
            await request.send(b"first")
            request.fail("mailbox_full", {"entity": "Account/alice", "waiting": 7})

        server.desk.routes[77] = lambda request: server.desk.tasks.append(asyncio.ensure_future(work(request)))
        stream = client.transport.stream(server.peer, 77, b"", within_s=20)
        assert await anext(stream.__aiter__()) == b"first"
        assert isinstance(await outcome(anext(stream.__aiter__())), MailboxFull)

    perform(scenario)


def test_a_silent_stream_expires(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        stream = client.transport.stream(server.peer, KEEP, b"", within_s=0.3)
        assert isinstance(await outcome(anext(stream.__aiter__())), SendTimeout)
        await until(lambda: bool(server.desk.cancelled))

    perform(scenario)


def test_when_a_peer_is_killed_each_call_fails_once_and_says_that_it_may_have_run(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        lost: list[str] = []
        client.transport.on_lost(lambda peer, problem: lost.append(peer))
        calls = [asyncio.ensure_future(outcome(client.request(server, KEEP, b"%d" % n))) for n in range(50)]
        await until(lambda: len(server.desk.kept) == 50)
        await world.kill(server)
        errors = await asyncio.gather(*calls)
        assert {(type(error), error.sent) for error in errors} == {(RunnerUnavailable, True)}
        await until(lambda: lost == [server.incarnation])
        error = await outcome(client.request(server, ECHO, b"", within_s=3))
        assert isinstance(error, RunnerUnavailable | SendTimeout)
        assert not isinstance(error, RunnerUnavailable) or not error.sent

    perform(scenario)


def test_a_peer_that_falls_silent_is_given_up(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        assert await client.request(server, ECHO, b"") == b""
        await world.silence(server)
        error = await outcome(client.request(server, ECHO, b"into the void"))
        assert isinstance(error, RunnerUnavailable)
        assert error.sent
        assert "nothing heard" in error.problem
        assert not client.transport.connected(server.peer)

    perform(scenario)


def test_after_a_broken_connection_the_next_call_opens_another(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        for number in range(5):
            assert await client.request(server, ECHO, b"%d" % number) == b"%d" % number
            world.reset(client, server)
            await until(lambda: not client.transport.connected(server.peer))
        assert await client.request(server, ECHO, b"again") == b"again"

    perform(scenario)


def test_many_callers_share_one_attempt_to_connect(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        replies = await asyncio.gather(*(client.request(server, ECHO, b"%d" % n) for n in range(100)))
        assert replies == [b"%d" % n for n in range(100)]
        assert len(client.connections) == 1

    perform(scenario)


def test_two_that_call_each_other_at_once_settle_on_one_connection_and_lose_no_call(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        a, b = await world.runner(name="a"), await world.runner(name="b")
        calls = [one.request(other, ECHO, b"%d" % n) for n in range(20) for one, other in ((a, b), (b, a))]
        replies = await asyncio.gather(*calls)
        assert replies == [b"%d" % n for n in range(20) for _ in range(2)]
        await until(lambda: len(a.connections) == len(b.connections) == 1)
        assert a.transport.connected(b.peer)
        assert b.transport.connected(a.peer)
        assert await a.request(b, ECHO, b"x") == await b.request(a, ECHO, b"x") == b"x"

    perform(scenario)


def test_another_incarnation_on_the_same_port_is_told_apart_M2(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        assert await client.transport.probe(server.peer) == "present"
        await world.kill(server)
        successor = await world.runner(name="successor", instead_of=server)
        assert successor.peer.address == server.peer.address
        assert await client.transport.probe(server.peer) == "other"
        error = await outcome(client.request(server, ECHO, b""))
        assert isinstance(error, RunnerUnavailable)
        assert not error.sent
        assert successor.incarnation in error.problem
        assert successor.desk.bodies == []
        assert await client.request(successor, ECHO, b"new") == b"new"

    perform(scenario)


def test_a_port_where_nobody_listens_refuses_M2(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        address = server.peer
        await server.transport.stop()
        assert await client.transport.probe(address) == "refused"
        error = await outcome(client.transport.request(address, ECHO, b"", within_s=5))
        assert isinstance(error, RunnerUnavailable)
        assert not error.sent
        assert "nobody listens" in error.problem
        again = await outcome(client.transport.request(address, ECHO, b"", within_s=5))
        assert "tried again in" in again.problem

    perform(scenario)


def test_a_peer_without_address_is_reached_over_the_connection_it_opened(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        server = await world.runner(name="server")
        client = await world.runner(name="client", listens=False)
        assert client.transport.address is None
        error = await outcome(server.transport.request(PeerAddress("", client.incarnation), ECHO, b"", within_s=5))
        assert isinstance(error, RunnerUnavailable)
        await client.transport.connect(server.peer)
        await until(lambda: server.transport.connected(client.peer))
        assert await server.request(client, ECHO, b"hello") == b"hello"

    perform(scenario)


def test_requests_beyond_the_bound_wait_for_room_and_are_refused_beyond_that(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        limits = replace(QUICK, in_flight=10, waiting=5)
        client, server = await pair(world, limits=limits)
        await client.transport.connect(server.peer)
        calls = [asyncio.ensure_future(outcome(client.request(server, KEEP, b"%d" % n))) for n in range(16)]
        await until(lambda: len(server.desk.kept) == 10 and calls[15].done())
        assert isinstance(calls[15].result(), RunnerUnavailable)
        assert not calls[15].result().sent
        kept = server.desk.kept
        for served in range(15):
            await until(lambda least=served: len(kept) > least)  # type: ignore[misc] # a default binds it
            assert len(kept) - served <= 10
            kept[served].reply(kept[served].body)
        assert await asyncio.gather(*calls[:15]) == [b"%d" % n for n in range(15)]
        assert [request.body for request in server.desk.kept] == [b"%d" % n for n in range(15)]

    perform(scenario)


def test_a_request_that_finds_no_room_in_time_expires_unsent(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world, limits=replace(QUICK, in_flight=1))
        await client.transport.connect(server.peer)
        first = asyncio.ensure_future(client.request(server, KEEP, b"first"))
        await until(lambda: bool(server.desk.kept))
        error = await outcome(client.request(server, KEEP, b"second", within_s=0.2))
        assert isinstance(error, SendTimeout)
        assert "not sent" in error.hint
        server.desk.kept[0].reply(b"done")
        assert await first == b"done"
        assert server.desk.bodies == [b"first"]

    perform(scenario)


def test_bytes_in_flight_are_bounded_and_a_reader_that_stops_costs_no_more(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        limits = replace(QUICK, body_most_bytes=100_000, in_flight_bytes=400_000, ping_s=60.0)
        client, server = await pair(world, limits=limits)
        await client.transport.connect(server.peer)
        await until(lambda: len(server.connections) == 1)
        transport = server.connections[0]._transport
        assert transport is not None
        transport.pause_reading()
        calls = [
            asyncio.ensure_future(outcome(client.request(server, ECHO, bytes(50_000), within_s=0.5)))
            for _ in range(100)
        ]
        out = client.connections[0]._out
        for _ in range(20):
            await asyncio.sleep(0.01)
            assert out.held_bytes <= 450_000
        assert {type(error) for error in await asyncio.gather(*calls)} == {SendTimeout}
        transport.resume_reading()
        assert await client.request(server, ECHO, b"goes on") == b"goes on"

    perform(scenario)


def test_a_peer_that_asks_and_never_reads_is_cut_off(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        limits = replace(QUICK, body_most_bytes=200_000, in_flight_bytes=300_000)
        server = await world.runner(name="server", limits=limits)
        client = await world.runner(name="client", limits=replace(limits, ping_s=60.0))
        server.desk.routes[77] = lambda request: request.reply(bytes(200_000))
        await client.transport.connect(server.peer)
        transport = client.connections[0]._transport
        assert transport is not None
        transport.pause_reading()
        held: list[int] = []
        calls = [asyncio.ensure_future(outcome(client.request(server, 77, b"", within_s=5))) for _ in range(100)]

        def cut_off() -> bool:
            held.extend(connection._out.held_bytes for connection in server.connections)
            return not server.connections

        await until(cut_off)
        assert max(held, default=0) <= 4 * 300_000 + 200_100
        transport.resume_reading()
        errors = [error for error in await asyncio.gather(*calls) if not isinstance(error, bytes)]
        assert {type(error) for error in errors} == {RunnerUnavailable}

    perform(scenario)


def test_stop_tells_those_who_wait_on_both_sides(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        out = [asyncio.ensure_future(outcome(client.request(server, KEEP, b""))) for _ in range(20)]
        back = [asyncio.ensure_future(outcome(server.request(client, KEEP, b""))) for _ in range(20)]
        await until(lambda: len(server.desk.kept) == len(client.desk.kept) == 20)
        await server.transport.stop()
        assert {type(error) for error in await asyncio.gather(*back)} == {ShuttingDown}
        told = await asyncio.gather(*out)
        assert {(type(error), error.problem) for error in told} == {(RunnerUnavailable, "it said goodbye")}
        assert server.desk.cancelled == server.desk.kept
        await until(lambda: client.desk.cancelled == client.desk.kept)
        assert isinstance(await outcome(server.request(client, ECHO, b"")), ShuttingDown)
        assert server.connections == []

    perform(scenario)


def test_stop_while_connecting_tells_those_who_wait(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        calls = [asyncio.ensure_future(outcome(client.request(server, ECHO, b""))) for _ in range(5)]
        await asyncio.sleep(0)
        await client.transport.stop()
        assert {type(error) for error in await asyncio.gather(*calls)} == {ShuttingDown}

    perform(scenario)


def test_ten_thousand_calls_cancelled_anywhere_never_mix_up_replies_incident_39(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world, limits=replace(QUICK, ping_s=5.0))
        chance = random.Random(world.seed)
        server.desk.routes[77] = partial(_answer_sometime, chance, server)
        await client.transport.connect(server.peer)
        matched, cancelled, total = 0, 0, 10_000 if world.seed == 0 else 2_000
        for begin in range(0, total, 200):
            calls = {
                begin + n: asyncio.ensure_future(client.request(server, 77, b"tag %d" % (begin + n)))
                for n in range(200)
            }
            doomed = chance.sample(list(calls.values()), k=120)
            while doomed:
                for call in [doomed.pop() for _ in range(min(len(doomed), chance.randint(1, 20)))]:
                    call.cancel()
                for _ in range(chance.randint(1, 4)):
                    await asyncio.sleep(0)
                if chance.random() < 0.6:
                    await asyncio.sleep(chance.random() * 0.001)
            while not all(call.done() for call in calls.values()):
                _answer(server, server.desk.kept)
                await asyncio.sleep(0.001)
            for number, call in calls.items():
                if call.cancelled():
                    cancelled += 1
                else:
                    assert call.result() == b"reply to tag %d" % number
                    matched += 1
        assert matched + cancelled == total
        assert matched > total // 20
        assert cancelled > total // 20
        assert len(client.connections) == 1
        assert len(client.connections[0].calls) == 0
        assert await client.request(server, ECHO, b"next") == b"next"

    perform(scenario)


async def _serve(server: Runner, count: int) -> None:
    """Answer so many, which never pile up beyond what the server takes."""
    for _ in range(count):
        await until(lambda: bool(server.desk.kept))
        await asyncio.sleep(0.001)
        assert len(server.desk.kept) <= 3
        server.desk.kept.pop(0).reply(b"served")


def _answer_sometime(chance: random.Random, server: Runner, request: Any) -> None:
    """In any order, some at once, some later, some after they were cancelled."""
    server.desk.kept.append(request)
    count = chance.choice([0, 0, 1, 1, 2, 30])
    _answer(server, chance.sample(server.desk.kept, k=min(count, len(server.desk.kept))))


def _answer(server: Runner, requests: list[Any]) -> None:
    for request in list(requests):
        server.desk.kept.remove(request)
        request.reply(b"reply to " + request.body)


def test_calls_run_at_most_once_whatever_breaks(perform: Play) -> None:
    async def scenario(world: TransportRunners) -> None:
        client, server = await pair(world)
        chance = random.Random(world.seed)
        outcomes: dict[bytes, Any] = {}
        for batch in range(20):
            bodies = [b"%d-%d" % (batch, n) for n in range(20)]
            calls = [asyncio.ensure_future(outcome(client.request(server, ECHO, body))) for body in bodies]
            for _ in range(chance.randint(0, 12)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.002)
            world.reset(client, server)
            outcomes |= dict(zip(bodies, await asyncio.gather(*calls), strict=True))
        ran = server.desk.bodies
        assert len(ran) == len(set(ran)), "a request ran twice"
        for body, result in outcomes.items():
            if isinstance(result, bytes):
                assert result == body
            elif isinstance(result, RunnerUnavailable) and not result.sent:
                assert body not in ran, "told as not sent, and it ran"

    perform(scenario)
