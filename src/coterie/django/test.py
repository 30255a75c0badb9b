"""A test case of Django with a runner, so that what a test sends also runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asgiref.sync import sync_to_async
from django.db import connections
from django.test import TransactionTestCase

from coterie.django.configuration import project_cluster
from coterie.interop.loop_thread import loop_thread

if TYPE_CHECKING:
    from coterie.cluster import Cluster

_READY = "60s"


class ClusterTestCase(TransactionTestCase):  # type: ignore[misc] # Django has no types
    """A `TransactionTestCase` with a runner of the project, on the database of the tests.

    The runner lives from the first to the last test of a class, on a loop in a thread of its own; the tests use
    `cluster.sync()` as views do. Handlers see what is committed, so a `TestCase`, which rolls back, is of no use here.

    Example:
        ```python
        class PayTest(ClusterTestCase):
            def test_an_order_is_paid(self) -> None:
                with self.cluster.sync() as c:
                    assert c.call(c.ref(Account, "alice").pay("o-1", 500)) == 500
        ```

    Not promised:
        That a test finds a cluster without traces of the one before: Django empties the tables of models, and no
        others. Use ids of its own in each test.
    """

    cluster: Cluster
    """The cluster of the project."""

    @classmethod
    def setUpClass(cls) -> None:
        """Start the runner."""
        super().setUpClass()
        cls.cluster = cluster = project_cluster()
        with cluster.sync() as c:
            c.disconnect()  # a client that a test of another class has left
        cls.addClassCleanup(loop_thread().run, sync_to_async(connections.close_all, thread_sensitive=True))
        cls.addClassCleanup(loop_thread().run, cluster.stop)  # runs before
        loop_thread().run(cluster.start)
        loop_thread().run(lambda: cluster.ready(timeout=_READY))


def disconnect() -> None:
    """Disconnect this process: before Django drops the database of the tests."""
    with project_cluster().sync() as c:
        c.disconnect()


__all__ = ["ClusterTestCase", "disconnect"]
