"""The tasks and queues that a program defines, and the seats of queues that its runners hold."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from coterie.errors import PersistenceError
from coterie.kernel.ids import Seat
from coterie.ownership.admission import Definition
from coterie.tasks.definition import SEATS, Queue, define, define_queue
from coterie.tasks.dispatcher.dispatcher import Dispatcher
from coterie.tasks.dispatcher.slots import Loads
from coterie.tasks.edit import JobEditor
from coterie.tasks.frames import NOT_MINE
from coterie.tasks.worker.worker import JobWorker
from coterie.work.definition import refusal
from coterie.work.occupants import Occupants
from coterie.work.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from coterie.cluster import Cluster
    from coterie.ownership.seats import Occupy, Tenure
    from coterie.runner import Runner
    from coterie.tasks.definition import QueueOptions, TaskOptions, TaskType
    from coterie.tasks.dispatcher.dispatcher import DispatcherFacts
    from coterie.tasks.frames import JobQuestion, JobsOver, JobsSent, QueueChanged

log = logging.getLogger("coterie.tasks")

_ROUND_S = 1.0


class TaskRegistry(Registry["TaskType"]):
    """The tasks and queues of one program.

    Args:
        cluster: Passed to bodies.
    """

    kind = "queue"

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self.queues: dict[str, Queue] = {}

    def add(self, fn: Any, options: TaskOptions) -> TaskType:
        """Define a task.

        Raises:
            ConfigurationError: The definition is invalid, or its name is taken.
        """
        made = define(fn, options, queues=self.queues, retry=self.cluster.settings.retry)
        self._add(made.name, made, what="tasks", hint="give one of them name=")
        return made

    def add_queue(self, name: str, options: QueueOptions) -> Queue:
        """Define a queue.

        Raises:
            ConfigurationError: The definition is invalid, or its name is taken.
        """
        made = define_queue(name, options)
        if name in self.queues:
            raise refusal(f"there are two queues of the name {name!r}", hint="give one of them another name")
        self.queues[name] = made
        return made

    def named(self, name: str) -> TaskType:
        """The task of a name.

        Raises:
            ValueError: This program has none.
        """
        found = self.known.get(name)
        if found is None:
            raise ValueError(f"this program knows no task {name!r}: there are {', '.join(self.known) or 'none'}")
        return found

    def definitions(self) -> Sequence[Definition]:
        """The seats of all queues, and of the tasks without one."""
        defined: list[Queue | TaskType] = [*self.queues.values(), *self.known.values()]
        seats = [seat for each in defined for seat in self.seats_of(each)]
        return list({seat.seat: seat for seat in seats}.values())

    def seats_of(self, of: Queue | TaskType) -> list[Definition]:
        """The seat of a queue; those of the jobs of a task.

        The limits of a queue are in its row and not in the definition of its seat: any runner of its group may hold it,
        also one whose program is older, or does not have the queue (`Membership`).
        """
        name = of.name if isinstance(of, Queue) else of.queue
        if name is not None:
            return [Definition(seat=Seat.queue(name), group=of.group)]
        return [Definition(seat=Seat.jobs(of.group, number), group=of.group) for number in range(SEATS)]

    def occupants(self, runner: Runner) -> Occupy:
        """Occupy the seats of queues that a runner holds, and run the jobs that are claimed for it."""
        runner.beside(JobWorker(runner, self.known, runner.jobs))
        runner.jobs.editor = JobEditor(runner, self.known)
        return super().occupants(runner)

    def _held(self, runner: Runner) -> HeldQueues:
        return HeldQueues(self, runner)


class HeldQueues(Occupants[Dispatcher]):
    """The seats of queues that one runner holds (`tasks.exchange.HolderPort`)."""

    def __init__(self, registry: TaskRegistry, runner: Runner) -> None:
        super().__init__("jobs", runner, registry.cluster)
        self._queues = registry.queues
        self._loads = Loads()
        runner.jobs.holder = self
        runner.directory.on_gone(self._gone)

    def facts(self) -> list[DispatcherFacts]:
        """What is known of the queues that are held."""
        return [each.facts() for each in self._open()]

    # Frames

    def holds(self, seat: str, /) -> bool:
        """Whether a seat is held."""
        return self._held(seat) is not None

    def sent(self, frame: JobsSent, /) -> None:
        """Jobs were stored, or made ready again."""
        if (held := self._held(frame.seat)) is not None:
            held.sent(frame)

    def over(self, runner: str, frame: JobsOver, /) -> None:
        """Jobs of a runner are over, or what it can take has changed."""
        if (held := self._held(frame.seat)) is not None:
            held.over(runner, frame)
        for each in self.latest.values():
            if each.is_blocked and each is not held:  # it may have waited for these slots
                each.hurry()

    def changed(self, frame: QueueChanged, /) -> None:
        """The row of a queue has changed."""
        if (held := self._held(frame.seat)) is not None:
            held.changed()

    def wait(self, question: JobQuestion, answer: Callable[[bytes], None], /) -> None:
        """Answer when a job is over."""
        held = self._held(question.seat)
        if held is None:
            answer(NOT_MINE)
        else:
            held.wait(question, answer)

    def forget(self, question: JobQuestion, answer: Callable[[bytes], None], /) -> None:
        """No caller waits for this answer any more."""
        if question.seat in self.latest:
            self.latest[question.seat].forget(question, answer)

    # Seats (`Occupants`)

    def _make(self, tenure: Tenure, context: Context) -> Dispatcher:
        _, name = Seat.split(tenure.seat)
        queue = self._queues.get(name)
        return Dispatcher(
            tenure,
            self.services,
            context,
            definition=None if queue is None else queue.definition,
            exchange=self._runner.jobs,
            loads=self._loads,
            runners=self._runners,
        )

    def _begin(self) -> None:
        self._supervise(self._look_again_and_again, "look at queues")

    async def _look_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(_ROUND_S)
            try:
                await self._poll()
            except PersistenceError as error:
                log.info("queues are looked at again in %g s: %s", _ROUND_S, error)

    async def _poll(self) -> None:
        """Look whether storage has what no hint has told, on all seats at once."""
        open_ = {each.seat: each for each in self._open()}
        if open_:
            for found in await self.services.storage.jobs.backlog(list(open_), most=1):
                if found.seat in open_:
                    open_[found.seat].poll(found)

    def _open(self) -> list[Dispatcher]:
        return [each for each in self.latest.values() if each.is_open]

    def _held(self, seat: str) -> Dispatcher | None:
        held = self.latest.get(seat)
        return held if held is not None and held.is_open else None

    def _runners(self, group: str) -> list[str]:
        """The live runners of a group that take jobs."""
        return [each.id for each in self._runner.directory.runners if group in each.groups and not each.leaving]

    def _gone(self, runner: str) -> None:
        for each in self._open():
            each.gone(runner)
