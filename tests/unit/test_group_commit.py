"""Group commit: writes share transactions, stay independent, and nobody waits for ever [M3]."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import NotStarted, Outcome, PersistenceError, ShuttingDown
from coterie.kernel import chaos
from coterie.storage.group_commit import Group, GroupWriter, fenced
from coterie.storage.interface import KvPut, Write

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence


class Engine:
    """Commits groups when it is let, and refuses those with a bad member."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.outcome: Outcome = "refused"
        self.closes = False

    async def commit(self, writes: Sequence[Write]) -> list[Any]:
        """In the group it is given; `closes` lets those in that have queued by the time it is let."""
        if self.closes and isinstance(writes, Group):
            await self.open.wait()
            writes.close()
        keys = [write.key for write in writes if isinstance(write, KvPut)]
        assert len(keys) == len(writes)
        self.groups.append(keys)
        await self.open.wait()
        if any(key.startswith("bad") for key in keys):
            raise PersistenceError(doing="write", problem="bad", outcome=self.outcome)
        if "bug" in keys:
            raise ZeroDivisionError
        return [key.upper() for key in keys]


@asynccontextmanager
async def writing(engine: Engine, **bounds: Any) -> AsyncIterator[GroupWriter]:
    async with GroupWriter(engine.commit, **bounds) as writer:
        yield writer


def put(key: str) -> KvPut:
    return KvPut(key, b"", 1)


async def test_a_lone_write_is_committed_at_once() -> None:
    engine = Engine()
    async with writing(engine) as writer:
        assert await writer.write(put("a")) == "A"
        assert await writer.write(put("b")) == "B"
    assert engine.groups == [["a"], ["b"]]


async def test_what_queues_during_a_commit_shares_the_next_one() -> None:
    engine = Engine()
    engine.open.clear()
    async with writing(engine) as writer:
        tasks = [asyncio.create_task(writer.write(put(key))) for key in "abcde"]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late = [asyncio.create_task(writer.write(put(key))) for key in "xy"]
        await asyncio.sleep(0)
        engine.open.set()
        assert await asyncio.gather(*tasks, *late) == list("ABCDEXY")
    assert engine.groups == [list("abcde"), list("xy")]
    assert (writer.groups, writer.members) == (2, 7)


async def test_a_group_has_a_bound() -> None:
    engine = Engine()
    async with writing(engine, most=2) as writer:
        await asyncio.gather(*(writer.write(put(key)) for key in "abcde"))
    assert engine.groups == [["a", "b"], ["c", "d"], ["e"]]


async def test_m3_one_bad_member_fails_alone() -> None:
    engine = Engine()
    async with writing(engine) as writer:
        results = await asyncio.gather(*(writer.write(put(key)) for key in ("a", "bad", "c")), return_exceptions=True)
    assert results[0] == "A"
    assert isinstance(results[1], PersistenceError)
    assert results[2] == "C"
    assert writer.reruns == 1


@pytest.mark.parametrize("outcome", ["unknown", "unreachable"])
async def test_a_group_that_may_have_been_written_is_not_run_again(outcome: Outcome) -> None:
    engine = Engine()
    engine.outcome = outcome
    async with writing(engine) as writer:
        results = await asyncio.gather(*(writer.write(put(key)) for key in ("a", "bad", "c")), return_exceptions=True)
    assert [getattr(result, "outcome", None) for result in results] == [outcome] * 3
    assert len(engine.groups) == 1


async def test_a_bug_in_an_engine_reaches_the_callers_and_writing_goes_on() -> None:
    async with writing(Engine()) as writer:
        with pytest.raises(PersistenceError) as caught:
            await writer.write(put("bug"))
        assert (caught.value.outcome, type(caught.value.__cause__)) == ("unknown", ZeroDivisionError)
        assert await writer.write(put("a")) == "A"


async def test_a_cancelled_caller_leaves_its_neighbours_alone() -> None:
    engine = Engine()
    engine.open.clear()
    async with writing(engine) as writer:
        tasks = [asyncio.create_task(writer.write(put(key))) for key in "abc"]
        await asyncio.sleep(0)
        tasks[1].cancel()
        engine.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert (results[0], results[2]) == ("A", "C")
    assert isinstance(results[1], asyncio.CancelledError)


