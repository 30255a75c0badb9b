"""What the setting `http_calls` offers to callers over HTTP: methods of entities, workflows and tasks."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from coterie.kernel.text import visible

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from coterie.entities.definition import EntityType
    from coterie.entities.rpc import Rpc
    from coterie.settings import Settings
    from coterie.settings.secret import Secret
    from coterie.tasks.definition import TaskType
    from coterie.workflows.definition import WorkflowType

log = logging.getLogger("coterie")

_WORKFLOW = "workflow:"
_TASK = "task:"


@dataclass(frozen=True, slots=True)
class Offer:
    """What may be called, and what is known of it.

    Args:
        names: The setting `http_calls`.
        token: The setting `http_calls_token`.
        entities: Returns the entity types of this program. Those of other programs can be called, too.
        workflows: Returns the workflows of this program, the only ones that can be started here.
        tasks: Returns the tasks of this program, the only ones of which jobs can be sent here.
    """

    names: frozenset[str]
    token: Secret
    entities: Callable[[], Mapping[str, EntityType[Any]]]
    workflows: Callable[[], Mapping[str, WorkflowType]]
    tasks: Callable[[], Mapping[str, TaskType]]

    def has_method(self, entity_type: str, method: str) -> bool:
        """Whether a method may be called."""
        return entity_type in self.names or f"{entity_type}.{method}" in self.names

    def has_workflow(self, name: str) -> bool:
        """Whether a workflow may be started and read."""
        return f"{_WORKFLOW}{name}" in self.names

    def has_task(self, name: str) -> bool:
        """Whether jobs of a task may be sent and their results read."""
        return f"{_TASK}{name}" in self.names

    def methods(self) -> Iterator[tuple[EntityType[Any], Rpc]]:
        """The methods of this program that can be called."""
        for name, entity_type in sorted(self.entities().items()):
            for method, rpc in sorted(entity_type.rpcs.items()):
                if self.has_method(name, method) and not rpc.is_stream:
                    yield entity_type, rpc

    def runs(self) -> Iterator[WorkflowType]:
        """The workflows of this program that can be started."""
        for name, kind in sorted(self.workflows().items()):
            if self.has_workflow(name):
                yield kind

    def offered_tasks(self) -> Iterator[TaskType]:
        """The tasks of this program of which jobs can be sent."""
        for name, task in sorted(self.tasks().items()):
            if self.has_task(name):
                yield task

    def warn(self) -> None:
        """Log names that this program does not define: typing errors, or what another program defines."""
        known = {f"{_WORKFLOW}{name}" for name in self.workflows()} | {f"{_TASK}{name}" for name in self.tasks()}
        for name, entity_type in self.entities().items():
            known |= {name, *(f"{name}.{method}" for method in entity_type.rpcs)}
        for name in sorted(self.names - known):
            close = get_close_matches(name, sorted(known), n=1)
            meant = f": did you mean {visible(close[0])}?" if close else ""
            log.warning("http_calls names %s, which this program does not define%s", visible(name), meant)


def offer_of(
    settings: Settings,
    entities: Callable[[], Mapping[str, EntityType[Any]]],
    workflows: Callable[[], Mapping[str, WorkflowType]],
    tasks: Callable[[], Mapping[str, TaskType]],
) -> Offer | None:
    """What a program offers; None: nothing, which is the default."""
    if settings.http_calls is None:
        return None
    assert settings.http_calls_token is not None, "the settings require it"
    return Offer(frozenset(settings.http_calls), settings.http_calls_token, entities, workflows, tasks)
