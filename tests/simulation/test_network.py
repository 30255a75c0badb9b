"""The simulated network: byte streams that lose nothing silently, and links that fail."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from coterie.testing import run_simulation
from coterie.testing.loop.nodes import Node, current_node
from coterie.testing.network.network import Address, Link, Network
from coterie.testing.network.pipes import WINDOW_BYTES
from coterie.testing.run import current_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from coterie.testing.loop.loop import SimLoop
    from coterie.testing.network.transports import SimTransport

SEEDS = range(15)
ROUGH = Link(jitter_ns=20_000_000, slow=0.2, split=0.7)


class Recorder(asyncio.Protocol):
    """Keeps all that a transport tells it."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.transport: SimTransport
        self.calls: list[str] = []
        self.chunks: list[bytes] = []
        self.data = bytearray()
        self.nodes: set[str] = set()
        self.error: Exception | None = None
        self.keep_open = keep_open
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # the simulated one
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self.chunks.append(data)
        self.data += data
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return self.keep_open

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._note("lost")
        self.lost.set()

    def pause_writing(self) -> None:
        self.calls.append("pause")  # on whatever node calls write(), here the test

    def resume_writing(self) -> None:
        self._note("resume")

    def _note(self, call: str) -> None:
        self.nodes.add(current_node.get().name)
        if not self.calls or self.calls[-1] != call or call != "data":
            self.calls.append(call)


class TwoMachines:
    """Two machines, a server on one of them."""

    def __init__(self, *, link: Link | None = None, keep_open: bool = False) -> None:
        self.keep_open = keep_open
        self.loop: SimLoop = current_loop()
        self.network = Network(self.loop, link=link)
        self.client = self.loop.nodes.add("client")
        self.server = self.loop.nodes.add("server")
        self.accepted: list[Recorder] = []
        self.address = self.network.listen(self.server, self.accept)

    def accept(self) -> Recorder:
        self.accepted.append(Recorder(keep_open=self.keep_open))
        return self.accepted[-1]

    async def connect(self, factory: Callable[[], Recorder] = Recorder) -> tuple[Recorder, Recorder]:
        before = len(self.accepted)
        _, near = await self.network.connect(self.client, self.address, factory)
        await until(lambda: len(self.accepted) > before)
        return near, self.accepted[-1]


