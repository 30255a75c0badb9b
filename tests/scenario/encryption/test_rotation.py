"""O6: the key is changed while the cluster works, and no call fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from coterie.storage.contracts.payloads import TABLES
from coterie.storage.encryption.rotation import Rotation, RotationProgress, key_uses
from tests.scenario.encryption.payload_program import MARK, PayloadProgram, encrypted

if TYPE_CHECKING:
    from coterie.storage.contracts.payloads import PayloadStore
    from coterie.storage.encryption.cipher import Keyring

FILLED, CALLERS = 150, 8


async def test_the_key_is_changed_under_load_and_no_call_fails(url: str) -> None:
    before = PayloadProgram(url, encrypted("k1", "k2"))
    async with before.cluster:
        await before.use_everything()
        many = before.cluster.ref(before.account, "many")
        await before.cluster.send_many(many.put(f"filled-{number}", MARK) for number in range(FILLED))
        assert await _keys(before) == {"k1"}
    after = PayloadProgram(url, encrypted("k2", "k1"))
    async with after.cluster:
        await after.cluster.ready()
        rotated = asyncio.Event()
        callers = [asyncio.create_task(_call(after, caller, rotated)) for caller in range(CALLERS)]
        done = await _rotate(after)
        rotated.set()
        assert all(await asyncio.gather(*callers))
        assert (done.changed > FILLED, done.left, done.unreadable) == (True, 0, Counter())
        assert await _keys(after) == {"k2"}
        await after.read_everything()
        assert await Rotation(*_parts(after)).forget_unused_keys() == ["k1"]
    async with PayloadProgram(url, encrypted("k2")).cluster:
        pass


async def test_what_was_stored_before_there_were_keys_is_encrypted_and_read(url: str) -> None:
    plain = PayloadProgram(url, None)
    async with plain.cluster:
        await plain.use_everything()
    between = PayloadProgram(url, encrypted("k1", plain=True))
    async with between.cluster:
        await between.cluster.ready()
        await between.read_everything()
        assert (await _rotate(between)).left == 0
        assert await _keys(between) == {"k1"}
    strict = PayloadProgram(url, encrypted("k1"))
    async with strict.cluster:
        await strict.cluster.ready()
        await strict.read_everything()


async def test_it_is_switched_off_again(url: str) -> None:
    coded = PayloadProgram(url, encrypted("k1"))
    async with coded.cluster:
        await coded.cluster.kv.set("greeting", MARK)
    leaving = PayloadProgram(url, encrypted(None, "k1", plain=True))
    async with leaving.cluster.connect():
        assert (await _rotate(leaving)).left == 0
        assert await Rotation(*_parts(leaving)).forget_unused_keys() == ["k1"]
    plain = PayloadProgram(url, None)
    async with plain.cluster.connect():
        assert await plain.cluster.kv.get("greeting") == MARK


async def test_what_is_compressed_is_shorter_and_read_and_rotated_by_processes_that_do_not_compress(url: str) -> None:
    text = f"{MARK} " * 400
    before = PayloadProgram(url, encrypted("k1", compress=True))
    async with before.cluster:
        await before.cluster.ready()
        await before.use_everything()
        await before.cluster.kv.set("long", text)
        assert await before.cluster.ref(before.account, "long").put("o1", text) == text + "o1"
        (stored,) = await _values(before, "kv", "long")
        assert len(stored) < len(text) // 4
    between = PayloadProgram(url, encrypted("k2", "k1"))
    async with between.cluster:
        await between.cluster.ready()
        assert await between.cluster.kv.get("long") == text
        done = await _rotate(between)
        assert (done.left, done.unreadable) == (0, Counter())
        assert await _keys(between) == {"k2"}
        (stored,) = await _values(between, "kv", "long")
        assert len(stored) > len(text)
        await between.read_everything()
        assert await between.cluster.kv.get("long") == text
        assert await between.cluster.ref(between.account, "long").put("o1", text) == text + "o1"


async def _values(program: PayloadProgram, table: str, key: str) -> list[bytes]:
    """The values of a row as they are stored."""
    found = next(each for each in TABLES if each.name == table)
    payloads = program.cluster._acting().storage.payloads
    rows = await payloads.page(found, after=None, most=1000, head=b"?", text_head="?", cut=2**31 - 1)
    return [value for row in rows if row.key == (key,) for value in row.values]


async def _call(program: PayloadProgram, caller: int, rotated: asyncio.Event) -> bool:
    """Calls that repeat one that was stored under the former key, and new ones, until the key is changed."""
    number = 0
    account = program.cluster.ref(program.account, f"load-{caller}")
    old = program.cluster.ref(program.account, "many")
    while not rotated.is_set() or number < 5:
        number += 1
        assert await account.put(f"{number}", MARK) == f"{MARK}{number}"
        order = f"filled-{(caller * 31 + number) % FILLED}"
        assert await old.put(order, MARK) == MARK + order
    return number >= 5


async def _rotate(program: PayloadProgram) -> RotationProgress:
    rotation = Rotation(*_parts(program))
    async with asyncio.timeout(120):
        while True:
            async for _ in rotation.run():
                await asyncio.sleep(0)
            if not rotation.progress.left:
                return rotation.progress


async def _keys(program: PayloadProgram) -> set[str]:
    return {use.key for use in await key_uses(program.cluster._acting().storage.payloads)}


def _parts(program: PayloadProgram) -> tuple[PayloadStore, Keyring]:
    storage = program.cluster._acting().storage
    assert storage.keyring is not None
    return storage.payloads, storage.keyring
