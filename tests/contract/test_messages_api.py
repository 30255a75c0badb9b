"""`cluster.messages`: stored calls as people see them, run again and cleared away (K6) [m15, m17], on every storage."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import coterie
from coterie import Cluster, ConfigurationError, MessageExpired, MessageInfo
from coterie.entities.calls.wire import FAILED, pack_failure
from coterie.entities.persisted.api import Messages
from coterie.kernel.serialization.codec import PLAIN
from coterie.storage.contracts.messages import Commit, Setback
from tests.contract.messages import S1, A, id_of, joined, message, take

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.storage.interface import Claim, Storage
    from tests.contract.conftest import Passing


class Overdrawn(Exception):
    """Declared."""


@pytest.fixture
async def claim(storage: Storage) -> AsyncIterator[Claim]:
    async with joined(storage, A) as session:
        yield await take(session, A)


@pytest.fixture
def mail(storage: Storage) -> Messages:
    return Messages(lambda: storage.messages)


async def send(storage: Storage, *numbers: int, **more: Any) -> None:
    for number in numbers:
        await storage.messages.insert(message(number, **{"payload": PLAIN.encode({"n": number}), **more}))


async def end(storage: Storage, claim: Claim, *numbers: int, reply: bytes | None = None) -> None:
    body = PLAIN.encode("done") if reply is None else reply
    for number in numbers:
        assert await storage.messages.commit(Commit(claim, id_of(number), body)) == "written"


async def kill(storage: Storage, claim: Claim, *numbers: int) -> None:
    for number in numbers:
        setback = Setback(claim, id_of(number), 1, "KeyError: 'x'\n  File …", None)
        assert await storage.messages.setback(setback) == "written"


async def numbers(found: Any) -> list[int]:
    return [int(one.id, 16) for one in await found]


async def test_a_message_that_waits_is_shown_with_its_arguments_and_its_key(storage: Storage, mail: Messages) -> None:
    payload = PLAIN.encode({"order_id": "7", "cents": 500})
    await send(storage, 1, payload=payload, key=r"s:7|s:a\|b", digest=b"d", trace_id="4bf9", delay_s=60)
    shown = await mail.show(id_of(1))
    assert isinstance(shown, MessageInfo)
    assert (shown.id, shown.entity, shown.method, shown.status) == (id_of(1), "Account/alice", "add", "pending")
    assert (shown.payload, shown.key, shown.trace_id) == ({"order_id": "7", "cents": 500}, "7, a|b", "4bf9")
    assert (shown.attempts, shown.errors, shown.reply, shown.failure, shown.completed_at) == (0, (), None, None, None)
    assert shown.due_at - shown.sent_at == timedelta(seconds=60)
    assert shown.shard == S1.partition(":")[2]


async def test_a_message_that_is_done_is_shown_with_its_reply(storage: Storage, mail: Messages, claim: Claim) -> None:
    await send(storage, 1, 2, 3)
    await end(storage, claim, 1, reply=PLAIN.encode({"cents": 5}))
    await end(storage, claim, 2, reply=FAILED + pack_failure(Overdrawn("alice", 5), {"Overdrawn": Overdrawn}))
    await end(storage, claim, 3, reply=PLAIN.encode(None))
    done, failed, nothing = [await mail.show(id_of(number)) for number in (1, 2, 3)]
    assert (done.status, done.reply, done.failure) == ("done", {"cents": 5}, None)
    assert (failed.status, failed.reply, failed.failure) == ("done", None, "Overdrawn: ('alice', 5)")
    assert (nothing.status, nothing.reply, nothing.failure) == ("done", None, None)
    assert done.completed_at is not None
    assert done.completed_at >= done.sent_at


async def test_what_cannot_be_read_is_shown_as_bytes(storage: Storage, mail: Messages) -> None:
    """Of another version, or broken: looking at it must work all the same."""
    await send(storage, 1, payload=b"\xc1junk")
    assert (await mail.show(id_of(1))).payload == b"\xc1junk"


async def test_a_dead_message_tells_each_attempt_and_runs_again_when_it_is_told_to(
    storage: Storage, claim: Claim
) -> None:
    """m15: its owner is told to look."""
    told: list[str] = []
    mail = Messages(lambda: storage.messages, hint=told.append)
    await send(storage, 1, 2)
    await storage.messages.setback(Setback(claim, id_of(1), 1, "ValueError: first", 0.0))
    await storage.messages.setback(Setback(claim, id_of(1), 2, "ValueError: second", None))
    shown = await mail.show(id_of(1))
    assert (shown.status, shown.attempts) == ("dead", 2)
    assert [(one.number, one.error) for one in shown.errors] == [(1, "ValueError: first"), (2, "ValueError: second")]
    assert shown.errors[0].at <= shown.errors[1].at
    assert await mail.retry(id_of(2)) is False, "it waits already"
    assert told == []
    assert await mail.retry(id_of(1)) is True
    assert told == [S1]
    again = await mail.show(id_of(1))
    assert (again.status, again.attempts, again.completed_at) == ("pending", 0, None)
    await end(storage, claim, 1)
    assert await mail.retry(id_of(1)) is False, "it is done"
    assert told == [S1]


async def test_a_message_that_is_not_there_is_a_typed_error(mail: Messages) -> None:
    """m17: never a wait, never None."""
    for attempt in (mail.show(id_of(9)), mail.retry(id_of(9))):
        with pytest.raises(MessageExpired, match="retention has passed, or it never existed"):
            await attempt


async def test_lists_are_in_order_and_by_status_entity_and_age(
    storage: Storage, mail: Messages, claim: Claim, passing: Passing
) -> None:
    await send(storage, 1, 2, 3)
    await send(storage, 4, entity="bob")
    await send(storage, 5, entity_type="Other")
    await end(storage, claim, 2)
    await kill(storage, claim, 3)
    assert await numbers(mail.list()) == [1, 2, 3, 4, 5]
    assert await numbers(mail.list(status="pending")) == [1, 4, 5]
    assert await numbers(mail.list(status="dead")) == [3]
    assert await numbers(mail.list(entity="Account")) == [1, 2, 3, 4]
    assert await numbers(mail.list(entity="Account/alice")) == [1, 2, 3]
    assert await numbers(mail.list(entity="Account/bob", status="done")) == []
    assert await numbers(mail.list(older_than="1h")) == []
    await passing(0.05)
    await send(storage, 6)
    assert await numbers(mail.list(older_than="40ms", status="pending")) == [1, 4, 5]
    assert await numbers(mail.list(limit=2)) == [1, 2]
    assert await numbers(mail.list(limit=2, after=id_of(2))) == [3, 4]


async def test_a_long_list_is_read_in_pages(storage: Storage, mail: Messages) -> None:
    await send(storage, *range(1, 451))
    assert await numbers(mail.list(limit=1000)) == list(range(1, 451))
    assert await numbers(mail.list(limit=420)) == list(range(1, 421))


async def test_a_purge_deletes_what_has_ended_in_batches_and_tells_how_far_it_is(
    storage: Storage, mail: Messages, claim: Claim, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.entities.persisted.api._BATCH", 3)
    await send(storage, *range(1, 11))
    await end(storage, claim, *range(1, 9))
    await kill(storage, claim, 9)
    told: list[int] = []
    assert await mail.purge(status="done", older_than="1h") == 0
    assert await mail.purge(status="done", entity="Account/bob") == 0
    assert await mail.purge(status="done", progress=told.append) == 8
    assert told == [3, 6, 8]
    assert await numbers(mail.list()) == [9, 10]
    assert await mail.purge(status="dead", entity="Account") == 1
    assert await numbers(mail.list()) == [10], "what waits is never deleted"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"status": "waiting"}, "status is 'waiting', and there are pending, done, dead"),
        ({"entity": Overdrawn}, 'write its name, as in "Account" or "Account/alice"'),
        ({"entity": "Account/"}, "an entity id cannot be empty"),
        ({"older_than": "30"}, 'older_than is "30": a duration needs a unit'),
    ],
)
async def test_what_names_no_messages_is_refused(mail: Messages, wrong: dict[str, Any], says: str) -> None:
    with pytest.raises((ValueError, TypeError, ConfigurationError), match=says):
        await mail.list(**wrong)


async def test_messages_that_wait_cannot_be_purged(mail: Messages) -> None:
    status: Any = "pending"
    with pytest.raises(ValueError, match='only "done" and "dead" messages can be purged'):
        await mail.purge(status=status)


async def test_every_cluster_has_them(url: str) -> None:
    assert coterie.Messages is Messages
    cluster = Cluster(url)
    async with cluster.connect():
        assert await cluster.messages.list() == []