async def until(condition: Callable[[], bool], *, within_s: float = 60.0) -> None:
    async with asyncio.timeout(within_s):
        while not condition():
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("seed", SEEDS)
def test_exactly_the_bytes_written_arrive_both_ways_for_any_split(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines(link=ROUGH)
        near, far = await world.connect()
        sent = [bytearray(), bytearray()]
        for number in range(200):
            for end, record in ((near, sent[0]), (far, sent[1])):
                piece = bytes([number % 251]) * (number * 7 % 400)
                end.transport.write(piece)
                record += piece
            await asyncio.sleep(0.001)
        await until(lambda: len(near.data) == len(sent[1]))  # closing with unread bytes would reset, as in TCP
        near.transport.close()
        await far.lost.wait()
        assert [far.data, near.data] == sent
        assert far.calls == ["made", "data", "eof", "lost"]
        assert (near.nodes, far.nodes) == ({"client"}, {"server"})
        assert near.error is None

    run_simulation(main, seed=seed)


def test_the_seed_divides_and_merges_what_is_written() -> None:
    async def main() -> list[int]:
        world = TwoMachines(link=ROUGH)
        near, far = await world.connect()
        for _ in range(50):
            near.transport.write(b"x" * 10)
        await until(lambda: len(far.data) == 500)
        return [len(chunk) for chunk in far.chunks]

    sizes = run_simulation(main, seed=5)
    assert min(sizes) < 10 < max(sizes)
    assert sizes == run_simulation(main, seed=5)
    assert sizes != run_simulation(main, seed=6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_half_closed_stream_still_carries_the_answer(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines(link=ROUGH, keep_open=True)
        near, far = await world.connect()
        near.transport.write(b"question")
        near.transport.write_eof()
        await until(lambda: "eof" in far.calls)
        far.transport.write(b"answer")
        far.transport.close()
        await near.lost.wait()
        assert (bytes(far.data), bytes(near.data)) == (b"question", b"answer")

    run_simulation(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_reader_that_pauses_makes_the_writer_pause_and_nothing_is_lost(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        far.transport.pause_reading()
        near.transport.set_write_buffer_limits(high=1_000)
        data = bytes(range(256)) * 1_000
        near.transport.write(data)
        assert near.calls == ["made", "pause"]
        assert near.transport.get_write_buffer_size() == len(data) - WINDOW_BYTES
        await asyncio.sleep(100)
        assert far.data == b""
        far.transport.resume_reading()
        await until(lambda: len(far.data) == len(data))
        assert far.data == data
        assert near.calls == ["made", "pause", "resume"]

    run_simulation(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_closing_sends_what_is_buffered_first(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        data = b"y" * (3 * WINDOW_BYTES)
        near.transport.write(data)
        near.transport.close()
        near.transport.write(b"too late")
        assert near.transport.is_closing()
        await far.lost.wait()
        assert far.data == data
        assert near.calls[-1] == "lost"

    run_simulation(main, seed=seed)


def test_an_aborted_connection_is_cut_at_any_byte_and_the_peer_knows() -> None:
    async def main() -> int:
        world = TwoMachines(link=Link(split=0.0))
        near, far = await world.connect()
        near.transport.write(b"0123456789" * 20)
        near.transport.abort()
        await far.lost.wait()
        assert isinstance(far.error, ConnectionResetError)
        assert (b"0123456789" * 20).startswith(far.data)
        assert near.error is None
        assert near.calls == ["made", "lost"]
        return len(far.data)

    sizes = {run_simulation(main, seed=seed) for seed in range(40)}
    assert 0 in sizes
    assert len(sizes) > 5


def test_resets_of_a_bad_link_come_at_different_bytes_and_both_sides_see_them() -> None:
    async def main() -> int:
        world = TwoMachines(link=Link(reset=0.1, split=0.5))
        near, far = await world.connect()
        while not near.lost.is_set():
            near.transport.write(b"0123456789")
            await asyncio.sleep(0.01)
        await far.lost.wait()
        assert isinstance(near.error, ConnectionResetError)
        assert isinstance(far.error, ConnectionResetError)
        return len(far.data)

    assert len({run_simulation(main, seed=seed) for seed in SEEDS}) > 5


@pytest.mark.parametrize("seed", SEEDS)
def test_a_cut_link_holds_bytes_until_it_heals(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        world.network.cut("client", "server")
        near.transport.write(b"hello")
        await asyncio.sleep(60)
        assert far.data == b""
        near.transport.close()
        world.network.heal("client", "server")
        await far.lost.wait()
        assert (bytes(far.data), far.error) == (b"hello", None)

    run_simulation(main, seed=seed)


def test_a_link_cut_one_way_carries_the_other_way_up_to_a_window() -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        world.network.cut("client", "server", both=False)
        near.transport.write(b"unheard")
        far.transport.write(b"z" * (2 * WINDOW_BYTES))
        await asyncio.sleep(60)
        assert far.data == b""
        assert len(near.data) == WINDOW_BYTES  # nobody tells the writer that it was read
        world.network.heal("client", "server")
        await until(lambda: len(near.data) == 2 * WINDOW_BYTES and bytes(far.data) == b"unheard")

    run_simulation(main, seed=2)


def test_a_writer_gives_up_on_a_link_that_never_heals() -> None:
    async def main() -> None:
        world = TwoMachines()
        near, _ = await world.connect()
        world.network.cut("client", "server")
        near.transport.write(b"hello")
        await near.lost.wait()
        assert isinstance(near.error, TimeoutError)
        assert 900 < world.loop.time() < 1_000

    run_simulation(main, seed=2)


@pytest.mark.parametrize("seed", SEEDS)
def test_connecting_over_a_cut_link_waits_for_the_link_or_times_out(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        world.network.cut("client", "server", both=False)
        with pytest.raises(TimeoutError, match=r"no answer from server:\d+ in 3 s"):
            await world.network.connect(world.client, world.address, Recorder, timeout_s=3)
        waiting = asyncio.create_task(world.connect())
        await asyncio.sleep(10)
        assert not waiting.done()
        world.network.heal("client", "server")
        await waiting

    run_simulation(main, seed=seed)


def test_connecting_to_nobody_is_refused() -> None:
    async def main() -> None:
        world = TwoMachines()
        with pytest.raises(ConnectionRefusedError, match="nobody listens on server:1"):
            await world.network.connect(world.client, Address("server", 1), Recorder)
        world.network.close(world.address)
        with pytest.raises(ConnectionRefusedError):
            await world.network.connect(world.client, world.address, Recorder)
        with pytest.raises(OSError, match="in use"):
            world.network.listen(world.server, Recorder, port=world.network.listen(world.server, Recorder).port)

    run_simulation(main, seed=2)


def test_the_peer_of_a_crashed_node_sees_the_end_a_reset_or_silence_by_seed() -> None:
    async def main() -> tuple[str, str]:
        world = TwoMachines()
        near, far = await world.connect()
        far.transport.write(b"last words")
        await asyncio.sleep(1)
        world.loop.nodes.crash(world.server)
        await asyncio.sleep(1)
        near.transport.write(b"are you there?")
        await asyncio.sleep(60)
        assert bytes(near.data) == b"last words"
        assert far.calls == ["made"]
        seen = f"{near.calls[2:]} {type(near.error).__name__}"
        try:
            await world.network.connect(world.client, world.address, Recorder, timeout_s=5)
        except OSError as error:
            return seen, type(error).__name__
        raise AssertionError("nobody can have answered")

    refused = "ConnectionRefusedError"
    assert {run_simulation(main, seed=seed) for seed in range(40)} == {
        ("['eof', 'lost'] NoneType", refused),
        ("['lost'] ConnectionResetError", refused),
        ("[] NoneType", "TimeoutError"),
    }


def test_who_writes_to_a_process_that_is_gone_is_reset_unless_its_machine_is_silent() -> None:
    async def main() -> str:
        world = TwoMachines()
        near, _ = await world.connect(lambda: Recorder(keep_open=True))
        world.loop.nodes.crash(world.server)
        await asyncio.sleep(1)
        fate = ",".join(near.calls)
        near.transport.write(b"are you there?")
        await near.lost.wait()
        return f"{fate} then {type(near.error).__name__}"

    assert {run_simulation(main, seed=seed) for seed in range(40)} == {
        "made,eof then ConnectionResetError",
        "made,lost then ConnectionResetError",
        "made then TimeoutError",
    }


@pytest.mark.parametrize("seed", range(30))
def test_a_node_that_comes_back_is_reached_again_and_knows_no_old_connections(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        near, _ = await world.connect()
        world.loop.nodes.crash(world.server)
        await asyncio.sleep(10)
        world.server = world.loop.nodes.add("server")
        world.address = world.network.listen(world.server, world.accept, port=world.address.port)
        near.transport.write(b"still there?")
        await near.lost.wait()
        assert near.error is None or isinstance(near.error, ConnectionResetError)
        assert world.loop.time() < 60
        again, far = await world.connect()
        again.transport.write(b"hello")
        await until(lambda: bytes(far.data) == b"hello")
        assert not [end for end in world.network._ends if not end.node.alive]

    run_simulation(main, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_frozen_node_is_connected_to_but_reads_only_when_it_thaws(seed: int) -> None:
    async def main() -> None:
        world = TwoMachines()
        world.loop.nodes.freeze(world.server)
        _, near = await world.network.connect(world.client, world.address, Recorder)
        near.transport.write(b"hello")
        await asyncio.sleep(100)
        assert world.accepted == []
        assert not near.lost.is_set()
        world.loop.nodes.thaw(world.server)
        await until(lambda: bool(world.accepted) and bytes(world.accepted[0].data) == b"hello")

    run_simulation(main, seed=seed)


def test_reset_breaks_what_is_between_two_machines_and_nothing_else() -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        other = world.loop.nodes.add("other")
        _, apart = await world.network.connect(other, world.address, Recorder)
        world.network.reset("server", "client")
        await asyncio.gather(near.lost.wait(), far.lost.wait())
        await asyncio.sleep(60)
        assert not apart.lost.is_set()

    run_simulation(main, seed=3)


def test_a_protocol_that_fails_on_data_loses_its_connection() -> None:
    class Failing(Recorder):
        def data_received(self, data: bytes) -> None:
            raise ValueError("cannot read this")

    class FailingWorld(TwoMachines):
        def accept(self) -> Recorder:
            self.accepted.append(Failing())
            return self.accepted[-1]

    async def main() -> None:
        world = FailingWorld()
        near, far = await world.connect()
        near.transport.write(b"hello")
        await near.lost.wait()
        assert isinstance(far.error, ValueError)

    with pytest.raises(ExceptionGroup, match="nobody handled"):
        run_simulation(main, seed=3)


def test_a_transport_says_who_is_at_the_ends_and_refuses_what_asyncio_refuses() -> None:
    async def main() -> None:
        world = TwoMachines()
        near, far = await world.connect()
        assert near.transport.get_extra_info("peername") == ("server", world.address.port)
        assert far.transport.get_extra_info("peername") == near.transport.get_extra_info("sockname")
        assert near.transport.get_extra_info("ssl_object", "none") == "none"
        assert near.transport.is_reading()
        assert near.transport.get_protocol() is near
        with pytest.raises(TypeError, match="bytes-like"):
            near.transport.write("text")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must be >="):
            near.transport.set_write_buffer_limits(high=1, low=2)
        near.transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        near.transport.write_eof()
        with pytest.raises(RuntimeError, match="after write_eof"):
            near.transport.write(b"d")
        await far.lost.wait()
        assert bytes(far.data) == b"abc"

    run_simulation(main, seed=3)


def test_links_have_their_own_latency() -> None:
    async def main() -> tuple[float, float]:
        world = TwoMachines(link=Link(jitter_ns=0, slow=0.0, split=0.0))
        world.network.set_link("client", "server", Link(latency_ns=2_000_000_000, jitter_ns=0, slow=0), both=False)
        started = world.loop.time()
        await world.network.connect(world.client, world.address, Recorder)
        connected = world.loop.time()
        await until(lambda: bool(world.accepted))
        return connected - started, world.loop.time() - connected

    there, accepted = run_simulation(main, seed=0)
    assert there == pytest.approx(2.0002)
    assert accepted == pytest.approx(2.0, abs=0.002)


def test_a_crashed_process_writes_no_more() -> None:
    async def main(server_writes: bool) -> None:
        world = TwoMachines()
        near, far = await world.connect()
        world.loop.nodes.crash(world.server)
        far.transport.write(b"from beyond")
        far.transport.close()
        far.transport.abort()
        await asyncio.sleep(10)
        assert near.data == b""

    for seed in SEEDS:
        run_simulation(lambda: main(True), seed=seed)


def test_nodes_are_named(request: pytest.FixtureRequest) -> None:
    assert repr(Node("runner-1")) == "<Node runner-1 runs>"
