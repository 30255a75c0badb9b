"""One run: the scripts of a pair in a given order on real sessions, each turn ended before the next is chosen."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from coterie.kernel.service import Tasks
from tests.support.interleaving.sessions import POLL_S, STUCK_S, Session, Watcher
from tests.support.interleaving.track import SessionOutcome, Track

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.support.interleaving.scripts import Loss, Pair, PairTables, Rows, Side
    from tests.support.interleaving.sessions import Connect

REPEATS_MOST = 20
"""Tries to repeat an order of three sessions, of which the server chooses one turn or two."""


@dataclass(slots=True)
class Run:
    """What happened in one run, for the judge and for people."""

    pair: Pair
    loss: Loss | None
    told: Mapping[Side, SessionOutcome]
    order: str = ""
    choices: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    waits: int = 0
    tables: dict[str, Rows] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def a(self) -> SessionOutcome:
        """What the first session knows."""
        return self.told["A"]

    @property
    def b(self) -> SessionOutcome:
        """What the second session knows."""
        return self.told["B"]

    @property
    def id(self) -> str:
        """What repeats this run."""
        return f"{self.pair.name}/{self.loss or 'whole'}/{self.order}"

    def __str__(self) -> str:
        head = [f"{self.pair.name}: {problem}" for problem in self.problems] or [f"{self.pair.name}: all is well"]
        turns = [f"  {number:2} {line}" for number, line in enumerate(self.lines, 1)]
        ends = [f"     {side} ended: {told.end}" for side, told in self.told.items()]
        tables = [f"     {name}: {[tuple(row.values()) for row in rows]}" for name, rows in self.tables.items()]
        return "\n".join((*head, *turns, *ends, *tables, f"  to repeat: {self.id!r}"))


class SessionPair:
    """Two sessions and a watcher on one database, used for run after run.

    Args:
        connect: Opens a session as the program under test does: its settings are part of what is tested.
        watch: Opens the watcher's session; it needs rights to create a schema, and to end the others.
        ground: The tables.
    """

    def __init__(self, connect: Connect, watch: Connect, ground: PairTables) -> None:
        self._connect = connect
        self._sessions: dict[Side, Session] = {}
        self._watch = watch
        self._ground = ground
        self._tasks = Tasks("interleaving")
        self.runs = 0

    async def __aenter__(self) -> Self:
        self._watcher = Watcher(await self._watch())
        await self._watcher.prepare()
        return self

    async def __aexit__(self, *exc: object) -> None:
        for session in self._sessions.values():
            await session.close()
        await self._tasks.stop()
        await self._watcher.close()

    async def play(self, pair: Pair, loss: Loss | None = None, prefix: str = "") -> Run:
        """Play one run whose order begins with `prefix`; past it, A goes on whenever it can.

        Promise:
            Of two sessions the same pair, loss and order give the same run: no turn is given before the effect of
            the last one is known, when every statement is answered or waits for a lock that one of ours holds.

        Not promised:
            The same of three: when two wait for the third, the server chooses who goes first. A run that cannot
            follow `prefix` for that reason takes its own way from there.
        """
        scripts = pair.scripts(loss)
        await self._reset(pair, scripts)
        tracks = [Track(side, script, self._sessions[side], self._tasks) for side, script in scripts.items()]
        run = Run(pair, loss, {track.side: track.told for track in tracks})
        while not all(track.told.end for track in tracks):
            able = "".join(track.side for track in tracks if track.ready)
            if able:
                follows = prefix.startswith(run.order)
                await self._turn(run, tracks, able, wanted=prefix[len(run.order) :][:1] if follows else "")
            else:
                await self._knot(run, tracks)
        await self._settle(run, tracks, to_end=True)
        await self._read(run)
        return run

    async def repeat(self, pair: Pair, loss: Loss | None, order: str) -> Run:
        """Play a run again, in the very order that it had."""
        for _ in range(REPEATS_MOST):
            run = await self.play(pair, loss, order)
            if run.order == order:
                return run
        raise AssertionError(f"{pair.name}: {order} is no order, the nearest is {run.order}")

    async def _reset(self, pair: Pair, sides: Iterable[Side]) -> None:
        self.runs += 1
        for side in sides:
            await self._sessions.setdefault(side, Session(self._connect)).ready()
        await self._watcher.script(self._ground.reset + pair.given)
        await self._watcher.hold_gate()

    async def _turn(self, run: Run, tracks: Sequence[Track], able: str, *, wanted: str) -> None:
        chosen = wanted if wanted and wanted in able else able[0]
        run.choices.append(able)
        run.order += chosen
        track = next(track for track in tracks if track.side == chosen)
        act = track.next.act
        if act in ("run", "hang"):
            track.send()
        else:
            run.lines.append(f"{chosen} {track.lose().name}")
        await self._settle(run, tracks, at_gate=track if act == "hang" else None)
        await self._befall(track, act)
        await self._settle(run, tracks)

    async def _befall(self, track: Track, act: str) -> None:
        """What happens to a session apart from statements."""
        if act == "cut" or (act == "hang" and track.waiting):
            track.cut()
        elif act == "let go":
            await self._watcher.open_gate()
        elif act == "end":
            await self._watcher.end(track.session.pid)
            track.cut()

    async def _settle(
        self, run: Run, tracks: Sequence[Track], *, at_gate: Track | None = None, to_end: bool = False
    ) -> None:
        """Until every statement under way is answered or waits for a lock of ours, and who was cut off is gone."""
        known = [track.session.pid for track in tracks]
        answers: list[tuple[bool, str, str]] = []
        async with asyncio.timeout(STUCK_S):
            while busy := [track for track in tracks if await self._is_busy(track, answers)]:
                waiting = await self._watcher.waiting_for([t.session.pid for t in busy], among=known)
                for track in busy:
                    self._note(run, track, waiting.get(track.session.pid))
                if len(waiting) == len(busy) and not to_end and (at_gate is None or at_gate.waiting):
                    break
                await self._pause(busy[0])
        # Whose turn it was answers first, then those that it let go on: what arrives first here means nothing.
        run.lines += [f"{side} {'goes on, ' if late else ''}{line}" for late, side, line in sorted(answers)]

    async def _is_busy(self, track: Track, answers: list[tuple[bool, str, str]]) -> bool:
        if track.zombie:
            track.zombie = bool(await self._watcher.alive([track.session.pid]))
            return track.zombie
        if track.task is None:
            return False
        await self._pause(track)
        if not track.task.done():
            return True
        answers.append((track.waiting, track.side, await track.settle()))
        return False

    def _note(self, run: Run, track: Track, blockers: list[int] | None) -> None:
        if blockers is None or track.waiting or track.zombie:
            return
        track.waiting = True
        at_gate = self._watcher.is_gate(blockers[0])
        run.waits += not at_gate
        run.lines.append(f"{track.side} {track.doing}: " + ("in COMMIT, client gone" if at_gate else "waits"))

    async def _pause(self, track: Track) -> None:
        """A moment, or less if its statement is answered."""
        if track.task is None:
            await asyncio.sleep(POLL_S)
        elif not track.task.done():
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await asyncio.shield(asyncio.gather(track.task, return_exceptions=True))

    async def _knot(self, run: Run, tracks: Sequence[Track]) -> None:
        """Both wait for each other, until the server cuts the knot: a deadlock, or a lock timeout."""
        async with asyncio.timeout(STUCK_S):
            while not any(track.task is not None and track.task.done() for track in tracks):
                await asyncio.sleep(POLL_S)
        await self._settle(run, tracks)

    async def _read(self, run: Run) -> None:
        for name, query in self._ground.tables.items():
            run.tables[name] = await self._watcher.read(query)
        refused = [s for told in run.told.values() for s in told.failures if s not in run.pair.allows]
        run.problems += [f"a statement was refused with {state}" for state in refused]
        run.problems += [*self._ground.judge(run), *run.pair.judge(run)]