async def test_the_queue_has_a_bound() -> None:
    engine = Engine()
    engine.open.clear()
    async with writing(engine, most=1, waiting_most=2) as writer:
        first = asyncio.create_task(writer.write(put("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting = [asyncio.create_task(writer.write(put(key))) for key in "bc"]
        await asyncio.sleep(0)
        with pytest.raises(PersistenceError, match="2 writes are waiting already"):
            await writer.write(put("d"))
        engine.open.set()
        assert await asyncio.gather(first, *waiting) == ["A", "B", "C"]


async def test_stopping_tells_everybody_who_waits() -> None:
    engine = Engine()
    engine.open.clear()
    writer = GroupWriter(engine.commit, most=1)
    with pytest.raises(NotStarted):
        await writer.write(put("early"))
    await writer.start()
    tasks = [asyncio.create_task(writer.write(put(key))) for key in "ab"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await writer.stop()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [getattr(result, "outcome", None) for result in results] == ["unknown", "unreachable"]
    with pytest.raises(ShuttingDown):
        await writer.write(put("late"))


async def test_a_write_that_queues_in_the_turn_in_which_the_loop_ends_is_told_so() -> None:
    """`asyncio.run` cancels all tasks at its end; a handler's `finally` may still write in that turn."""
    writer = GroupWriter(Engine().commit)
    await writer.start()
    await turns()
    (fold,) = writer.tasks._tasks
    fold.cancel()
    last = writer.submit(put("a"))
    await writer.stop()
    with pytest.raises(PersistenceError) as caught:
        await last
    assert caught.value.outcome == "unreachable"


async def test_stopping_during_a_rerun_tells_those_who_were_not_run_again() -> None:
    async def commit(writes: Sequence[Write]) -> list[Any]:
        if len(writes) == 1:
            await asyncio.Event().wait()
        raise PersistenceError(doing="write", problem="bad")

    writer = GroupWriter(commit)
    await writer.start()
    tasks = [asyncio.create_task(writer.write(put(key))) for key in "abcd"]
    while not writer.reruns:
        await asyncio.sleep(0)
    await writer.stop()
    async with asyncio.timeout(120):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [getattr(result, "outcome", None) for result in results] == ["unknown"] * 4


# An engine that has to wait for its turn


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_those_that_queue_while_an_engine_waits_for_its_turn_share_its_transaction() -> None:
    engine = Engine()
    engine.closes = True
    engine.open.clear()
    async with writing(engine, most=4) as writer:
        first = asyncio.create_task(writer.write(put("a")))
        await turns()
        late = [asyncio.create_task(writer.write(put(key))) for key in "bcdef"]
        await turns()
        engine.open.set()
        assert await asyncio.gather(first, *late) == list("ABCDEF")
    assert engine.groups == [list("abcd"), list("ef")]
    assert (writer.groups, writer.members) == (2, 6)


async def test_m3_a_bad_one_that_joined_late_fails_alone() -> None:
    engine = Engine()
    engine.closes = True
    engine.open.clear()
    async with writing(engine) as writer:
        tasks = [asyncio.create_task(writer.write(put("a")))]
        await turns()
        tasks += [asyncio.create_task(writer.write(put(key))) for key in ("bad", "c")]
        await turns()
        engine.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert (results[0], results[2]) == ("A", "C")
    assert isinstance(results[1], PersistenceError)
    assert engine.groups == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


async def test_a_turn_that_never_came_is_told_to_those_it_began_with_and_nobody_joins_it_later() -> None:
    """Whoever queued later is in the next group; a transaction that still runs may not take them with it."""
    groups: list[Group] = []
    lets = [asyncio.Event(), asyncio.Event()]

    async def commit(group: Group) -> list[Any]:
        groups.append(group)
        await lets[len(groups) - 1].wait()
        if len(groups) == 1:
            raise PersistenceError(doing="write", problem="no turn", outcome="unreachable")
        groups[0].close()  # it was given up, and has its turn after all
        group.close()
        return [write.key for write in group if isinstance(write, KvPut)]

    async with GroupWriter(commit) as writer:
        first = asyncio.create_task(writer.write(put("a")))
        await turns()
        others = [asyncio.create_task(writer.write(put("b")))]
        await turns()
        lets[0].set()
        with pytest.raises(PersistenceError, match="no turn"):
            await first
        others.append(asyncio.create_task(writer.write(put("c"))))
        await turns()
        lets[1].set()
        async with asyncio.timeout(120):
            assert await asyncio.gather(*others) == ["b", "c"]
    assert [[write.key for write in group if isinstance(write, KvPut)] for group in groups] == [["a"], ["b", "c"]]


@pytest.mark.parametrize("joins", ["before", "too late"])
async def test_stopping_tells_those_who_joined_late_too(joins: str) -> None:
    """Once they have joined, nobody knows; those who have not are in the queue, and nothing was written of them."""
    began: list[Group] = []

    async def commit(group: Group) -> list[Any]:
        began.append(group)
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_soon(group.close)  # as a thread may, which knows nothing of this
        return []

    writer = GroupWriter(commit)
    await writer.start()
    tasks = [asyncio.create_task(writer.write(put("a")))]
    await turns()
    tasks.append(asyncio.create_task(writer.write(put("b"))))
    await turns()
    if joins == "before":
        began[0].close()
    await writer.stop()
    async with asyncio.timeout(120):
        results = await asyncio.gather(*tasks, return_exceptions=True)
    outcomes = [getattr(result, "outcome", None) for result in results]
    assert outcomes == ["unknown", "unknown" if joins == "before" else "unreachable"]


class Failure:
    """A source of chaos that throws errors into the fold, one at each place where it goes on."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)

    async def point(self, _: str, /) -> None:
        """Come back at once."""

    def flip(self, _: str, /) -> bool:
        """Never the rare way."""
        return False

    def saw(self, what: str, name: str, /) -> None:
        """The reports of failures are not looked at here."""

    def failure(self, task: str, /) -> Exception | None:
        assert task == "commit groups"
        return self.errors.pop(0) if self.errors else None


@pytest.fixture
def chaos_ends() -> Iterator[None]:
    yield
    chaos.install(None)


@pytest.mark.usefixtures("chaos_ends")
@pytest.mark.parametrize("error", [OSError("x"), ValueError("x"), KeyError("x"), AssertionError(), RuntimeError("x")])
async def test_an_error_in_the_fold_leaves_nobody_waiting_and_the_next_write_is_committed(error: Exception) -> None:
    """Struck where it waits for work: what has queued is committed by the next one."""
    chaos.install(Failure(error))
    async with writing(Engine()) as writer, asyncio.timeout(120):
        await turns()
        first, second = writer.submit(put("a")), writer.submit(put("b"))
        assert (await first, await second) == ("A", "B")
        assert await writer.write_here(put("c")) == "C"


@pytest.mark.usefixtures("chaos_ends")
async def test_a_fold_that_begins_again_while_somebody_commits_in_its_own_task_waits_for_it() -> None:
    engine, failure = Engine(), Failure()
    chaos.install(failure)
    engine.open.clear()
    async with writing(engine) as writer, asyncio.timeout(120):
        await turns()
        lent = asyncio.create_task(writer.write_here(put("a")))
        await turns()
        assert writer._idle is not None
        failure.errors.append(OSError("x"))
        writer._idle.set_result(None)  # the fold goes on for no reason, and is struck there
        queued = writer.submit(put("b"))
        await eventually(lambda: writer._idle is not None and not writer._idle.done())
        assert engine.groups == [["a"]]  # never two commits at once
        engine.open.set()
        assert (await lent, await queued) == ("A", "B")


async def eventually(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


async def test_a_lone_write_may_be_committed_in_the_task_of_its_caller() -> None:
    engine, seen = Engine(), []
    commit = engine.commit

    async def watched(writes: Sequence[Write]) -> list[Any]:
        seen.append(asyncio.current_task())
        return await commit(writes)

    async with GroupWriter(watched) as writer:
        await asyncio.sleep(0)
        assert await writer.write_here(put("a")) == "A"
        assert await writer.write(put("b")) == "B"
        with pytest.raises(PersistenceError, match="bad"):
            await writer.write_here(put("bad"))
    here = asyncio.current_task()
    assert [each is here for each in seen] == [True, False, True]
    assert (writer.groups, writer.members) == (3, 2)


async def test_what_queues_while_somebody_commits_in_its_own_task_comes_after_it_in_one_commit() -> None:
    engine = Engine()
    engine.open.clear()
    async with writing(engine) as writer:
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(writer.write_here(put(key))) for key in "abc"]
        tasks.append(asyncio.create_task(writer.write(put("d"))))
        for _ in range(5):
            await asyncio.sleep(0)
        assert engine.groups == [["a"]], "one at a time"
        engine.open.set()
        assert await asyncio.gather(*tasks) == list("ABCD")
    assert engine.groups == [["a"], ["b", "c", "d"]]


async def test_one_that_is_cancelled_in_its_own_task_lets_the_others_go_on() -> None:
    engine = Engine()
    engine.open.clear()
    async with writing(engine) as writer:
        await asyncio.sleep(0)
        tasks = [asyncio.create_task(writer.write_here(put(key))) for key in "ab"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        engine.open.set()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] == "B"


async def test_a_writer_that_has_stopped_commits_in_nobodys_task() -> None:
    engine = Engine()
    async with writing(engine) as writer:
        await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await writer.write_here(put("a"))
    assert engine.groups == []


class Listener:
    """Hears what becomes of a write, without a future."""

    def __init__(self, engine: Engine, *, fails: bool = False) -> None:
        self.heard: list[tuple[object, int]] = []
        self._engine, self._fails = engine, fails

    def set_result(self, result: Any) -> None:
        self._hear(result)

    def set_exception(self, error: BaseException) -> None:
        self._hear(error)

    def _hear(self, what: object) -> None:
        self.heard.append((what, len(self._engine.groups)))
        if self._fails:
            raise ZeroDivisionError


async def test_the_next_group_is_under_way_before_the_last_one_is_told() -> None:
    """To tell them may take a while, in which the database would stand idle."""
    engine = Engine()
    async with writing(engine, most=2) as writer:
        listeners = [Listener(engine) for _ in "abcd"]
        for key, listener in zip("abcd", listeners, strict=True):
            writer.post(put(key), listener)
        await writer.write(put("e"))
    heard = [each for listener in listeners for each in listener.heard]
    assert [result for result, _ in heard] == list("ABCD")
    assert [groups > before for (_, groups), before in zip(heard, (1, 1, 2, 2), strict=True)] == [True] * 4


@pytest.mark.parametrize("key", ["a", "bad"])
async def test_one_that_fails_when_it_is_told_costs_its_neighbours_nothing(key: str) -> None:
    engine = Engine()
    engine.outcome = "unknown"
    reported: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    async with writing(engine) as writer:
        wrong, right = Listener(engine, fails=True), Listener(engine)
        writer.post(put(key), wrong)
        writer.post(put("b"), right)
        await asyncio.gather(writer.write(put("c")), return_exceptions=True)
        assert await writer.write(put("d")) == "D"
    assert len(wrong.heard) == len(right.heard) == 1
    assert [type(each["exception"]) for each in reported] == [ZeroDivisionError]


async def test_one_that_waits_without_a_future_is_told_that_the_process_stops_and_is_refused_afterwards() -> None:
    engine = Engine()
    engine.open.clear()
    writer = GroupWriter(engine.commit, most=1)
    await writer.start()
    listeners = [Listener(engine) for _ in "ab"]
    for key, listener in zip("ab", listeners, strict=True):
        writer.post(put(key), listener)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await writer.stop()
    assert [getattr(listener.heard[0][0], "outcome", None) for listener in listeners] == ["unknown", "unreachable"]
    with pytest.raises(ShuttingDown):
        writer.post(put("c"), listeners[0])


@pytest.mark.parametrize("key", ["bad", "bug"])
async def test_what_fails_before_it_waits_is_told_so_and_writing_goes_on(key: str) -> None:
    engine = Engine()
    async with writing(engine) as writer:
        with pytest.raises(PersistenceError):
            await writer.write(put(key))
        assert await writer.write(put("a")) == "A"


async def test_stopping_during_a_rerun_tells_nobody_twice() -> None:
    """Some wait without a future, and would take it for another end."""
    told: list[tuple[str, str]] = []

    class Waiter:
        def __init__(self, key: str) -> None:
            self.key = key

        def set_result(self, result: Any) -> None:
            told.append((self.key, str(result)))
            if self.key == "a":
                engine.open.clear()

        def set_exception(self, error: BaseException) -> None:
            told.append((self.key, type(error).__name__))

    engine = Engine()
    async with writing(engine) as writer:
        for key in ("a", "b", "bad"):
            writer.post(put(key), Waiter(key))
        while not told:
            await asyncio.sleep(0)
    assert told == [("a", "A"), ("b", "PersistenceError"), ("bad", "PersistenceError")]


class Told(msgspec.Struct):
    """A result that tells more than a word."""

    told: str


@pytest.mark.parametrize(
    ("results", "count"),
    [
        (["fenced"], 1),
        (["written"], 0),
        ([Told("fenced")], 1),
        ([Told("written")], 0),
        ([7], 0),
        (["fenced", "written", "fenced", 7, None], 2),
        (["fenced", Told("fenced"), Told("written"), 7], 2),
        ([], 0),
    ],
)
def test_those_that_were_fenced_are_counted_however_they_are_told(results: list[Any], count: int) -> None:
    assert fenced(results) == count


async def test_one_that_has_left_is_not_told_of_a_failure_and_its_neighbours_are() -> None:
    engine = Engine()
    engine.outcome = "unknown"
    engine.open.clear()
    async with writing(engine) as writer:
        left, stays = writer.submit(put("bad1")), writer.submit(put("bad2"))
        await turns()
        left.cancel()
        engine.open.set()
        with pytest.raises(PersistenceError):
            await stays
        assert left.cancelled()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_forked_while_a_thread_holds_the_lock_can_commit() -> None:
    """P13."""
    with Group._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if Group._lock.acquire(timeout=5) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
