"""Blocking functions that use the ORM, from handlers, which are asynchronous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.db import close_old_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

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
