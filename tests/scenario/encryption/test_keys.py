"""O6: rows whose key is missing, keys that do not fit what is stored, and ciphertexts that somebody has moved."""

from __future__ import annotations

import asyncio
import itertools
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, ConfigurationError, Encrypted, UnreadablePayload
from coterie.storage import unreadable_rows
from coterie.storage.contracts.payloads import TABLES, PayloadChange
from coterie.storage.engines import require_keys
from tests.scenario.encryption.payload_program import FAST, KEYS, MARK, PayloadProgram, encrypted, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.storage.contracts.payloads import PayloadTable
    from coterie.storage.interface import Storage

MESSAGES, KV = (next(each for each in TABLES if each.name == name) for name in ("messages", "kv"))


@pytest.fixture(autouse=True)
def _forgets() -> Iterator[None]:
    unreadable_rows._known.clear()
    yield
    unreadable_rows._known.clear()


@pytest.mark.parametrize(
    ("payloads", "problem"),
    [
        (None, "encrypted with key 'k1', which this process does not have"),
        (encrypted("k2"), "encrypted with key 'k1', which this process does not have"),
        (Encrypted(keys={"k1": KEYS["k2"]}, current="k1"), "the key 'k1' of payload_keys is another one"),
    ],
    ids=["none", "another", "of the same id"],
)
async def test_a_process_with_other_keys_is_refused(url: str, payloads: Encrypted | None, problem: str) -> None:
    async with Cluster(url, payloads=encrypted("k1"), http_listen="off").connect():
        pass
    for start in (Cluster.connect, Cluster.__aenter__):
        cluster = Cluster(url, payloads=payloads, http_listen="off")
        with pytest.raises(ConfigurationError, match=problem):
            await _enter(start(cluster))
    async with Cluster(url, payloads=encrypted("k1"), http_listen="off").connect():
        pass  # what was refused has left nothing that those with the right key would need


async def test_a_runner_does_not_join_one_that_could_not_read_what_it_stores(url: str) -> None:
    """Whoever comes second: with a key that the others do not have, or with keys where the others store in plain."""
    async with PayloadProgram(url, None).cluster as plain:
        await plain.ready()
        with pytest.raises(ConfigurationError, match="encrypts payloads with key 'k1', which the other does not have"):
            await PayloadProgram(url, encrypted("k1", plain=True)).cluster.start()
    async with PayloadProgram(url, None).cluster as again:
        await again.ready()


async def test_runners_live_together_while_a_key_is_given_to_all_and_then_used(url: str) -> None:
    """The order of docs/encryption.md: each step beside the one before."""
    steps = [
        None,
        encrypted(None, "k1", plain=True),
        encrypted("k1", plain=True),
        encrypted("k1", "k2"),
        encrypted("k2", "k1"),
    ]
    for before, after in itertools.pairwise(steps):
        async with Cluster(url, payloads=before, **FAST) as one, Cluster(url, payloads=after, **FAST) as two:
            for writer, reader in ((one, two), (two, one)):
                await writer.kv.set("greeting", f"{MARK} with {after}")
                assert await reader.kv.get("greeting") == f"{MARK} with {after}"


async def test_a_message_of_an_unknown_key_waits_is_reported_and_its_neighbours_go_on(url: str) -> None:
    other = PayloadProgram(url, encrypted("k2"))
    async with other.cluster.connect():
        waiting = await other.cluster.send(other.cluster.ref(other.account, "a").put("o2", MARK))
        run = await other.cluster.start_workflow(other.reverse, MARK, id="waits")
        await other.cluster._acting().storage.payloads.remove_key("k2")  # so that the next process starts
    program = PayloadProgram(url, encrypted("k1"))
    async with program.cluster as cluster:
        await cluster.ready()
        assert await cluster.ref(program.account, "a").put("o1", MARK) == MARK + "o1"
        started = await cluster.start_workflow(program.reverse, MARK, id="goes on")
        assert await started.result(timeout="120s") == MARK
        for table in ("messages", "units"):
            await until(partial(_is_reported, table))
        assert any("'k2'" in str(row) for row in unreadable_rows.found())
        health = await cluster.health()
        assert any("'k2'" in str(reason) for reason in health.reasons), health.reasons
        with pytest.raises(UnreadablePayload, match="'k2'"):
            await cluster.result(waiting, timeout="120s")
    both = PayloadProgram(url, encrypted("k1", "k2"))
    async with both.cluster as cluster:
        assert await cluster.result(waiting, timeout="120s") == MARK + "o2"
        assert await both.cluster.workflow_handle(both.reverse, run.id).result(timeout="120s") == MARK


