"""`cluster.singletons`: who leads what, how it stands, and what was saved, as people see it (S3, S4, H1)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import MalformedMessage, RunnerUnavailable
from coterie.kernel.serialization.codec import PLAIN
from coterie.singletons.api import Singletons
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow, StateRow
from tests.unit.singletons.fake_storage import NOW, Progress, singleton
from tests.unit.singletons.test_heartbeat_staleness import execution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.contracts.executions import ExecutionRecord


def seat(name: str, *, holder: str | None = "id1", epoch: int = 1) -> SeatRow:
    return SeatRow(name, "default", holder, epoch, "f", NOW, clean=True)


def runner(id: str, name: str) -> RunnerRow:
    return RunnerRow(id=id, name=name, address="", host_id="", groups=("default",), started_at=NOW)


class FakeConnection:
    """What `Singletons` asks: a database of some rows, and the runner that leads."""

    def __init__(self) -> None:
        self.storage = self
        self.executions = self.states = self
        self.runners = [runner("id1", "r1"), runner("id2", "r2")]
        self.seats: list[SeatRow] = []
        self.said: list[ExecutionRecord] = []
        self.rows: dict[str, list[StateRow]] = {}
        self.asked: list[tuple[str, str]] = []
        self.successor: str | None = "id2"

    async def view(self) -> ClusterSnapshot:
        return ClusterSnapshot(tuple(self.runners), tuple(self.seats), "")

    async def peek(self, key: str) -> StateRow | None:
        rows = self.rows.get(key)
        return rows[0] if rows else None

    async def history(self, key: str) -> list[StateRow]:
        return self.rows.get(key, [])

    async def list(self, prefix: str) -> Sequence[ExecutionRecord]:
        assert prefix == "singleton:"
        return self.said

    async def ask_to_resign(self, holder: RunnerRow, seat: SeatRow, *, within_s: float) -> None:
        self.asked.append((holder.name, seat.name))
        if self.successor is None:
            raise RunnerUnavailable(runner=holder.name, target=seat.name, problem="it does not answer")
        name, epoch = seat.name, seat.epoch
        self.seats = [msgspec.structs.replace(row, holder=self.successor, epoch=epoch + 1) for row in self.seats]
        assert name in {row.name for row in self.seats}


class FakeProcess:
    def __init__(self, *known: Any) -> None:
        self.connection = FakeConnection()
        acting: Any = self.connection
        self.singletons = Singletons(lambda: acting, {each.name: each for each in known}, heartbeat_s=30, staleness=2.0)

    def store(self, name: str, *values: bytes, **row: Any) -> None:
        rows = [StateRow(value, len(values) - place, 7, "r1", NOW, **row) for place, value in enumerate(values)]
        self.connection.rows[f"singleton-state:{name}"] = rows


def stored_as(version: int, value: Any) -> bytes:
    return b"\x92" + msgspec.msgpack.encode(version) + PLAIN.encode(value, what="a state")


async def test_all_singletons_are_listed_by_name_and_nothing_else() -> None:
    ground = FakeProcess()
    ground.connection.seats = [seat("singleton:b"), seat("shard:default:1"), seat("singleton:a:c"), seat("cron:x")]
    assert [each.name for each in await ground.singletons.list()] == ["a:c", "b"]
    assert (await ground.singletons.get("a:c")).leader == "r1"


async def test_what_is_known_is_shown() -> None:
    """S3."""
    ground = FakeProcess()
    ground.connection.seats = [seat("singleton:x", epoch=4)]
    said = execution(ran_s=3, progress_s=2, alive_s=1, since_s=9, expected_s=60)
    changes = {"epoch": 4, "runs": 5, "error": "no", "error_at": NOW, "note": "pages", "done": 3, "total": 10}
    ground.connection.said = [msgspec.structs.replace(said, **changes)]
    info = await ground.singletons.get("x")
    assert (info.name, info.group, info.leader, info.epoch, info.run_count) == ("x", "default", "r1", 4, 5)
    assert (info.last_error, info.last_error_at, info.note, info.done, info.total) == ("no", NOW, "pages", 3, 10)
    assert (info.last_run_at, info.last_heartbeat_at) == (said.ran_at, said.progress_at)
    assert (info.alive_at, info.since_at, info.expected_interval) == (
        said.alive_at,
        said.since_at,
        timedelta(minutes=1),
    )
    assert info.problem == ""


async def test_a_leader_that_has_not_said_anything_yet_is_a_leader() -> None:
    """What the former one said stays, but for since when it led."""
    ground = FakeProcess()
    ground.connection.seats = [seat("singleton:new"), seat("singleton:x", epoch=2)]
    ground.connection.said = [msgspec.structs.replace(execution(ran_s=3), epoch=1)]
    new, x = await ground.singletons.list()
    assert (new.leader, new.since_at, new.last_run_at, new.run_count, new.problem) == ("r1", None, None, 0, "")
    assert (x.leader, x.since_at) == ("r1", None)
    assert x.last_run_at is not None


@pytest.mark.parametrize(
    ("holder", "said", "problem"),
    [
        (None, {}, "nobody leads it"),
        ("gone", {}, "nobody leads it"),
        ("id1", {"alive_s": 61}, "no heartbeat for 61s (expected every 30s)"),
        ("id1", {"expected_s": 5, "progress_s": 11}, "no progress for 11s (expected every 5s)"),
        ("id1", {"expected_s": 5, "known_s": 11}, "never executed in 11s (expected every 5s)"),
        (None, {"expected_s": 5, "progress_s": 11}, "nobody leads it"),
    ],
    ids=["free", "gone", "dead", "stuck", "never", "both"],
)
async def test_what_is_wrong_is_told(holder: str | None, said: dict[str, Any], problem: str) -> None:
    """H1."""
    ground = FakeProcess()
    ground.connection.seats = [seat("singleton:x", holder=holder)]
    ground.connection.said = [execution(**said)]
    assert (await ground.singletons.get("x")).problem == problem


async def test_what_there_is_not_is_told_with_what_there_is() -> None:
    ground = FakeProcess()
    for there in ("none", "a, b"):
        says = f"there is no singleton 'x' in this cluster: there are {there}"
        with pytest.raises(ValueError, match=says):
            await ground.singletons.get("x")
        with pytest.raises(ValueError, match=says):
            await ground.singletons.resign("x")
        ground.connection.seats = [seat("singleton:b"), seat("singleton:a"), seat("shard:default:1")]


class TestState:
    async def test_it_is_the_last_one_or_none(self) -> None:
        ground = FakeProcess()
        assert await ground.singletons.state("x", Progress) is None
        ground.store("x", stored_as(1, {"last_id": 7, "former": 1}))
        assert await ground.singletons.state("x", Progress) == Progress(7)
        assert await ground.singletons.state("x", dict) == {"last_id": 7, "former": 1}

    async def test_migrations_are_applied_where_it_is_defined(self) -> None:
        ground = FakeProcess(singleton("x", version=2, migrations={1: lambda values: {"last_id": values["id"]}}))
        ground.store("x", stored_as(1, {"id": 7}))
        assert await ground.singletons.state("x", Progress) == Progress(7)
        assert await ground.singletons.state("x", dict) == {"id": 7}

    @pytest.mark.parametrize("data", [b"", b"\xc1", b"\x92\x01", stored_as(1, {"last_id": "many"})], ids=range(4))
    @pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
    async def test_what_does_not_fit_is_told(self, data: bytes, known: bool) -> None:
        ground = FakeProcess(*[singleton("x")] * known)
        ground.store("x", data)
        with pytest.raises(MalformedMessage, match="state of 'x'"):
            await ground.singletons.state("x", Progress)


class TestHistory:
    async def test_states_are_shown_in_plain_values(self) -> None:
        ground = FakeProcess()
        assert await ground.singletons.history("x") == []
        ground.store("x", stored_as(2, {"last_id": 2}), stored_as(1, {"id": 1}))
        new, old = await ground.singletons.history("x")
        assert (new.value, new.number, new.version, new.epoch, new.runner) == ({"last_id": 2}, 2, 2, 7, "r1")
        assert (old.value, old.number, old.version, old.saved_at, old.set_aside) == ({"id": 1}, 1, 1, NOW, "")

    @pytest.mark.parametrize(
        "data",
        [b"", b"\xc1", b"\x92\x01", b"\x92\x01\xc1", b"\x93\x01\x02\x03", b"\x92\x01\xd6\x05abcd", b"\x92\xa1x\x01"],
        ids=range(7),
    )
    async def test_what_nobody_can_read_is_shown_as_it_is(self, data: bytes) -> None:
        """S4: what was set aside is just that."""
        ground = FakeProcess()
        ground.store("x", data, reason="it cannot be read")
        (saved,) = await ground.singletons.history("x")
        assert (saved.value, saved.version, saved.set_aside) == (data, 0, "it cannot be read")


class TestResigning:
    async def test_the_leader_is_asked_and_the_next_one_is_told(self) -> None:
        ground = FakeProcess()
        ground.connection.seats = [seat("singleton:x")]
        assert await ground.singletons.resign("x") == "r2"
        assert ground.connection.asked == [("r1", "singleton:x")]

    async def test_it_may_be_the_same_again(self) -> None:
        """Where there is no other runner."""
        ground = FakeProcess()
        ground.connection.seats, ground.connection.successor = [seat("singleton:x")], "id1"
        assert await ground.singletons.resign("x") == "r1"

    async def test_nobody_in_time_is_a_timeout(self) -> None:
        ground = FakeProcess()
        ground.connection.seats = [seat("singleton:x", holder=None)]
        with pytest.raises(TimeoutError):
            await ground.singletons.resign("x", timeout="30ms")
        assert ground.connection.asked == []

    async def test_a_leader_that_cannot_be_reached_is_told(self) -> None:
        ground = FakeProcess()
        ground.connection.seats, ground.connection.successor = [seat("singleton:x")], None
        with pytest.raises(RunnerUnavailable):
            await ground.singletons.resign("x")
