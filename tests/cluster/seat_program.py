"""A runner that writes in the name of each seat it holds, and keeps a journal of it: `python seat_program.py`.

Whoever sits on a seat is stubborn: told that the seat is lost, it goes on writing until it is refused, as a body that
ignores its cancellation would. So it is the fence that is tried, not the courtesy before it.

Variables:
    HOLDER_JOURNAL: The folder of the journals.
    HOLDER_CALLED: The runner's name, if not what the harness calls this process.
    HOLDER_EVERY_S: The pause between two writes to a seat; 0: none are made.
    HOLDER_BLOCK_S: How long SIGUSR1 blocks the event loop, unless there is a file `unblock` sooner. SIGUSR2 forks a
        child that does nothing and stays.
    HOLDER_DRAIN_S: How long a seat takes to be drained.
    HOLDER_DIE: The moment at which to die by SIGKILL: "before release", "during acquire 2", "after leave", "in drain".
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie import main as process_main
from coterie.client import system_parts
from coterie.errors import CoterieError
from coterie.kernel.clock import SystemClock
from coterie.kernel.service import Tasks
from coterie.runner import Runner
from coterie.settings import Settings
from coterie.storage.interface import StateSave

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from coterie.client import ClientParts
    from coterie.ownership.seats import Tenure
    from coterie.storage.interface import StateStore, Storage

CALLED = os.environ.get("HOLDER_CALLED")
EVERY_S = float(os.environ.get("HOLDER_EVERY_S", "0.05"))
BLOCK_S = float(os.environ.get("HOLDER_BLOCK_S", "0"))
UNBLOCK = Path("unblock")
DRAIN_S = float(os.environ.get("HOLDER_DRAIN_S", "0"))
DIE = os.environ.get("HOLDER_DIE", "")

now_ns = SystemClock().steady_ns


class Journal:
    """Lines of JSON, each written at once: what was noted before a kill is there."""

    def __init__(self) -> None:
        path = Path(os.environ["HOLDER_JOURNAL"]) / f"{os.environ['COTERIE_RUNNER_NAME']}.{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    def note(self, what: str, **fields: object) -> None:
        os.write(self._file, json.dumps({"what": what, "at_ns": now_ns(), **fields}).encode() + b"\n")


class SeatWriter:
    """Whoever sits on one seat."""

    def __init__(self, tenure: Tenure, *, states: StateStore, journal: Journal, tasks: Tasks) -> None:
        self._tenure = tenure
        self._states = states
        self._journal = journal
        self._leaving = asyncio.Event()
        self._lost = False
        self._note("granted", clean=tenure.clean)
        self._task = tasks.spawn(self._write(), name=f"write {tenure.seat}") if EVERY_S else None

    async def drain(self) -> None:
        """Let the write in flight end."""
        self._note("draining")
        if DIE == "in drain":
            die()
        self._leaving.set()
        if self._task is not None:
            await self._task
        await asyncio.sleep(DRAIN_S)
        self._note("drained")

    def abandon(self) -> None:
        """Pay no heed: the fence has to refuse us."""
        self._lost = True
        self._note("lost")

    async def _write(self) -> None:
        version: int | None = None
        number = 0
        while not self._leaving.is_set():
            number += 1
            try:
                if version is None and (version := await self._load()) is None:
                    break
                version = await self._save(self._tenure.seat, version)
                if self._lost:  # the first row of a key has no epoch of an earlier one to be refused by [C1]
                    await self._save(f"{self._tenure.seat}/{self._tenure.epoch}/{number}", 0)
            except Refused:
                break
            except CoterieError as error:
                self._note("unknown", error=error.code)
                version = None
            await self._pause()

    async def _load(self) -> int | None:
        loaded = await self._states.load(self._tenure.claim, self._tenure.seat)
        if loaded is None:
            self._note("refused", doing="load")
            return None
        self._note("loaded", version=loaded.version)
        return loaded.version

    async def _save(self, key: str, version: int) -> int | None:
        """The new version; None if it is not known."""
        sent_ns = now_ns()
        outcome = await self._states.save(StateSave(self._tenure.claim, key, b"x", version))
        if outcome == "conflict":
            return None
        if outcome == "fenced":
            self._note("refused", doing="save", key=key)
            raise Refused
        self._note("written", key=key, version=version + 1, sent_ns=sent_ns)
        return version + 1

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(0.01 if self._lost else EVERY_S):
                await self._leaving.wait()
        except TimeoutError:
            pass

    def _note(self, what: str, **fields: object) -> None:
        claim = self._tenure.claim
        self._journal.note(what, seat=claim.seat, epoch=claim.epoch, incarnation=claim.runner, **fields)


class Refused(Exception):
    """The fence has held."""


class Dying:
    """A dedicated session on which this process dies, before, during or after one of its calls."""

    def __init__(self, session: Any, calls: dict[str, int]) -> None:
        self._session = session
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._session, name)
        return self._mortal(name, method) if asyncio.iscoroutinefunction(method) else method

    def _mortal(self, name: str, method: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self._calls[name] = self._calls.get(name, 0) + 1
            moment = [*DIE.split(), "1"][:3]
            if moment[1:] != [name, str(self._calls[name])]:
                return await method(*args, **options)
            if moment[0] == "before":
                die()
            if moment[0] == "during":  # sent, but no answer read: whatever comes of it
                asyncio.get_running_loop().call_later(0.0005, die)
            result = await method(*args, **options)
            die()
            return result

        return call


class Holder(Runner):
    """A runner whose seats are all taken by sitters."""

    def __init__(self, settings: Settings, parts: ClientParts) -> None:
        self._journal = Journal()
        self._sitting = Tasks("sitters")
        super().__init__(settings, parts, occupy=lambda _: self._sit)
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._block)
        loop.add_signal_handler(signal.SIGUSR2, self._fork)

    def _sit(self, tenure: Tenure) -> SeatWriter:
        return SeatWriter(tenure, states=self.storage.states, journal=self._journal, tasks=self._sitting)

    async def _start(self) -> None:
        await super()._start()
        self._journal.note("up", incarnation=self.incarnation)

    async def _stop(self) -> None:
        try:
            await super()._stop()
        finally:
            await self._sitting.stop()

    def _block(self) -> None:
        self._journal.note("blocked")
        over_s = time.monotonic() + BLOCK_S
        while time.monotonic() < over_s and not UNBLOCK.exists():
            time.sleep(0.05)  # blocks the loop

    def _fork(self) -> None:
        if (child := os.fork()) == 0:
            time.sleep(600)
            os._exit(0)
        self._journal.note("forked", child=child)


def mortal(storage: Storage) -> Storage:
    """A storage on whose dedicated sessions this process dies."""
    calls: dict[str, int] = {}
    real = storage.ownership

    @asynccontextmanager
    async def ownership(incarnation: str) -> AsyncIterator[Any]:
        async with real(incarnation) as session:
            yield Dying(session, calls)

    storage.ownership = ownership  # type: ignore[method-assign]  # the storage of this process alone
    return storage


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    settings = Settings.load({"runner_name": CALLED} if CALLED else {})
    parts = system_parts(settings)
    if DIE:
        parts = replace(
            parts, open_storage=lambda incarnation: mortal(system_parts(settings).open_storage(incarnation))
        )
    process_main.run(lambda: Holder(settings, parts), settings)


if __name__ == "__main__":
    main()