async def test_one_unreadable_reply_does_not_hold_up_the_others(url: str) -> None:
    program = PayloadProgram(url, encrypted("k1"))
    async with program.cluster as cluster:
        await cluster.ready()
        account = cluster.ref(program.account, "a")
        bad, good = [await cluster.send(account.put(order, MARK)) for order in ("o1", "o2")]
        for each in (bad, good):
            assert await cluster.result(each) == MARK + ("o1" if each == bad else "o2")
        await _move(cluster._acting().storage, MESSAGES, "reply", (str(good),), (str(bad),))
        told = await asyncio.gather(cluster.result(bad), cluster.result(good), return_exceptions=True)
        assert isinstance(told[0], UnreadablePayload)
        assert told[1] == MARK + "o2"


async def test_a_value_that_was_moved_to_another_row_is_refused(url: str) -> None:
    async with Cluster(url, payloads=encrypted("k1"), http_listen="off").connect() as cluster:
        for key in ("mine", "yours"):
            await cluster.kv.set(key, f"{MARK} of {key}")
        storage = cluster._acting().storage
        await _move(storage, KV, "value", ("mine",), ("yours",))
        with pytest.raises(UnreadablePayload, match="changed or moved"):
            await cluster.kv.get("yours")
        assert await cluster.kv.get("mine") == f"{MARK} of mine"


async def test_a_value_that_changed_since_it_was_read_is_not_replaced(url: str) -> None:
    """What a rotation has read and somebody has written since stays as it was written."""
    async with Cluster(url, payloads=encrypted("k1"), http_listen="off").connect() as cluster:
        await cluster.kv.set("mine", "first")
        storage = cluster._acting().storage
        (row,) = await _page(storage, KV)
        await cluster.kv.set("mine", "second")
        change = PayloadChange(row.key, row.values, row.values)
        assert await storage.payloads.rewrite(KV, [change]) == 0
        assert await cluster.kv.get("mine") == "second"


async def test_a_key_is_known_in_its_own_cluster_only(url: str) -> None:
    async with Cluster(url, payloads=encrypted("k1"), http_listen="off").connect() as cluster:
        await cluster.kv.set("mine", MARK)
        async with Cluster(url, name="other", http_listen="off").connect() as other:
            storage = other._acting().storage
            await require_keys(storage)
            assert await storage.payloads.keys() == {}
            assert await _page(storage, KV) == []


async def _enter(context: Any) -> None:
    if hasattr(context, "__aenter__"):
        async with context:
            pass
    else:
        await context


async def _is_reported(table: str) -> bool:
    return any(row.table == table for row in unreadable_rows.found())


async def _page(storage: Storage, table: PayloadTable) -> list[Any]:
    return list(
        await storage.payloads.page(table, after=None, most=100, head=b"\xc1none", text_head="\x01none", cut=2**31 - 1)
    )


async def _move(
    storage: Storage, table: PayloadTable, column: str, source: tuple[Any, ...], target: tuple[Any, ...]
) -> None:
    """Put the value of a row into another one, as somebody would who can write to the database."""
    rows = {row.key: dict(zip(table.values, row.values, strict=True)) for row in await _page(storage, table)}
    was = tuple(rows[target][name] if name == column else None for name in table.values)
    new = tuple(rows[source][name] if name == column else None for name in table.values)
    assert await storage.payloads.rewrite(table, [PayloadChange(target, was, new)]) == 1
