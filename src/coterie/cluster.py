"""The `Cluster` class: the public API, and the assembly of the packages behind it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from coterie import main
from coterie.client import Runners
from coterie.definitions import Definitions
from coterie.entities.persisted.api import Messages
from coterie.entities.persisted.edit import send_edited
from coterie.entities.reference import address_of
from coterie.kernel import spans
from coterie.kernel.durations import seconds_or_none
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import codec_for
from coterie.kernel.service import State
from coterie.kv.store import KeyValueStore
from coterie.message_bus import MessageBus
from coterie.participant import Participant
from coterie.program import Program
from coterie.runner import Runner
from coterie.settings import Settings, SettingsOverrides
from coterie.singletons.api import Singletons
from coterie.workflows.start_options import start_options

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
    from contextlib import AbstractAsyncContextManager, AbstractContextManager
    from datetime import datetime

    from coterie.cron.api import Crons
    from coterie.definitions import WorkflowFn
    from coterie.entities.calls.broadcast import Replies
    from coterie.entities.entity import E, Entity
    from coterie.interop.sync import SyncCluster
    from coterie.interop.transactional_outbox import TransactionalOutbox
    from coterie.kernel.durations import Duration
    from coterie.kernel.ids import MessageId
    from coterie.main import RunReporter
    from coterie.observe.health import Health
    from coterie.schedules.api import Schedules
    from coterie.settings import Encrypted
    from coterie.tasks.api import Jobs
    from coterie.tasks.pauses import Pauses
    from coterie.tasks.queues import Queues
    from coterie.web.server import HttpServer
    from coterie.work.transaction import Transaction
    from coterie.workflows.api import WorkflowHandle, Workflows

T = TypeVar("T")
P = ParamSpec("P")
A = TypeVar("A")


class Cluster(Definitions):
    """A cluster as this program sees it: its settings, its definitions, and one running runner or client.

    Args:
        url: `sqlite:///file.db`, `sqlite://` (memory, one process) or `postgresql://…`. Without it COTERIE_URL,
            without that the file `./coterie.db`.
        name: Several clusters may share a database under different names.
        settings: Ready-made settings; the other arguments override them.
        payloads: The keys that encrypt what this program stores; the same as the settings that begin with `payload_`.
        overrides: Any other setting by name.

    Definitions that are invalid raise a `ConfigurationError` that says what to write instead, when they are made.

    Example:
        ```python
        cluster = Cluster()
        async with cluster.connect():
            await cluster.kv.set("greeting", "hello")
        ```
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        payloads: Encrypted | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        given: dict[str, Any] = {**overrides} if payloads is None else {**overrides, **payloads.settings}
        given |= {key: value for key, value in (("url", url), ("name", name)) if value is not None}
        self.settings = Settings.load(given) if settings is None else settings.but(**given)
        self._participant = Participant(self.settings.name)
        self._acting = acting = self._participant.acting
        self._writing = writing = self._participant.writing
        self._program = Program(self, acting, lambda *what, **how: self._bus.start_run(*what, **how))
        self._bus: MessageBus = MessageBus(self._program, self._participant, lambda: self._outbox)
        self.kv: KeyValueStore[Any] = KeyValueStore(
            lambda: acting().values, codec_for(Any), claim=self._participant.claim
        )
        self.runners = Runners(acting, writing)
        self.messages = Messages(
            lambda: acting().storage.messages,
            hint=lambda seat: acting().calling.persisted.hint(seat),
            writing=writing,
            resend=lambda dead, arguments: send_edited(
                acting(), dead, arguments, within_s=self.settings.call_timeout.total_seconds()
            ),
        )
        self.singletons = Singletons(
            acting,
            self._program.singletons.known,
            heartbeat_s=self.settings.heartbeat.total_seconds(),
            staleness=self.settings.staleness,
            writing=writing,
        )

    @cached_property
    def crons(self) -> Crons:
        """The crons of the cluster: list, pause, resume and run them."""
        from coterie.cron.api import Crons

        return Crons(self._acting, lambda: self._program.crons.known, writing=self._writing)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules that are made at run time: put, list, pause, resume, preview and remove them."""
        from coterie.schedules.api import Schedules

        program = self._program
        return Schedules(
            self._acting,
            program.entities,
            writing=self._writing,
            has_task=lambda task: program.tasks.known.get(task.name) is task,
        )

    @cached_property
    def jobs(self) -> Jobs:
        """The jobs of tasks: list, show, cancel, retry, edit and purge them."""
        from coterie.tasks.api import Jobs

        program = self._program
        return Jobs(self._acting, self._writing, lambda: program.tasks)

    @cached_property
    def queues(self) -> Queues:
        """The queues of tasks: list, pause and resume them, change their limits."""
        from coterie.tasks.queues import Queues

        return Queues(self._acting, self._writing)

    @cached_property
    def tasks(self) -> Pauses:
        """Pause and resume tasks, whatever their queues."""
        from coterie.tasks.pauses import Pauses

        return Pauses("task", self._acting, self._writing)

    @cached_property
    def entities(self) -> Pauses:
        """Pause and resume the persisted messages of entity types."""
        from coterie.tasks.pauses import Pauses

        return Pauses("entity", self._acting, self._writing)

    @cached_property
    def groups(self) -> Pauses:
        """Pause and resume the jobs and persisted messages of groups."""
        from coterie.tasks.pauses import Pauses

        return Pauses("group", self._acting, self._writing)

    @cached_property
    def workflows(self) -> Workflows:
        """The workflow runs of the cluster."""
        from coterie.workflows.api import Workflows

        return Workflows(self._acting)

    @cached_property
    def _outbox(self) -> TransactionalOutbox:
        from coterie.interop.transactional_outbox import TransactionalOutbox

        return TransactionalOutbox(self._participant, self._program.entities)

    # Lifecycle

    def run(self, *, wait: bool = True) -> None:
        """Run as a runner until SIGTERM or Ctrl-C, then drain, hand over and leave. A second signal exits at once.

        Probes, health and metrics are served at `http_listen` from before the runner starts until after it has left.

        Args:
            wait: Whether to wait for a database server that cannot be reached yet, instead of raising.

        Raises:
            ConfigurationError: The runner does not fit the cluster: shared settings, addresses, the database.
            PersistenceError: The database refuses this process, or cannot be reached and `wait` is false.

        Promise:
            The process exits within `drain` and some seconds after the first signal, whatever hangs; with exit
            code 0 if all seats were released.
        """
        self._run(wait=wait)

    def _run(self, *, reporter: RunReporter | None = None, number: int = 1, wait: bool = True) -> None:
        """As `run`, for `coterie run`: with a reporter, and the number of this process among the workers."""

        def serve() -> HttpServer:
            from coterie import web  # Starlette and uvicorn: only processes that serve load them
            from coterie.web.server import HttpServer

            running = self._participant.present()
            supervisor = None if running is None else running.supervisor
            return HttpServer(web.app(self), self.settings, number=number, supervisor=supervisor)

        beside = None if self.settings.http_listen is None else serve
        main.run(self._begin, self.settings, beside=beside, reporter=reporter, wait=wait)

    def _begin(self) -> Runner:
        """Make a runner, through which everything acts that its start sets going in this context."""
        made = self._participant.bind(lambda: self._program.new_runner(self.settings))
        self._participant.enter(made)
        return made

    async def start(self) -> None:
        """Start a runner: on return it is registered and about to take its seats (`ready` waits for those).

        Raises:
            ConfigurationError: The runner does not fit the cluster: shared settings, addresses, the database.
            PersistenceError: The database cannot be reached.
            RuntimeError: This cluster is already running.
        """
        with self._participant.entering():
            await self._begin().start()

    async def stop(self) -> None:
        """Drain, hand over and leave, within `drain` and some seconds. Does nothing if the cluster is not running."""
        running = self._participant.present()
        if running is None:
            return
        running.origin.require_same_loop()
        if not isinstance(running, Runner):
            raise RuntimeError(  # noqa: TRY004 no argument is wrong
                f"{running.what} is connected as a client, which ends with its `async with cluster.connect():` block"
            )
        await running.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Self]:
        """Connect as a client, which sends but owns nothing. Creates the schema in an empty database."""
        with self._participant.bound(lambda: self._program.new_client(self.settings)) as client:
            async with client:
                yield self

    @asynccontextmanager
    async def lifespan(self, app: Any, /) -> AsyncIterator[None]:
        """Run as a runner for the lifetime of a web application: `FastAPI(lifespan=cluster.lifespan)`."""
        del app
        async with self:
            yield

    @asynccontextmanager
    async def client_lifespan(self, app: Any, /) -> AsyncIterator[None]:
        """The same as a client, for a web application that only calls and sends."""
        del app
        async with self.connect():
            yield

    def sync(self) -> AbstractContextManager[SyncCluster]:
        """This cluster without await, for threads: Flask, Django, Celery, scripts. Connects with the first call.

        Example:
            ```python
            with cluster.sync() as c:
                cents = c.call(c.ref(Account, "alice").balance())
            ```

        Raises:
            RuntimeError: An event loop runs in this thread, or gevent has replaced threads.
        """
        from coterie.interop.loop_thread import LoopBridge
        from coterie.interop.sync import SyncCluster

        bridge = LoopBridge(self._participant, lambda: self._program.new_client(self.settings))
        return SyncCluster(self, bridge, self._outbox)

    async def ready(self, *, timeout: Duration | None = None) -> None:
        """Return when this runner has taken its share: every shard of its groups is held by a runner that is alive.

        It does not wait for a balance: shards that others are to hand over move later. A runner that was evicted is
        ready again when its next life is. A client is ready at once.

        Raises:
            NotReady: It took longer than `timeout`; the error says what is missing. None: wait without limit.
            NotStarted: `start` has not been called.
        """
        within_s = seconds_or_none(timeout, what="timeout")
        await self._acting().ready(within_s=within_s)

    @property
    def is_shutting_down(self) -> bool:
        """Whether this runner or client is stopping or has stopped. Use it to end your own loops."""
        running = self._participant.present()
        return running is not None and running.state in (State.STOPPING, State.STOPPED)

    # Calls

    def ref(self, entity: type[E], id: str, *, timeout: Duration | None = None) -> E:
        """A reference to an entity, typed as the entity. Nothing is sent before one of its methods is called.

        Args:
            entity: Its class, defined with `cluster.entity`.
            id: The id of the entity, any text; the entity is activated by its first call.
            timeout: How long its calls wait. Overrides the timeouts of the rpcs and the setting `call_timeout`.
        """
        timeout_s = seconds_or_none(timeout, what="timeout")
        return self._program.entities.ref(entity, id, timeout_s=timeout_s)

    async def call(self, call: Awaitable[T], *, timeout: Duration | None = None, key: str | None = None) -> T:
        """Await a call with options for this call only: `await cluster.call(account.charge(7), timeout="1s")`.

        Args:
            call: What a method of a reference returned, or `job` of a task.
            timeout: How long to wait for the reply.
            key: Idempotency key: calls with the same key are one call. Persisted rpcs and jobs only.

        Raises:
            TypeError: The argument is neither call nor job, or has a key and is not persisted.
        """
        result: T = await self._bus.call(call, timeout=timeout, key=key)
        return result

    async def send(
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
        """Send a call or job without waiting for its reply: `await cluster.send(account.charge("order-7", 500))`.

        A persisted call or job is stored when this returns; `result` waits for its reply. Inside a handler or job it is
        stored atomically with what that does, and runs after that commit. A volatile call has been accepted by a runner
        when this returns, and may be lost with that runner. Options but `priority` are for persisted rpcs and jobs.

        Args:
            call: What a method of a reference returned, or `job` of a task.
            at: When it is to run: an instant with a time zone, by the database's clock.
            delay: The same, relative to now.
            key: Idempotency key: sends with the same key are one message.
            priority: Of a job, instead of that of its task: from -100 to 100, higher ones run first.
            tags: Names and values by which `cluster.messages.list(tag=…)` finds it; they are stored as they are, also
                where payloads are encrypted.
            via: Your own connection, session or transaction: the message is stored by it, and runs when it commits,
                or never.

        Raises:
            TypeError: The argument is neither call nor job; or it has an option that is not for it; or `via` is nothing
                that can store a message.
            InvalidArgument: The priority is out of range; or `via` would commit by itself, or is a connection to
                another database; or there are too many tags, or one is too long.
            KeyConflict: The key was used before with other arguments.
            PersistenceError: The message could not be stored.
        """
        return await self._bus.send(call, at=at, delay=delay, key=key, priority=priority, tags=tags, via=via)

    async def send_many(
        self,
        calls: Iterable[Awaitable[T]],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        tags: Mapping[str, str] | None = None,
        via: object = None,
    ) -> list[MessageId[T]]:
        """Send many persisted calls or jobs in few commits: `await cluster.send_many(a.deposit(o, 5) for o in orders)`.

        Inside a handler or job all of them are stored with its commit, else hundreds with each commit (a thousand if
        they are jobs), in order. Keys are those of the rpcs and tasks.

        Args:
            calls: What methods of references returned, or `job` of tasks. All are checked before the first is stored.
            at: When they are to run: as in `send`.
            delay: The same, relative to now.
            priority: As in `send`.
            tags: As in `send`: each of them has these.
            via: As in `send`: all of them are in that one commit.

        Returns:
            The ids, in the order of the calls.

        Raises:
            TypeError: One of them is neither a job nor a call of a persisted rpc; nothing is stored.
            KeyConflict: A key was used before with other arguments. `error.stored` has the ids of the messages that are
                stored: all that come before it and some that come after.
            PersistenceError: Some could not be stored. `error.stored` has the ids of those that are for sure.
        """
        return await self._bus.send_many(calls, at=at, delay=delay, priority=priority, tags=tags, via=via)

    async def result(self, message: MessageId[T], *, timeout: Duration | None = None) -> T:
        """Wait for the reply to a message or job that was sent. Raises what the handler raised.

        Raises:
            SendTimeout: It took longer than `timeout` (None: the setting `call_timeout`). The message is kept.
            MessageDead: Its attempts are used up.
            MessageCancelled: It was cancelled.
            MessageExpired: It is no longer stored, or never was.
            NotCommitted: It was sent with `via=`, in a transaction that is still open.
        """
        result: T = await self._bus.result(message, timeout=timeout)
        return result

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Your own SQL, with `$1` parameters, committed at the end of the block with what is sent in it.

        For programs around the cluster. In work of the cluster use the transaction of that: `self`, `leader`, `tick`.

        Example:
            ```python
            async with cluster.transaction() as tx:
                await tx.execute("insert into orders (id, cents) values ($1, $2)", "order-7", 500)
                await cluster.send(account.charge("order-7", 500), via=tx)
            ```

        Raises:
            PersistenceError: The database refused a statement or the commit. Nothing is written, unless its outcome is
                "unknown".
            TransactionTimeout: It took longer than the setting `transaction_limit`. Nothing is written.
        """
        return self._outbox.transaction()

    async def cancel(self, message: MessageId[Any]) -> bool:
        """Cancel a message; false if it has started or ended, or does not exist.

        A job is cancelled also while it runs: from then on nothing of it commits, its body is cancelled, and `result`
        raises `MessageCancelled`.
        """
        return await self._bus.cancel(message)

    async def broadcast(
        self, method: Callable[Concatenate[E, P], Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Replies[T]:
        """Call every active entity of a type, on all runners: `await cluster.broadcast(Account.refresh)`.

        Promise:
            It ends within the rpc's timeout. Runners that did not reply by then are named in the result.

        Not promised:
            Entities that are activated or moved meanwhile may be missed.

        Raises:
            TypeError: The method is no rpc of this cluster's entities, or is a stream; or the arguments do not fit.
            MalformedMessage: An argument does not fit its annotation.
            PersistenceError: The list of runners could not be read.
        """
        return await self._program.entities.broadcast(method, args, kwargs)

    def is_local(self, ref: Entity[Any]) -> bool:
        """Whether this runner holds the shard of an entity just now: the entity is, or would be, active here."""
        address, here = address_of(ref), self._acting()
        seat = Seat.shard(self.shard_of(address.type, address.id))
        tenure = here.tenure(seat) if isinstance(here, Runner) else None
        found = tenure is not None and tenure.held
        if spans.on:
            with spans.span("cluster.is_local", {"coterie.entity_type": address.type, "coterie.entity_id": address.id}):
                spans.note("coterie.is_local", str(found).lower())
        return found

    def shard_of(self, entity: type[Entity[Any]] | str, id: str) -> ShardId:
        """The shard of an entity, given its class or its name. A pure function: no I/O."""
        entity_type = self._program.entities.named(entity)
        return ShardId(entity_type.group, shard_number(entity_type.name, id, self.settings.shards))

    # Workflows and deferreds

    async def start_workflow(
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
    ) -> WorkflowHandle[T]:
        """Start a run, once for each id: later calls return the handle of the existing run.

        If the current work has a transaction open, the run is part of its commit: stored with it, or not at all.

        Args:
            workflow: A function defined with `cluster.workflow`.
            payload: The argument of the function.
            id: The id of the run: an order number, for instance.
            at: When it begins: an instant with a time zone. One that is past is now.
            delay: It begins so long after now.
            timeout: It is interrupted so long after it has begun, and undoes what it has done.
            tags: By which it is found: `{"order": "7"}`. In the page, the CLI and `workflows.list`.
            debounce: It begins when no start with this id has come for so long: another one puts it off and replaces
                its payload. Of a run that has begun, payload and time are kept as its next life, replaced likewise;
                of one that is over, a new life begins.
            at_latest: Debounced starts put it off no further than this instant, or so long after the first of them.
            via: As in `send`: the run begins when that commits, or never.
            again: If the run of this id is over, begin another life of it with this payload; not in a transaction.

        Raises:
            KeyConflict: A run of this id exists with another payload. Not with `debounce`.
            RuntimeError: `again` is asked for inside of a transaction, or `debounce` with your own connection.
        """
        options = start_options(
            again=again, at=at, delay=delay, timeout=timeout, tags=tags, debounce=debounce, at_latest=at_latest
        )
        return await self._bus.start(workflow, payload, id, via=via, options=options)

    def workflow_handle(self, workflow: WorkflowFn[Any, T], id: str) -> WorkflowHandle[T]:
        """The handle of a run, whether the run exists or not. No I/O."""
        return self._bus.workflow_handle(workflow, id)

    async def resolve(self, token: str, value: object) -> None:
        """Resolve a deferred with a value, from any process. The first value wins.

        Raises:
            AlreadyResolved: The deferred has a value already, or its work is over.
            WorkflowError: The token is not one of this cluster.
        """
        from coterie.workflows.api import settle

        await settle(self._writing("cluster.resolve"), token, value=value)

    async def reject(self, token: str, error: str) -> None:
        """Reject a deferred, from any process: its waiter gets a `DeferredRejected`. See `resolve`."""
        from coterie.workflows.api import settle

        await settle(self._writing("cluster.reject"), token, error=error)

    # Maintenance and health

    async def poll_storage(self) -> None:
        """Poll now for pending messages of this runner's shards; return when all of them have been seen (K6)."""
        host = self._acting().calling.host
        if host is not None and host.poller is not None:
            await host.poller.poll()

    async def reset(self, entity: type[Entity[Any]], id: str) -> int:
        """Retry an entity's stuck messages: dead ones, and those that wait for another attempt (K6).

        Does not touch the entity's state.

        Returns:
            The number of dead messages revived.
        """
        self._writing("cluster.reset")
        return await self._program.entities.reset(entity, id)

    async def next_id(self) -> int:
        """A snowflake id: 64 bits, unique in the cluster, later ones are larger (`Snowflake` splits it) [K2].

        The first call leases a machine id, for clients too [M15].
        """
        return await self._writing("cluster.next_id").ids.take()

    async def health(self) -> Health:
        """The health of the cluster: healthy, degraded or unhealthy, with reasons. For runners and clients.

        Example:
            ```python
            health = await cluster.health()
            for reason in health.reasons:
                print(reason, reason.hint)
            ```

        Promise:
            A singleton or cron that makes no progress for twice its interval is named, whichever process asks (H1). A
            runner that does not reply within half a second counts as silent, never as idle.

        Raises:
            PersistenceError: The database cannot be read, so the health is unknown.
        """
        return await self._acting().collector.health()

    async def shards(self) -> Mapping[ShardId, str | None]:
        """All shards, each with the name of the runner that holds it just now, or None."""
        return await self._acting().shards()
