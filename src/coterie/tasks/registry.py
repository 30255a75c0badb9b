"""The tasks and queues of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.tasks.definition import define, define_queue
from coterie.work.definition import refusal
from coterie.work.registry import Registry

if TYPE_CHECKING:
    from coterie.cluster import Cluster
    from coterie.tasks.definition import Queue, QueueOptions, TaskOptions, TaskType


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
