"""What decides whether a persisted call is tried again: exceptions, `Snooze`, `Discard`, the rpc's own policy (T5)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from coterie import (
    ConfigurationError,
    Discard,
    Discarded,
    Entity,
    MessageDead,
    RemoteError,
    Retry,
    Snooze,
    current,
    rpc,
)
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, Overdrawn, notes, program, shared, until

if TYPE_CHECKING:
    from coterie import Cluster, MessageInfo


class Unreachable(ConnectionError):
    pass


class Rejected(Unreachable):
    pass


@dataclass
class Sent:
    mails: int = 0


class Mailbox(Entity[Sent]):
    """Mails are tried again while the server cannot be reached, and not if it has rejected them."""

    @rpc(persisted=True, retry=Retry(3, base="1ms", on=[Unreachable], unless=[Rejected]))
    async def deliver(self, raises: list[str]) -> int:
        """Raise one of these in each run, then succeed."""
        run = len(runs(self.id))
        notes.ran.append((self.id, current().attempt))
        self.state.mails += 1
        await self.cluster.send(self.cluster.ref(Account, self.id).charge(f"run {run}"))
        if run < len(raises):
            raise _raised(raises[run])
        return self.state.mails

    @rpc(persisted=True, errors=[Overdrawn], retry=Retry.never)
    async def forward(self, raises: list[str]) -> int:
        return await self.deliver(raises)

    @rpc
    async def now(self, what: str) -> None:
        raise _raised(what)


def _raised(what: str) -> Exception:
    return {
        "unreachable": Unreachable("smtp:25"),
        "rejected": Rejected("no such user"),
        "defect": ZeroDivisionError("1/0"),
        "snooze": Snooze("1ms"),
        "long snooze": Snooze("1h"),
        "discard": Discard("the customer has left"),
    }[what]


def runs(id: str) -> list[int]:
    """The attempts of a mailbox, one a run; its account notes orders."""
    return [what for who, what in notes.ran if who == id and isinstance(what, int)]


def mailer(url: str, name: str = "anna") -> Cluster:
    return program(url, name, Mailbox, Account)


async def only(cluster: Cluster) -> MessageInfo:
    (row,) = await cluster.messages.list(entity="Mailbox")
    return row


async def charged(cluster: Cluster) -> int:
    return len(await cluster.messages.list(entity="Account"))


async def test_only_what_the_rpc_s_policy_names_is_tried_again(url: str) -> None:
    async with mailer(url) as cluster:
        assert await cluster.ref(Mailbox, "a").deliver(["unreachable", "unreachable"]) == 1
        assert runs("a") == [1, 2, 3]
        for entity, raised in (("b", "rejected"), ("c", "defect")):
            with pytest.raises(MessageDead, match="dead after 1 attempts"):
                await cluster.ref(Mailbox, entity).deliver([raised])
        with pytest.raises(MessageDead, match="dead after 3 attempts"):
            await cluster.ref(Mailbox, "d").deliver(["unreachable"] * 3)
        with pytest.raises(MessageDead, match="dead after 1 attempts"):
            await cluster.ref(Mailbox, "e").forward(["unreachable"])


async def test_the_exceptions_decide_after_a_failover_too(url: str) -> None:
    """The policy is the program's, the number of the attempt is the message's."""
    async with mailer(url) as first:
        message = await first.send(first.ref(Mailbox, "a").deliver(["unreachable", "long snooze", "rejected"]))
        await until(lambda: len(runs("a")) == 2)
        while (await only(first)).attempts != 1 or (await only(first)).due_at < await _in_minutes(first):
            await asyncio.sleep(0.01)
    async with mailer(url, "bert") as second:
        await shared(second)
        await second.reset(Mailbox, "a")  # runs what waits now
        with pytest.raises(MessageDead, match="dead after 2 attempts"):
            await second.result(message, timeout=PROMPTLY_S)
        assert runs("a") == [1, 2, 2]


async def _in_minutes(cluster: Cluster) -> Any:
    from datetime import timedelta

    return await cluster._acting().storage.now() + timedelta(minutes=30)


async def test_a_call_that_is_put_off_runs_again_as_the_same_attempt_and_leaves_nothing(url: str) -> None:
    async with mailer(url) as cluster:
        raises = ["snooze", "unreachable", "snooze", "snooze", "unreachable", "snooze"]
        assert await cluster.ref(Mailbox, "a").deliver(raises) == 1, "state of a run that was put off is undone"
        assert runs("a") == [1, 1, 2, 2, 2, 3, 3]
        row = await only(cluster)
        assert (row.status, row.attempts, [each.number for each in row.errors]) == ("done", 2, [1, 2])
        assert await charged(cluster) == 1, "messages of a run that was put off are not sent"


async def test_others_of_the_entity_run_while_a_call_is_put_off(url: str) -> None:
    async with mailer(url) as cluster:
        put_off = await cluster.send(cluster.ref(Mailbox, "a").deliver(["long snooze"]))
        await until(lambda: notes.ran)
        assert await cluster.ref(Mailbox, "a").deliver([]) == 1
        row = await cluster.messages.show(put_off)
        assert (row.status, row.attempts, row.errors) == ("pending", 0, ())


async def test_a_discarded_call_ends_with_an_error_and_is_neither_retried_nor_dead(url: str) -> None:
    async with mailer(url) as cluster:
        message = await cluster.send(cluster.ref(Mailbox, "a").deliver(["unreachable", "discard"]))
        with pytest.raises(Discarded, match="was discarded: the customer has left") as caught:
            await cluster.result(message, timeout=PROMPTLY_S)
        assert (caught.value.message_id, caught.value.target) == (message, "Mailbox/a.deliver")
        row = await only(cluster)
        assert (row.status, row.attempts, len(runs("a"))) == ("done", 1, 2)
        assert row.failure == caught.value.message
        assert await charged(cluster) == 0
        assert await cluster.ref(Mailbox, "a").deliver([]) == 1, "the state is as before"
    async with mailer(url, "client").connect() as client:
        with pytest.raises(Discarded, match="the customer has left"):
            await client.result(message)


def test_a_volatile_rpc_has_no_policy() -> None:
    class Idle(Entity):
        @rpc(retry=Retry.never)
        async def rest(self) -> None: ...

    with pytest.raises(ConfigurationError, match=r"Idle\.rest has retry and is not persisted"):
        program("sqlite://", "anna", Idle)


async def test_a_volatile_call_is_neither_put_off_nor_discarded(url: str) -> None:
    async with mailer(url) as cluster:
        for what, said in (("snooze", "put off for 0.001s"), ("discard", "the customer has left")):
            with pytest.raises(RemoteError, match=f"{said}.*only the handler of a persisted call"):
                await cluster.ref(Mailbox, "a").now(what)
