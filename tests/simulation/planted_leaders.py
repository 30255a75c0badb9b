"""Planted bugs of singletons, each with the scenario or workload that finds it."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.errors import LeadershipLost, PersistenceError, StatePersistFailed
from coterie.ownership.failure_detector import LeaseWatch, Suspect
from coterie.singletons.heartbeat import Heartbeats
from coterie.singletons.leadership import Leadership
from coterie.singletons.state import LeaderState, StateRowWriter
from tests.simulation import test_leader_hooks, test_leader_places, test_leader_states
from tests.simulation.workloads import leaders as workload

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


@contextmanager
def _granted_while_another_leads() -> Iterator[None]:
    def hasty(self: LeaseWatch) -> list[Suspect]:
        silent = [(runner, seen) for runner, seen in sorted(self._seen.items()) if seen.still_ns >= 1_000_000_000]
        return [Suspect(runner, seen.counter, expired=False) for runner, seen in silent]

    with patch.object(LeaseWatch, "evictable", hasty):
        yield


@contextmanager
def _hook_before_the_state() -> Iterator[None]:
    load, call = Leadership._load, Leadership._call

    async def not_yet(self: Leadership) -> None:
        if self.singleton.on_become_leader is None:
            await load(self)
        else:
            self._state._show(self._state._encode(self.singleton.initial()))

    async def and_then(self: Leadership, hook: Any, name: str) -> None:
        await call(self, hook, name)
        if name == "on_become_leader":
            await load(self)

    with patch.object(Leadership, "_load", not_yet), patch.object(Leadership, "_call", and_then):
        yield


@contextmanager
def _fenced_save_taken_as_written() -> Iterator[None]:
    right = StateRowWriter._try_to_save

    async def sure(self: StateRowWriter, data: bytes) -> bool:
        try:
            return await right(self, data)
        except LeadershipLost:
            self._version += 1
            return True

    with (
        patch.object(StateRowWriter, "_try_to_save", sure),
        patch.object(StateRowWriter, "require_held", lambda _: None),
    ):
        yield


@contextmanager
def _body_not_cancelled() -> Iterator[None]:
    def lenient(self: Leadership) -> asyncio.Task[Any]:
        if self._ending is None:
            self._ending = self._spawn(self._finish(), "end")
        return self._ending

    with patch.object(Leadership, "_end", lenient):
        yield


@contextmanager
def _told_before_it_is_durable() -> Iterator[None]:
    async def hasty(self: LeaderState[Any], data: bytes) -> None:
        self._spawn(self._write(data))

    with patch.object(LeaderState, "_write_and_release", hasty):
        yield


@contextmanager
def _state_of_an_earlier_leadership() -> Iterator[None]:
    kept: weakref.WeakKeyDictionary[Any, bytes] = weakref.WeakKeyDictionary()
    load, wrote = LeaderState.load, LeaderState._saved

    async def from_memory(self: LeaderState[Any]) -> None:
        await load(self)
        if self._services.storage in kept and self._singleton.codec is not None:
            self._show(kept[self._services.storage])

    def remembered(self: LeaderState[Any], data: bytes) -> None:
        wrote(self, data)
        kept[self._services.storage] = data

    with patch.object(LeaderState, "load", from_memory), patch.object(LeaderState, "_saved", remembered):
        yield


@contextmanager
def _hook_run_twice() -> Iterator[None]:
    right = Leadership._call

    async def twice(self: Leadership, hook: Any, name: str) -> None:
        await right(self, hook, name)
        if name == "on_lose_leadership":
            await right(self, hook, name)

    with patch.object(Leadership, "_call", twice):
        yield


@contextmanager
def _no_hook_when_the_lease_is_lost() -> Iterator[None]:
    def silent(self: Leadership) -> None:
        self._has_become = False
        self._end()

    with patch.object(Leadership, "abandon", silent):
        yield


@contextmanager
def _hook_at_each_restart() -> Iterator[None]:
    right = Leadership._run_once

    async def ran(self: Leadership) -> bool:
        is_well = await right(self)
        if not is_well and self.singleton.on_become_leader is not None:
            await self._call(self.singleton.on_become_leader, "on_become_leader")
        return is_well

    with patch.object(Leadership, "_run_once", ran):
        yield


@contextmanager
def _unanswered_save_taken_as(answer: bool) -> Iterator[None]:
    right = StateRowWriter._try_to_save

    async def sure(self: StateRowWriter, data: bytes) -> bool:
        try:
            return await right(self, data)
        except PersistenceError as error:
            if error.outcome != "unknown":
                raise
            if answer:
                return True
            raise StatePersistFailed(singleton=self._name, problem=str(error)) from error

    with patch.object(StateRowWriter, "_try_to_save", sure):
        yield


@contextmanager
def _doubt_kept_secret() -> Iterator[None]:
    right = StateRowWriter.lost
    with patch.object(StateRowWriter, "lost", lambda self, **_: right(self)):
        yield


@contextmanager
def _former_end_not_awaited() -> Iterator[None]:
    right: Any = Leadership.__init__
    with patch.object(Leadership, "__init__", lambda self, *args: right(self, *args[:-1], None)):
        yield


@contextmanager
def _former_end_forgotten_by_who_never_began() -> Iterator[None]:
    right = Leadership._finish

    async def forgetful(self: Leadership) -> None:
        self._former = None
        await right(self)

    with patch.object(Leadership, "_finish", forgetful):
        yield


@contextmanager
def _execution_begun_before_it_is_noted() -> Iterator[None]:
    async def not_yet(_: Heartbeats) -> None:
        """It will be written soon."""

    with patch.object(Heartbeats, "write_until_stored", not_yet):
        yield


PLANTED: tuple[Planted, ...] = (
    ("hook before the fence", _granted_while_another_leads, workload.main, ("INV-F4",)),
    ("first hook before the state is loaded", _hook_before_the_state, workload.main, ("INV-F3",)),
    ("fenced save taken as written", _fenced_save_taken_as_written, workload.main, ("INV-D1", "INV-F4")),
    ("body not cancelled", _body_not_cancelled, workload.main, ("S7", "INV-F4")),
    ("told before it is durable", _told_before_it_is_durable, workload.main, ("INV-D1", "INV-F3", "INV-D6")),
    ("state of an earlier leadership", _state_of_an_earlier_leadership, workload.main, ("INV-F3", "INV-D1")),
    ("hook run twice", _hook_run_twice, workload.main, ("S7",)),
    ("no hook when the lease is lost", _no_hook_when_the_lease_is_lost, workload.main, ("S7",)),
    ("hook at each restart", _hook_at_each_restart, workload.main, ("S7",)),
    ("unanswered save taken as failure", lambda: _unanswered_save_taken_as(False), workload.main, ("INV-D6", "INV-F3")),
    ("unanswered save taken as success", lambda: _unanswered_save_taken_as(True), workload.main, ("INV-D1", "INV-F3")),
    (
        "doubt about a save kept secret",
        _doubt_kept_secret,
        test_leader_states.test_inv_d6_a_lost_leadership_says_when_its_last_save_is_in_doubt,
        (),
    ),
    (
        "end of the former leadership not awaited",
        _former_end_not_awaited,
        test_leader_hooks.test_s7_in_one_process_no_hook_runs_beside_another,
        (),
    ),
    (
        "end of the former but one not awaited",
        _former_end_forgotten_by_who_never_began,
        test_leader_hooks.test_s7_in_one_process_no_hook_runs_beside_another,
        (),
    ),
    (
        "execution begun before it is noted",
        _execution_begun_before_it_is_noted,
        test_leader_places.test_every_a_change_of_leader_neither_repeats_an_execution_nor_starts_the_clock_anew,
        (),
    ),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
