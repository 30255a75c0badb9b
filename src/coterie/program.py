"""The definitions of a program (entities, singletons, crons, workflows and the rest), and the runners made of them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from coterie.client import Client, ClientParts, system_parts
from coterie.entities.registry import EntityRegistry
from coterie.kernel.service import State
from coterie.runner import Runner, Workplace, no_occupants
from coterie.schedules.registry import ScheduleRegistry
from coterie.singletons.registry import SingletonRegistry
from coterie.storage.engines import is_shared
from coterie.tasks.worker.processes import refuse_in_body_process
from coterie.work.middleware import Middleware

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from coterie.cluster import Cluster
    from coterie.cron.registry import CronRegistry
    from coterie.incoming.registry import IncomingRegistry
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy
    from coterie.settings import Settings
    from coterie.setup import Setup
    from coterie.tasks.registry import TaskRegistry
    from coterie.tasks.sender import JobCaller
    from coterie.workflows.definition import WorkflowType
    from coterie.workflows.registry import StartChild, WorkflowRegistry


class Program:
    """What one program defines with a `Cluster`.

    Args:
        cluster: Passed to the program's functions as `leader.cluster`, `tick.cluster`, ….
        acting: Returns the runner or client to act through.
        start_child: Starts a workflow whose parent waits for it.
    """

    def __init__(self, cluster: Cluster, acting: Callable[[], Client], start_child: StartChild) -> None:
        self._cluster = cluster
        self._acting = acting
        self._start_child = start_child
        self.entities = EntityRegistry(cluster, acting)
        self.singletons = SingletonRegistry(cluster)
        self.setups: list[Setup] = []
        self.middleware = Middleware()
        self._registries: dict[str, SingletonRegistry | CronRegistry | WorkflowRegistry]
        self._registries = {"singleton": self.singletons}
        self._runners: list[Runner] = []

    @cached_property
    def crons(self) -> CronRegistry:
        """The crons."""
        from coterie.cron.registry import CronRegistry  # zones and calendars: only programs that have crons load them

        made = self._registries["cron"] = CronRegistry(self._cluster)
        return made

    @cached_property
    def workflows(self) -> WorkflowRegistry:
        """The workflows."""
        from coterie.workflows.registry import WorkflowRegistry

        made = self._registries["workflow"] = WorkflowRegistry(self._cluster, self._start_child)
        return made

    @cached_property
    def tasks(self) -> TaskRegistry:
        """The tasks and queues."""
        from coterie.tasks.registry import TaskRegistry

        return TaskRegistry(self._cluster)

    @cached_property
    def job_caller(self) -> JobCaller:
        """Sends the jobs of the tasks."""
        from coterie.tasks.sender import JobCaller

        return JobCaller(self._acting)

    @property
    def runners(self) -> Sequence[Runner]:
        """The runners of this process that have not stopped."""
        self._runners = [
            each for each in self._runners if each.state is not State.STOPPED and each.origin.is_this_process
        ]
        return self._runners

    def names(self) -> Mapping[str, Sequence[str]]:
        """The names of all definitions so far, by kind: entity, singleton, cron, workflow, task, queue."""
        found: dict[str, Sequence[str]] = {"entity": sorted(self.entities.types)}
        found |= {kind: sorted(registry.known) for kind, registry in self._registries.items()}
        if "tasks" in self.__dict__:  # else they are not loaded
            found |= {"task": sorted(self.tasks.known), "queue": sorted(self.tasks.queues)}
        return found

    def define(self, registry: Workplace, definition: Definition | None = None) -> None:
        """Pass a definition to runners that are already running, so that they take its seat."""
        for runner in self.runners:
            runner.define(registry, definition)

    def define_all(self, registry: Workplace, definitions: Sequence[Definition]) -> None:
        """The same for several seats."""
        for definition in definitions:
            self.define(registry, definition)

    def new_client(self, settings: Settings) -> Client:
        """Make a client, not started yet."""
        return Client(settings, system_parts(settings))

    def new_runner(
        self,
        settings: Settings,
        *,
        parts: ClientParts | None = None,
        definitions: Sequence[Definition] = (),
        occupy: Callable[[Runner], Occupy] = no_occupants,
    ) -> Runner:
        """Make a runner, not started yet.

        Args:
            settings: Its settings.
            parts: Its access to the outside. Default: that of a real process.
            definitions: Seats that no registry defines.
            occupy: Makes the occupants of seats whose kind belongs to no registry.
        """
        refuse_in_body_process("a runner")
        # A caller with occupants of its own gets the shards for them, unless there are entities to occupy the shards.
        workplaces: list[Workplace] = [self.entities] if occupy is no_occupants or self.entities.types else []
        workplaces += [registry for registry in self._registries.values() if registry.known]
        if "tasks" in self.__dict__ and (self.tasks.known or self.tasks.queues):
            workplaces.append(self.tasks)
        if workplaces and workplaces[0] is self.entities:
            workplaces.append(ScheduleRegistry(self._cluster))
        if occupy is no_occupants and is_shared(settings):
            workplaces.append(self._incoming(settings))
        made = Runner(
            settings,
            parts or system_parts(settings),
            workplaces=workplaces,
            definitions=definitions,
            occupy=occupy,
            setups=self.setups,
            middleware=self.middleware,
        )
        self._runners = [*self.runners, made]
        return made

    def _incoming(self, settings: Settings) -> IncomingRegistry:
        from coterie.incoming.registry import IncomingRegistry  # only where SQL can send

        def workflows() -> Mapping[str, WorkflowType]:
            return self.workflows.known if "workflow" in self._registries else {}

        return IncomingRegistry(self._cluster, settings.groups, self.entities.types, workflows)
