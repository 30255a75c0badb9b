"""Ends of handlers: durable before anybody hears of them, and nothing of them where they are not (B3, M3, M6, M7)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from coterie import Entity, RemoteError, Retry, RunnerUnavailable, rpc
from coterie.entities.calls.wire import FAILED, LOOK
from coterie.entities.host.work import handling
from coterie.entities.persisted.commit import effects_of, has_ended
from tests.unit.entities.fake_storage import StoredLocalHost, refused, stored, unknown, unreachable

if TYPE_CHECKING:
    from coterie.storage.contracts.messages import Message

pytestmark = pytest.mark.simulated(seeds=2)


class Overdrawn(Exception):
    """Declared."""


@dataclass
class Balance:
    cents: int = 0


class Purse(Entity[Balance]):
    """Its handlers leave something of everything behind."""

    ran: ClassVar[list[int]] = []
    sends: ClassVar[list[Message]] = []
    lives: ClassVar[list[str]] = []
    blocks: ClassVar[list[Any]] = []

    async def on_activate(self) -> None:
        self.lives.append(self.id)

    @rpc(persisted=True, errors=[Overdrawn])
    async def put(self, cents: int, how: str = "well") -> int:
        self.ran.append(cents)
        self.state.cents += cents
        if self.id == "a":
            work = handling.get()
            assert work is not None
            effects_of(work).sends.extend(self.sends)
        if how == "declared":
            raise Overdrawn(cents)
        if how == "crash":
            raise ValueError(cents)
        return self.state.cents

    @rpc
    async def put_quickly(self, cents: int) -> int:
        self.ran.append(cents)
        self.state.cents += cents
        return self.state.cents

    @rpc(errors=[Overdrawn])
    async def take_quickly(self, cents: int) -> int:
        self.state.cents -= cents
        raise Overdrawn(cents)

    @rpc(persisted=True)
    async def close(self) -> int:
        self.state.cents += 1
        await self.forget()
        return 7

    @rpc(persisted=True)
    async def record_and_hide(self) -> int:
        """Leaves what ends its transaction to a task that outlives it."""
        block = self.transaction()
        await block.__aenter__()
        self.blocks.append(block)
        return 1

    @rpc(persisted=True, errors=[Overdrawn])
    async def record(self, how: str = "well") -> int:
        self.state.cents += 1
        async with self.transaction():
            pass
        if how == "declared":
            raise Overdrawn
        return self.state.cents


@pytest.fixture(autouse=True)
def fresh() -> None:
    Purse.ran, Purse.sends, Purse.lives = [], [], []


QUICK = (Purse, {"retry": Retry(attempts=2, base="100ms")})


def state(ground: StoredLocalHost) -> Any:
    value, version = ground.messages.states.get("entity-state:Purse/a", (None, 0))
    return None if value is None else (value[-1], version)


async def passed(seconds: float = 0.05) -> None:
    await asyncio.sleep(seconds)


async def test_b3_reply_state_and_sends_are_one_commit_and_handed_over_after_it() -> None:
    async with stored(QUICK) as ground:
        Purse.sends = [ground.message("b", "put", 9)]
        gate = ground.messages.hold("commit")
        sent = ground.send("a", "put", 5)
        await passed()
        assert (ground.told[sent], ground.brought) == ([], [])
        gate.set()
        await passed()
        assert ground.told[sent] == [b"\x05"]
        assert ground.brought == Purse.sends
        (write,) = ground.messages.asked["commit"]
        assert (write.message, write.reply, write.sends) == (sent, b"\x05", tuple(Purse.sends))
        assert state(ground) == (5, 1)


@pytest.mark.parametrize("trouble", [unreachable, unknown], ids=["unreachable", "unknown"])
async def test_a_database_that_is_away_delays_a_reply_and_nothing_more(trouble: Exception) -> None:
    """Asked again with the same write until it is known; the handler does not run again."""
    async with stored(QUICK) as ground:
        ground.messages.failing["commit"] = [trouble] * 4
        sent, behind = ground.send("a", "put", 5), ground.send("a", "put", 1)
        await passed(5)
        assert (ground.told[sent], ground.told[behind]) == ([b"\x05"], [b"\x06"])
        assert Purse.ran == [5, 1]
        first = ground.messages.asked["commit"][:5]
        assert first == [first[0]] * 5
        assert ground.messages.asked["setback"] == []


@pytest.mark.parametrize("verdict", ["fenced", "gone"])
async def test_what_was_not_written_in_our_name_is_not_said_and_the_instance_goes(verdict: str) -> None:
    async with stored(QUICK) as ground:
        Purse.sends = [ground.message("b", "put", 9)]
        ground.messages.tells = [verdict]
        sent = ground.send("a", "put", 5)
        await passed(0.01)
        assert ground.told[sent] == [LOOK]
        assert ground.brought == []
        assert ground.messages.asked["setback"] == [], "nobody's attempt has failed"
        assert await ground.call("a", "put_quickly", 1) in (1, 6)
        assert len(Purse.lives) >= 2, "it was loaded anew"


@pytest.mark.parametrize(
    ("verdict", "error"),
    [("stale", "another version"), ("taken", 'KeyConflict: key "k" of one'), (refused, "does not like it")],
    ids=["stale", "taken", "refused"],
)
async def test_what_the_database_refuses_is_a_failed_attempt(verdict: Any, error: str) -> None:
    """With its error; the next attempt starts from what is stored."""
    async with stored(QUICK) as ground:
        Purse.sends = [ground.message("b", "put", 9, key="s:k")]
        if isinstance(verdict, str):
            ground.messages.tells = [verdict]
        else:
            ground.messages.failing["commit"] = [verdict]
        sent = ground.send("a", "put", 5)
        await passed(1)
        assert ground.told[sent] == [b"\x05"]
        assert Purse.ran[:2] == [5, 5]
        assert error in ground.messages.rows[sent].errors[0].error
        assert len(ground.brought) == 1


async def test_m7_a_declared_error_is_committed_alone_and_takes_back_the_rest() -> None:
    async with stored(QUICK) as ground:
        Purse.sends = [ground.message("b", "put", 9)]
        sent = ground.send("a", "put", 5, "declared")
        await passed()
        (reply,) = ground.told[sent]
        assert reply.startswith(FAILED)
        (write,) = ground.messages.asked["commit"]
        assert (write.state, write.sends) == (None, ())
        assert ground.brought == []
        assert await ground.call("a", "put_quickly", 1) == 1
        assert len(Purse.lives) == 1


async def test_a_defect_commits_nothing_and_is_set_back() -> None:
    async with stored(QUICK) as ground:
        Purse.sends = [ground.message("b", "put", 9)]
        sent = ground.send("a", "put", 5, "crash")
        await passed(1)
        assert ground.status(sent) == ["dead"]
        assert ground.messages.asked["commit"] == []
        assert (ground.brought, state(ground)) == ([], None)


async def test_a_volatile_call_that_changed_the_state_is_answered_after_the_commit() -> None:
    async with stored(QUICK) as ground:
        gate = ground.messages.hold("commit")
        asked, behind = ground.ask("a", "put_quickly", 5), ground.ask("a", "put_quickly", 0)
        await passed()
        assert (asked.answers, behind.answers) == (0, 0)
        gate.set()
        assert (await asked.future, await behind.future) == (5, 5)
        (write,) = ground.messages.asked["commit"]
        assert write.message is None


async def test_what_a_handler_left_running_can_add_nothing_while_its_end_is_committed() -> None:
    """D1: it would never be stored."""
    async with stored(QUICK) as ground:
        gate = ground.messages.hold("commit")
        asked = ground.ask("a", "put_quickly", 5)
        await passed()
        assert asked.answers == 0
        assert has_ended(asked)
        gate.set()
        await asked.future


async def test_a_volatile_call_that_lost_its_shard_before_the_commit_may_have_run() -> None:
    """D8: the caller is told so, and does not repeat it unknowingly."""
    async with stored(QUICK) as ground:
        ground.messages.tells = ["fenced"]
        with pytest.raises(RunnerUnavailable, match="lost the shard before the reply was saved"):
            await ground.call("a", "put_quickly", 5)
        ground.messages.failing["commit"] = [refused]
        with pytest.raises(RemoteError, match="does not like it"):
            await ground.call("a", "put_quickly", 5)
        assert await ground.call("a", "put_quickly", 1) == 1


async def test_f4_whoever_loses_the_seat_stops_insisting() -> None:
    async with stored(QUICK) as ground:
        ground.messages.failing["commit"] = [unreachable] * 10_000
        sent = ground.send("a", "put", 5)
        await passed(1)
        assert ground.told[sent] == []
        ground.abandon()
        await passed(2)
        asked = len(ground.messages.asked["commit"])
        assert ground.told[sent] == [LOOK]
        await passed(5)
        assert len(ground.messages.asked["commit"]) == asked


async def test_what_is_too_large_is_a_failed_attempt() -> None:
    """R1: neither replies nor states grow without bound."""
    async with stored((Vast, {"retry": Retry(attempts=1)}), frame_limit="64KiB") as ground:
        reply, vast = ground.send("a", "reply", 70_000), ground.send("b", "grow", 70_000)
        fits = ground.send("c", "grow", 60_000)
        await passed(1)
        assert ground.status(reply, vast, fits) == ["dead", "dead", "done"]
        assert "bytes, more than the 65,536 that are allowed" in ground.messages.rows[reply].errors[0].error
        assert "the state of Vast/b: 70,0" in ground.messages.rows[vast].errors[0].error


async def test_a_volatile_call_may_reply_what_it_likes_and_leaves_no_state_that_is_too_large() -> None:
    """R1: its reply is not stored."""
    async with stored(Vast, frame_limit="64KiB") as ground:
        assert await ground.call("a", "reply_quickly", 70_000) == "x" * 70_000
        with pytest.raises(RemoteError, match="the state of Vast/a: 70,0"):
            await ground.call("a", "grow_quickly", 70_000)
        assert await ground.call("a", "grow_quickly", 60_000) == 1, "nothing is left of the one before"


class Vast(Entity[list[str]]):
    @rpc(persisted=True)
    async def reply(self, size: int) -> str:
        return "x" * size

    @rpc(persisted=True)
    async def grow(self, size: int) -> None:
        self.state.append("x" * size)

    @rpc
    async def reply_quickly(self, size: int) -> str:
        return "x" * size

    @rpc
    async def grow_quickly(self, size: int) -> int:
        self.state.append("x" * size)
        return len(self.state)


async def test_m7_a_declared_error_of_a_volatile_call_takes_back_the_state_and_commits_nothing() -> None:
    async with stored(QUICK) as ground:
        await ground.call("a", "put_quickly", 5)
        commits = len(ground.messages.asked["commit"])
        with pytest.raises(Overdrawn):
            await ground.call("a", "take_quickly", 3)
        assert len(ground.messages.asked["commit"]) == commits
        assert await ground.call("a", "put_quickly", 1) == 6, "its place is free, and nothing was taken"


async def test_a_state_that_is_forgotten_is_removed_with_the_reply_and_the_instance_goes() -> None:
    async with stored(QUICK) as ground:
        ground.send("a", "put", 5)
        await passed()
        sent = ground.send("a", "close")
        await passed()
        assert ground.told[sent] == [b"\x07"]
        change = ground.messages.asked["commit"][-1].state
        assert (change.value, change.version) == (None, 1)
        assert await ground.call("a", "put_quickly", 1) == 1, "it begins anew"
        assert Purse.lives == ["a", "a"]


async def test_what_is_refused_after_it_was_unknown_is_a_failed_attempt() -> None:
    async with stored(QUICK) as ground:
        ground.messages.failing["commit"] = [unknown, unknown, refused]
        sent = ground.send("a", "put", 5)
        await passed(5)
        assert ground.told[sent] == [b"\x05"]
        assert Purse.ran == [5, 5]
        assert len(ground.messages.asked["setback"]) == 1
        assert state(ground) == (5, 1)


async def test_a_bug_of_an_engine_ends_the_instance_and_the_message_is_found_again() -> None:
    async with stored(QUICK) as ground:
        ground.messages.failing["commit"] = [KeyError("x")]
        with pytest.raises(RunnerUnavailable, match="could not be saved: KeyError"):
            await ground.call("a", "put_quickly", 5)
        assert await ground.call("a", "put_quickly", 1) == 1
        assert Purse.lives == ["a", "a"], "what it had in memory was not what is stored"


# Transactions of users


async def test_one_that_ends_inside_of_its_transaction_is_a_failed_attempt() -> None:
    async with stored((Purse, {"retry": Retry(attempts=1)})) as ground:
        sent = ground.send("a", "record_and_hide")
        await passed(1)
        assert ground.status(sent) == ["dead"]
        assert "has ended inside of its transaction" in ground.messages.rows[sent].errors[0].error
        assert [each.ended for each in ground.storage.transactions] == ["rolled back"]
        assert ground.messages.asked["commit"] == []


async def test_a_transaction_is_committed_with_the_rest_and_rolled_back_with_an_error() -> None:
    async with stored(QUICK) as ground:
        sent, failed = ground.send("a", "record"), ground.send("a", "record", "declared")
        await passed()
        assert [each.ended for each in ground.storage.transactions] == ["committed", "rolled back"]
        assert ground.told[sent] == [b"\x01"]
        assert ground.told[failed][0].startswith(FAILED)
        assert state(ground) == (1, 1)


async def test_gap_16_a_transaction_whose_commit_fails_is_a_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stored(QUICK) as ground:
        made = ground.storage.transaction

        def failing(**given: Any) -> Any:
            transaction = made(**given)
            transaction.says = unknown if len(ground.storage.transactions) == 1 else None
            return transaction

        monkeypatch.setattr(ground.storage, "transaction", failing)
        sent = ground.send("a", "record")
        await passed(1)
        assert ground.told[sent] == [b"\x01"]
        assert [each.ended for each in ground.storage.transactions] == ["rolled back", "committed"]
        assert len(ground.messages.rows[sent].errors) == 1
