"""m5: the sign of life that goes with a process and nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
from typing import TYPE_CHECKING

import pytest

from coterie.errors import PersistenceError
from coterie.storage.interface import Registration
from coterie.storage.sqlite.file import witness
from coterie.storage.sqlite.file.witness import FlockWitness, boot_id
from tests.unit.sqlite.conftest import until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.sqlite.conftest import Child, Opener

A, B = "a" * 32, "b" * 32


def witness_of(path: Path) -> FlockWitness:
    return FlockWitness(path, cluster="default")


def file_of(path: Path, incarnation: str) -> Path:
    return path.with_name(f"{path.name}-runner-default-{incarnation}")


def me(incarnation: str) -> Registration:
    return Registration(id=incarnation, name="me", address="", host_id="", groups=())


async def test_it_is_seen_by_everybody_while_it_is_given_and_by_nobody_after(path: Path) -> None:
    one, other = witness_of(path), witness_of(path)
    async with one.taken(A):
        assert one.held([A, B]) == other.held([A, B]) == {A}  # the same process counts too
        assert other.held([A]) == {A}, "a look must not take it away"
    assert one.held([A, B]) == other.held([A, B]) == frozenset()


async def test_it_is_given_as_long_as_one_of_several_sessions_gives_it(path: Path) -> None:
    one = witness_of(path)
    async with one.taken(A) as first:
        async with one.taken(A) as second:
            assert (first, second) == (True, False)
        assert witness_of(path).held([A]) == {A}
    assert not witness_of(path).held([A])


async def test_two_who_look_at_once_do_not_see_each_other(path: Path) -> None:
    """M2: of two probes that took the lock for themselves one saw the other."""
    file_of(path, A).touch()
    looking = os.open(file_of(path, A), os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not witness_of(path).held([A])
    os.close(looking)


async def test_who_looks_does_not_keep_the_owner_from_taking_it(path: Path) -> None:
    """M2: it tries again until the look is over."""
    file_of(path, A).touch()
    looking = os.open(file_of(path, A), os.O_RDWR)
    fcntl.flock(looking, fcntl.LOCK_SH)
    taken = witness_of(path).taken(A)
    taking = asyncio.create_task(taken.__aenter__())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not taking.done()
    os.close(looking)
    async with asyncio.timeout(120):
        assert await taking is False
    assert witness_of(path).held([A])
    await taken.__aexit__(None, None, None)


async def test_one_that_another_process_holds_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(witness, "_TRIES", 3)
    async with witness_of(path).taken(A):
        with pytest.raises(PersistenceError, match="another process holds it"):
            await witness_of(path).taken(A).__aenter__()


async def test_one_whose_file_cannot_be_made_is_refused(path: Path) -> None:
    file_of(path, A).mkdir()
    with pytest.raises(PersistenceError, match="directory"):
        await witness_of(path).taken(A).__aenter__()
    assert witness_of(path).held([A]) == {A}, "what cannot be looked at is no sign of death"


async def test_a_file_without_a_lock_proves_a_death_and_a_missing_one_proves_nothing(path: Path) -> None:
    """Somebody who tidies up may have deleted the file of a living runner."""
    one = witness_of(path)
    async with one.taken(A):
        assert one.gone([A, B]) == frozenset()
    assert one.gone([A, B]) == {A}
    one.remove(A)
    assert one.gone([A, B]) == frozenset()


async def test_a_runner_gives_its_sign_of_life_across_its_sessions(new: Opener, path: Path) -> None:
    """Between two sessions a living runner would be taken for dead."""
    async with new() as storage:
        async with storage.presence(A):
            async with storage.ownership(A) as session:
                await session.register(me(A), [], ttl_s=60)
            assert witness_of(path).held([A]) == {A}
            assert witness_of(path).gone([A]) == frozenset()
        assert witness_of(path).gone([A]) == {A}


async def test_clusters_in_one_file_do_not_see_each_other(path: Path) -> None:
    """m7."""
    async with FlockWitness(path, cluster="other").taken(A):
        assert not witness_of(path).held([A])


def test_all_signs_go_with_this_start_of_the_machine(path: Path) -> None:
    assert witness_of(path).server == boot_id() != ""


def test_it_stays_while_a_process_is_frozen_and_goes_when_it_is_killed(path: Path, child: Callable[..., Child]) -> None:
    """M2: a frozen runner is left to its lease."""
    owner = child("own", f"sqlite:///{path}", f"{A}=60")
    assert owner.line() == "registered"
    owner.freeze()
    assert witness_of(path).held([A, B]) == {A}
    owner.kill()
    owner.wait()
    until(lambda: not witness_of(path).held([A]))
    assert file_of(path, A).exists(), "its row is still there"


def test_a_forked_child_does_not_keep_it(path: Path, child: Callable[..., Child]) -> None:
    """M2, m5: the lock belongs to the open file, which a child inherits."""
    owner = child("own", f"sqlite:///{path}", f"{A}=60")
    assert owner.line() == "registered"
    left_behind = int(owner.told("fork"))
    try:
        owner.kill()
        owner.wait()
        until(lambda: not witness_of(path).held([A]))
        os.kill(left_behind, 0)  # it is still there
    finally:
        os.kill(left_behind, signal.SIGKILL)


async def test_its_file_is_there_as_long_as_the_row_is(new: Opener, path: Path) -> None:
    """m5: never unlinked while the row exists; whoever deletes the row removes it."""
    async with new() as storage:
        async with storage.ownership(A) as session:
            await session.register(me(A), [], ttl_s=60)
        assert file_of(path, A).exists()
        async with storage.ownership(A) as again:
            assert file_of(path, A).exists()
            await again.renew(ttl_s=60)
        assert file_of(path, A).exists()
        async with storage.ownership(B) as other:
            await other.register(me(B), [], ttl_s=60)
            assert await other.evict(A, counter=2, expired=False)
            assert not file_of(path, A).exists()
            await other.leave()
        assert not file_of(path, B).exists()


async def test_a_session_that_never_registers_leaves_no_file(new: Opener, path: Path) -> None:
    async with new() as storage:
        async with storage.ownership(A) as session:
            assert file_of(path, A).exists()
            assert not await session.leaving(B)
        assert not file_of(path, A).exists()
