"""The methods of `Cluster` without await, for programs without an event loop: `with cluster.sync() as c:`.

Each method does, returns and raises what the method of `Cluster` with its name does. Results are typed as there.
"""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from coterie.interop.loop_thread import require_blocking, require_threads
from coterie.interop.transactional_outbox import WHO
from coterie.interop.user_connection import blocking
from coterie.kernel.context import OpenTransaction, transacting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from coterie.cluster import Cluster
    from coterie.definitions import WorkflowFn
    from coterie.entities.calls.broadcast import Replies
    from coterie.entities.entity import E, Entity
    from coterie.interop.loop_thread import LoopBridge
    from coterie.interop.transactional_outbox import TransactionalOutbox
    from coterie.kernel.durations import Duration
    from coterie.kernel.ids import MessageId, ShardId
    from coterie.kv.store import KeyValueStore
    from coterie.observe.health import Health
    from coterie.storage.contracts.units import UnitStatus
    from coterie.storage.user_transaction import OpenedTransaction
    from coterie.workflows.api import WorkflowHandle
    from coterie.workflows.history import StepInfo

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")
A = TypeVar("A")
P = ParamSpec("P")

_PAGE = 200
"""How many items of an iteration are fetched at once."""


class SyncCluster:
    """A cluster for threads: every method blocks until it has its result.

    Make it with `with cluster.sync() as c:`. A block costs nothing: the connection is shared by all of them, and lives
    until the process ends. Any number of threads may use one block, and each may have its own.

    Promise:
        A call that is interrupted (Ctrl-C, a time limit that raises in this thread) is cancelled. A forked child
        connects anew with its first call; the connections of its parent are not disturbed.

    Raises:
        RuntimeError: An event loop runs in this thread, or gevent has replaced threads, or the block has ended.
    """

    def __init__(self, cluster: Cluster, bridge: LoopBridge, outbox: TransactionalOutbox) -> None:
        self._cluster = cluster
        self._bridge = bridge
        self._outbox = outbox
        self._is_open = False
        self.kv: SyncKeyValueStore[Any] = SyncKeyValueStore(cluster.kv, self)
        """The durable key-value store."""

    def __enter__(self) -> Self:
        require_threads()
        require_blocking()
        self._is_open = True
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_open = False

    def disconnect(self) -> None:
        """Disconnect this process now, for all threads, instead of when it ends. The next call connects anew.

        For tests that drop their database. A cluster that the program itself has started or connected stays so.
        """
        self._bridge.disconnect()

    # Calls

    def ref(self, entity: type[E], id: str, *, timeout: Duration | None = None) -> E:
        """As `Cluster.ref`. Its methods make calls, which `call` and `send` take: `c.call(account.balance())`."""
        return self._cluster.ref(entity, id, timeout=timeout)

    def call(self, call: Awaitable[T], *, timeout: Duration | None = None, key: str | None = None) -> T:
        """Make a call and return its reply: as `Cluster.call`."""
        with _closing(call):
            return self.run(partial(self._cluster.call, call, timeout=timeout, key=key))

    def send(
        self,
        call: Awaitable[T],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
        via: object = None,
    ) -> MessageId[T]:
        """Send a call or job without waiting for its reply: as `Cluster.send`.

        `via` is a connection that blocks, used in this thread; or what `transaction` gave.
        """
        with _closing(call):
            send = partial(self._cluster.send, call, at=at, delay=delay, key=key, priority=priority, tags=tags)
            return self.run(partial(send, via=_here(via)))

    def send_many(
        self,
        calls: Iterable[Awaitable[T]],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
        via: object = None,
    ) -> list[MessageId[T]]:
        """Send many persisted calls or jobs in few commits: as `Cluster.send_many`, `via` as in `send`."""
        many = list(calls)  # made here: their making may block
        with _closing(*many):
            send = partial(self._cluster.send_many, many, at=at, delay=delay, priority=priority, tags=tags)
            return self.run(partial(send, via=_here(via)))

    def result(self, message: MessageId[T], *, timeout: Duration | None = None) -> T:
        """Wait for the reply to a message: as `Cluster.result`."""
        return self.run(partial(self._cluster.result, message, timeout=timeout))

    @contextmanager
    def transaction(self) -> Iterator[SyncTransaction]:
        """Your own SQL, committed at the end of the block with what is sent in it: as `Cluster.transaction`."""
        opened = self.run(self._outbox.opened)
        token = transacting.set(OpenTransaction(WHO, opened))  # calls copy the context of this thread
        try:
            yield SyncTransaction(opened, self)
        except BaseException:
            self.run(opened.rollback)
            raise
        finally:
            transacting.reset(token)
        self.run(partial(self._outbox.commit, opened))

    def cancel(self, message: MessageId[Any]) -> bool:
        """Cancel a message: as `Cluster.cancel`."""
        return self.run(partial(self._cluster.cancel, message))

    def broadcast(
        self, method: Callable[Concatenate[E, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Replies[T]:
        """Call every active entity of a type: as `Cluster.broadcast`."""
        return self.run(lambda: self._cluster.broadcast(method, *args, **kwargs))

    def shard_of(self, entity: type[Entity[Any]] | str, id: str) -> ShardId:
        """The shard of an entity: as `Cluster.shard_of`."""
        return self._cluster.shard_of(entity, id)

    # Workflows and deferreds

    def start_workflow(
        self,
        workflow: WorkflowFn[A, T],
        payload: A,
        *,
        id: str,
        at: datetime | None = None,
        delay: Duration | None = None,
        timeout: Duration | None = None,
        tags: Mapping[str, str] | None = None,
        debounce: Duration | None = None,
        at_latest: datetime | Duration | None = None,
        via: object = None,
        again: bool = False,
    ) -> SyncWorkflowHandle[T]:
        """Start a run, once for each id: as `Cluster.start_workflow`, `via` as in `send`."""
        handle = self.run(
            partial(
                self._cluster.start_workflow,
                workflow,
                payload,
                id=id,
                at=at,
                delay=delay,
                timeout=timeout,
                tags=tags,
                debounce=debounce,
                at_latest=at_latest,
                via=_here(via),
                again=again,
            )
        )
        return SyncWorkflowHandle(handle, self)

    def workflow_handle(self, workflow: WorkflowFn[Any, T], id: str) -> SyncWorkflowHandle[T]:
        """The handle of a run, whether the run exists or not: as `Cluster.workflow_handle`."""
        return SyncWorkflowHandle(self._cluster.workflow_handle(workflow, id), self)

    def resolve(self, token: str, value: object) -> None:
        """Resolve a deferred: as `Cluster.resolve`."""
        self.run(partial(self._cluster.resolve, token, value))

    def reject(self, token: str, error: str) -> None:
        """Reject a deferred: as `Cluster.reject`."""
        self.run(partial(self._cluster.reject, token, error))

    # Maintenance and health

    def reset(self, entity: type[Entity[Any]], id: str) -> int:
        """Retry an entity's stuck messages: as `Cluster.reset`."""
        return self.run(partial(self._cluster.reset, entity, id))

    def next_id(self) -> int:
        """A snowflake id: as `Cluster.next_id`."""
        return self.run(self._cluster.next_id)

    def health(self) -> Health:
        """The health of the cluster: as `Cluster.health`."""
        return self.run(self._cluster.health)

    def shards(self) -> Mapping[ShardId, str | None]:
        """All shards, each with the runner that holds it: as `Cluster.shards`."""
        return self.run(self._cluster.shards)

    def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await `make()` on the event loop of the cluster, for what has no method here.

        Example:
            ```python
            with cluster.sync() as c:
                dead = c.run(lambda: cluster.messages.list(status="dead"))
            ```
        """
        if not self._is_open:
            raise RuntimeError("this `with cluster.sync():` block has ended: open another one, which costs nothing")
        return self._bridge.run(make)


class SyncTransaction:
    """`Transaction` without await: what `with c.transaction() as tx` gives."""

    def __init__(self, opened: OpenedTransaction, cluster: SyncCluster) -> None:
        self.opened = opened
        """For `via=`."""
        self._cluster = cluster

    def execute(self, sql: str, /, *params: Any) -> int:
        """Run a statement. Returns the number of rows it changed."""
        return self._cluster.run(partial(self.opened.execute, sql, *params))

    def fetch(self, sql: str, /, *params: Any) -> Sequence[Mapping[str, Any]]:
        """Run a statement. Returns its rows, by column name."""
        return self._cluster.run(partial(self.opened.fetch, sql, *params))


class SyncKeyValueStore(Generic[V]):
    """`KeyValueStore` without await."""

    def __init__(self, store: KeyValueStore[V], cluster: SyncCluster) -> None:
        self._store = store
        self._cluster = cluster

    def get(self, key: str) -> V | None:
        """Return the value, or None if the key is absent or expired."""
        return self._cluster.run(partial(self._store.get, key))

    def set(self, key: str, value: V, *, ttl: Duration | None = None) -> None:
        """Set the value; with `ttl` it expires after that time, otherwise never."""
        self._cluster.run(partial(self._store.set, key, value, ttl=ttl))

    def remove(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""
        return self._cluster.run(partial(self._store.remove, key))

    def has(self, key: str) -> bool:
        """Whether the key exists."""
        return self._cluster.run(partial(self._store.has, key))

    def is_empty(self) -> bool:
        """Whether the view has no keys."""
        return self._cluster.run(self._store.is_empty)

    def size(self) -> int:
        """Return the number of keys."""
        return self._cluster.run(self._store.size)

    def clear(self) -> int:
        """Remove all keys of this view. Returns the number removed."""
        return self._cluster.run(self._store.clear)

    def modify(self, key: str, fn: Callable[[V | None], V | None], *, ttl: Duration | None = None) -> V | None:
        """Replace the value by `fn(value)`, atomically: as `KeyValueStore.modify`. `fn` runs in the loop's thread."""
        return self._cluster.run(partial(self._store.modify, key, fn, ttl=ttl))

    def items(self) -> Iterator[tuple[str, V]]:
        """Yield keys (without this view's prefix) and values, in key order."""
        items = self._store.items()
        while page := self._cluster.run(partial(_page, items)):
            yield from page

    def prefix(self, prefix: str) -> SyncKeyValueStore[V]:
        """Return a view of the keys that start with `prefix`, named without it."""
        return SyncKeyValueStore(self._store.prefix(prefix), self._cluster)

    def typed(self, type: type[T]) -> SyncKeyValueStore[T]:
        """Return a view with values of one type."""
        return SyncKeyValueStore(self._store.typed(type), self._cluster)


class SyncWorkflowHandle(Generic[T_co]):
    """`WorkflowHandle` without await."""

    def __init__(self, handle: WorkflowHandle[T_co], cluster: SyncCluster) -> None:
        self.id = handle.id
        self.life = handle.life
        self._handle = handle
        self._cluster = cluster

    def result(self, *, timeout: Duration | None = None) -> T_co:
        """Wait for its result: as `WorkflowHandle.result`."""
        return self._cluster.run(lambda: self._handle.result(timeout=timeout))

    def status(self) -> UnitStatus:
        """The status of the run: running, suspended, done, failed, interrupted."""
        return self._cluster.run(self._handle.status)

    def send(self, name: str, value: object, /, *, key: str | None = None) -> None:
        """See `WorkflowHandle.send`."""
        self._cluster.run(lambda: self._handle.send(name, value, key=key))

    def published(self, name: str, type: type[V], /) -> V | None:
        """See `WorkflowHandle.published`."""
        return self._cluster.run(lambda: self._handle.published(name, type))

    def follow(self, name: str, type: type[V], /, *, after: int = 0) -> Iterator[V]:
        """Each value that the run publishes, until it has ended: as `WorkflowHandle.follow`. The thread waits."""
        values = self._handle.follow(name, type, after=after)
        while one := self._cluster.run(partial(_page, values, most=1)):
            yield from one

    def steps(self) -> Sequence[StepInfo]:
        """The steps of the run: as `WorkflowHandle.steps`."""
        return self._cluster.run(self._handle.steps)

    def interrupt(self) -> None:
        """Request that the run end and run its compensations: as `WorkflowHandle.interrupt`."""
        self._cluster.run(self._handle.interrupt)

    def retry(self) -> None:
        """Have a failed run go on: as `WorkflowHandle.retry`."""
        self._cluster.run(self._handle.retry)

    def fork(self, *, before: str, id: str) -> SyncWorkflowHandle[T_co]:
        """Start a new run with the steps before one: as `WorkflowHandle.fork`."""
        handle = self._cluster.run(lambda: self._handle.fork(before=before, id=id))
        return SyncWorkflowHandle(handle, self._cluster)

    def resume(self) -> None:
        """Make a suspended run check now whether it can continue: as `WorkflowHandle.resume`."""
        self._cluster.run(self._handle.resume)

    def __repr__(self) -> str:
        return repr(self._handle)


def _here(via: object) -> object:
    """What `via=` is for the loop: a connection is used in this thread."""
    if via is None:
        return None
    return via.opened if isinstance(via, SyncTransaction) else blocking(via)


@contextmanager
def _closing(*calls: Awaitable[Any]) -> Iterator[None]:
    """Close calls that raised: one that was refused before it was sent needs no warning that it was never awaited."""
    try:
        yield
    except BaseException:
        for call in calls:
            if isinstance(call, Coroutine):
                call.close()
        raise


async def _page(items: AsyncIterator[T], *, most: int = _PAGE) -> list[T]:
    """The next items; none: there are no more."""
    page: list[T] = []
    async for item in items:
        page.append(item)
        if len(page) == most:
            break
    return page
