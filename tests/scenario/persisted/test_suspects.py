"""Messages that may have killed the holder before: one at a time, but never waiting for each other [C5]."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from coterie import Entity, Retry, rpc
from coterie.entities.persisted import suspects
from tests.scenario.persisted.entity_program import PROMPTLY_S, Account, counts, evict, notes, program, shared, until

if TYPE_CHECKING:
    import pytest


class Patron(Entity):
    """Waits for an account."""

    @rpc(persisted=True)
    async def ask(self) -> int:
        notes.ran.append((self.id, "asks"))
        return await self.cluster.ref(Account, f"account of {self.id}", timeout="1h").wait(7)


async def stays_away(reason: str) -> None:
    """Evicted, a runner waits for something that never comes."""
    await asyncio.Event().wait()


async def test_c5_a_suspect_that_awaits_another_one_does_not_keep_it_from_running(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each such pair would hold up all others until the first one's time is over."""
    monkeypatch.setattr(suspects, "_ALONE_S", 3600.0)
    anna, bert, client = (program(url, name, Patron, Account) for name in ("anna", "bert", "client"))
    async with client.connect(), anna:
        await shared(anna)
        monkeypatch.setattr(anna._acting(), "_come_back", stays_away)  # or it takes seats back, in good order
        calls = [asyncio.create_task(client.ref(Patron, who, timeout=PROMPTLY_S).ask()) for who in "ab"]
        await until(lambda: len(notes.ran) == 4)  # both patrons and both accounts are at work
        async with AsyncExitStack() as stack:
            bert_starts = asyncio.create_task(stack.enter_async_context(bert))
            await evict(url, anna)
            for who in "ab":
                notes.gates[f"account of {who}"].set()
            await bert_starts
            assert await asyncio.gather(*calls) == [7, 7]
            assert await counts(client) == (0, 4, 0)


async def test_c5_what_had_not_begun_when_its_runner_was_lost_is_run_though_it_has_one_attempt_only(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss is no attempt, and only what was begun alone counts one."""
    anna, bert = (program(url, name, retry=Retry.never, loss_limit=1) for name in ("anna", "bert"))
    client = program(url, "client")
    async with client.connect(), anna:
        await shared(anna)
        monkeypatch.setattr(anna._acting(), "_come_back", stays_away)
        account = client.ref(Account, "a", timeout=PROMPTLY_S)
        lingers = asyncio.create_task(account.linger())  # not stored: it keeps the entity busy, and is gone with anna
        await until(lambda: notes.ran == [("a", "linger")])
        sent = await client.send(account.charge("order"))
        async with AsyncExitStack() as stack:
            bert_starts = asyncio.create_task(stack.enter_async_context(bert))
            await evict(url, anna)
            await bert_starts
            assert await client.result(sent, timeout=PROMPTLY_S) == 1
            assert await counts(client) == (0, 1, 0)
            await asyncio.gather(lingers, return_exceptions=True)
