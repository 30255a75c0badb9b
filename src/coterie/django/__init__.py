"""A Django app: a cluster from `settings.COTERIE` and `DATABASES`, and `manage.py coterie`.

    INSTALLED_APPS = [..., "coterie.django"]
    COTERIE = {"cluster": "shop.cluster.cluster"}       # or settings of a cluster, or nothing

`configuration`  the cluster that the settings of a project describe
`apps`           the app: it finds the definitions of the others, and `manage.py check` asks it
`management`     `manage.py coterie`: the command line of coterie with the settings of the project
`test`           a test case with a runner

Promises: nothing is connected while Django starts, so that it may reload and fork; the cluster is on the database of
the tests while those run. Django is imported in this package only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.cluster import Cluster

    cluster: Cluster
    """The cluster of this project."""

__all__ = ["cluster", "database_sync_to_async"]

P = ParamSpec("P")
T = TypeVar("T")


def database_sync_to_async(fn: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Run a function that uses the ORM in Django's thread for such, with connections that work.

    Django closes connections that are broken or too old around each request. A runner has no requests: without this,
    the first restart of the database would break the handlers until the runner itself is restarted.

    Example:
        ```python
        @rpc(persisted=True)
        async def ship(self, order: int) -> None:
            await database_sync_to_async(mark_as_shipped)(order)
        ```
    """

    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        close_old_connections()
        try:
            return fn(*args, **kwargs)
        finally:
            close_old_connections()

    made: Callable[P, Coroutine[Any, Any, T]] = sync_to_async(run, thread_sensitive=True)
    return made


def __getattr__(name: str) -> Any:
    """The cluster, made when it is first used; `program` is the same for `coterie run`, which has to set Django up."""
    if name in ("cluster", "program"):
        from coterie.django.configuration import program_cluster, project_cluster  # they read the settings

        return project_cluster() if name == "cluster" else program_cluster()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
