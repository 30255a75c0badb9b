"""Where bodies of tasks with `pool="process"` run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from coterie.settings import Settings
    from coterie.tasks.definition import TaskType
    from coterie.tasks.worker.attempt import JobAttempt


class BodyProcesses(Protocol):
    """Where the bodies of tasks with `pool="process"` run."""

    async def run(self, task: TaskType, payload: bytes, attempt: JobAttempt, /) -> Any:
        """Run a body with these arguments. Returns its result, or raises its error."""
        ...

    async def stop(self) -> None:
        """End all processes."""
        ...


class ProcessPool:
    """The processes of one runner.

    Args:
        settings: `processes`.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    async def run(self, task: TaskType, payload: bytes, attempt: JobAttempt, /) -> Any:
        """See `BodyProcesses.run`."""
        raise NotImplementedError

    async def stop(self) -> None:
        """See `BodyProcesses.stop`."""
