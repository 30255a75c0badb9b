"""The `Cluster` class: the public API. Assembles the packages and chooses the engines."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar, Unpack, cast, overload

from coterie import main
from coterie.client import Client, ClientParts, system_doors
from coterie.entities.persisted.api import Messages
from coterie.entities.persisted.outcome import refuse_commit_of_its_own, transaction_here
from coterie.entities.reference import address_of, require_call
from coterie.entities.registry import EntityRegistry
from coterie.errors import Forked, NotStarted
from coterie.kernel import spans
from coterie.kernel.durations import seconds_or_none, to_seconds
from coterie.kernel.ids import Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import codec_for
from coterie.kernel.service import State
from coterie.kv.store import KeyValueStore, claim_here
from coterie.runner import Runner, no_occupants
from coterie.settings import Settings, SettingsOverrides
from coterie.singletons.api import Singletons
from coterie.singletons.registry import SingletonRegistry
from coterie.work.definition import refusal, require_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
    from datetime import datetime

    from coterie.cron.api import Crons
    from coterie.cron.decide import CatchUp, Overlap
    from coterie.cron.definition import CronOptions
    from coterie.cron.registry import CronRegistry
    from coterie.cron.tick import Tick
    from coterie.entities.calls.broadcast import Replies
    from coterie.entities.definition import EntityOptions
    from coterie.entities.entity import E, Entity
    from coterie.kernel.durations import Duration
    from coterie.kernel.ids import EntityAddress, MessageId
    from coterie.kernel.retry import Breaker, Retry
    from coterie.kernel.serialization.versions import Migrations
    from coterie.main import RunReporter
    from coterie.observe.health import Health
    from coterie.ownership.admission import Definition
    from coterie.ownership.seats import Occupy
    from coterie.runner import Workplace
    from coterie.setup import Setup
    from coterie.singletons.definition import SingletonOptions
    from coterie.singletons.leader import Leader
    from coterie.storage.contracts.units import UnitStartResult
    from coterie.storage.interface import Claim, RunnerRow
    from coterie.web.server import HttpServer
    from coterie.workflows.api import WorkflowHandle, Workflows
    from coterie.workflows.definition import WorkflowOptions
    from coterie.workflows.registry import WorkflowRegistry
    from coterie.workflows.workflow import Workflow

C = TypeVar("C", bound=Client)
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")
A = TypeVar("A")

if TYPE_CHECKING:
    WorkflowFn: TypeAlias = Callable[[Workflow, A], Coroutine[Any, Any, T]]

acting: ContextVar[tuple[Cluster, Client] | None] = ContextVar("coterie_acting", default=None)
"""The runner or client through which a cluster's methods act inside work, so that runners can share one `Cluster`."""

_STOPPED = State.STOPPED  # read by each call: looking up an enum member takes longer


class Cluster:
    """A cluster as this program sees it: its settings, its definitions, and one running runner or client.

    Args:
        url: `sqlite:///file.db`, `sqlite://` (memory, one process) or `postgresql://…`. Without it COTERIE_URL,
            without that the file `./coterie.db`.
        name: Several clusters may share a database under different names.
        settings: Ready-made settings; the other arguments override them.
        overrides: Any other setting by name.

    Example:
        ```python
        cluster = Cluster()
        async with cluster.connect():
            await cluster.kv.set("greeting", "hello")
        ```
    """

    kv: KeyValueStore[Any]
    messages: Messages
    runners: Runners
    singletons: Singletons

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        settings: Settings | None = None,
        **overrides: Unpack[SettingsOverrides],
    ) -> None:
        given: dict[str, Any] = {**overrides}
        given |= {key: value for key, value in (("url", url), ("name", name)) if value is not None}
        self.settings = Settings.load(given) if settings is None else settings.but(**given)
        self.kv = KeyValueStore(lambda: self._acting().values, codec_for(Any), claim=self._claim)
        self.runners = Runners(self._acting, self._writing)
        self.messages = Messages(
            lambda: self._acting().storage.messages,
            hint=lambda seat: self._acting().calling.posting.hint(seat),
            writing=self._writing,
        )
        self._entities = EntityRegistry(self, self._acting)
        self._singletons = SingletonRegistry(self)
        heartbeat_s = self.settings.heartbeat.total_seconds()
        self.singletons = Singletons(
            self._acting,
            self._singletons.known,
            heartbeat_s=heartbeat_s,
            staleness=self.settings.staleness,
            writing=self._writing,
        )
        self._setups: list[Setup] = []
        self._running: Client | None = None
        self._runners: list[Runner] = []

    @cached_property
    def _cron_room(self) -> CronRegistry:
        from coterie.cron.registry import CronRegistry  # zones and calendars: only programs that have crons load them

        return CronRegistry(self)

    @cached_property
    def crons(self) -> Crons:
        """The crons of the cluster: list, pause, resume and run them."""
        from coterie.cron.api import Crons

        return Crons(self._acting, lambda: self._cron_room.known, writing=self._writing)

    @cached_property
    def _workflow_room(self) -> WorkflowRegistry:
        from coterie.workflows.registry import WorkflowRegistry

        return WorkflowRegistry(self, self._start_workflow)

    @cached_property
    def workflows(self) -> Workflows:
        """The workflow runs of the cluster."""
        from coterie.workflows.api import Workflows

        return Workflows(self._acting)

    # Definitions

    @overload
    def entity(self, cls: type[E], /) -> type[E]: ...
    @overload
    def entity(self, /, **options: Unpack[EntityOptions]) -> Callable[[type[E]], type[E]]: ...
    def entity(self, cls: Any = None, /, **options: Any) -> Any:
        """Define an entity: a class whose rpcs any process may call by id. Works with and without parentheses.

        Example:
            ```python
            @cluster.entity(max_idle="10m")
            class Account(Entity[Balance]):
                @rpc
                async def balance(self) -> int:
                    return self.state.cents
            ```

        Args:
            cls: The class. It is returned unchanged, and may be an entity of several clusters.
            options: By name:
                name: Its name in the cluster and in the database. Default: the name of the class.
                group: The shard group whose runners serve it.
                mailbox: How many calls of one entity may wait. 1000: seconds of work, not minutes of silence.
                concurrency: How many calls of one entity run at once. With 1, a handler has exclusive use of the state.
                max_idle: An entity without calls for this long is deactivated.
                retry: How often and when a crashed handler, or an activation, is retried.
                version: The version of its state.
                migrations: Functions from each earlier version of the state to the next.

        Raises:
            ConfigurationError: The class or an option is invalid; the error names it and what to write instead.
        """
        if cls is None:
            return lambda cls: self._add_entity(cls, options)
        return self._add_entity(cls, options)

    def _add_entity(self, cls: Any, options: Any) -> Any:
        self._entities.add(cls, options)
        return cls

    @overload
    def singleton(
        self,
        name: str,
        *,
        state: type[R] | Callable[[], R],
        group: str = ...,
        every: Duration | None = ...,
        ttl: Duration | None = ...,
        version: int = ...,
        migrations: Migrations | None = ...,
        expected_interval: Duration | None = ...,
        retry: Retry | None = ...,
        takeover_delay: Duration | None = ...,
        on_become_leader: Callable[[Leader[R]], Awaitable[None]] | None = ...,
        on_lose_leadership: Callable[[Leader[R]], Awaitable[None]] | None = ...,
    ) -> Callable[
        [Callable[[Leader[R]], Coroutine[Any, Any, None]]], Callable[[Leader[R]], Coroutine[Any, Any, None]]
    ]: ...
    @overload
    def singleton(
        self,
        name: str,
        *,
        state: None = ...,
        group: str = ...,
        every: Duration | None = ...,
        expected_interval: Duration | None = ...,
        retry: Retry | None = ...,
        takeover_delay: Duration | None = ...,
        on_become_leader: Callable[[Leader[None]], Awaitable[None]] | None = ...,
        on_lose_leadership: Callable[[Leader[None]], Awaitable[None]] | None = ...,
    ) -> Callable[
        [Callable[[Leader[None]], Coroutine[Any, Any, None]]], Callable[[Leader[None]], Coroutine[Any, Any, None]]
    ]: ...
    def singleton(self, name: str, **options: Any) -> Any:
        """Define a singleton: a function that one runner of the cluster runs at a time, with state that outlives it.

        Example:
            ```python
            @cluster.singleton("importer", state=Progress)
            async def importer(leader: Leader[Progress]) -> None:
                while True:
                    async with leader.update() as state:
                        state.last_id += 1
                    await leader.sleep("1s")
            ```

        Args:
            name: Its name in the cluster; its state is stored under it.
            options: By name:
                state: The class of its state, or a function that makes the initial state. Default: no state.
                group: The group whose runners may lead it.
                every: Run the body repeatedly at this interval, from start to start. Default: it runs for as long as it
                    likes.
                ttl: The stored state is deleted after this long without a save.
                version: The version of its state.
                migrations: Functions from each earlier version of the state to the next.
                expected_interval: How often progress is expected. Default: `every`.
                retry: Retry policy for a body that raises; once used up, another runner leads. Default: retry for ever.
                takeover_delay: How long to wait after a leader was lost without deregistering: gives effects that
                    cannot be fenced time to end.
                on_become_leader: Awaited before the body of each leadership; if it fails, another runner leads.
                on_lose_leadership: Awaited after the body, also when the lease is lost and when the runner stops.

        Raises:
            ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
        """

        def add(body: Any) -> Any:
            self._singletons.add(name, body, cast("SingletonOptions", options))
            self._define(self._singletons, self._singletons.known[name].definition)
            return body

        require_name(name, kind="singleton")  # checked now: without the parentheses `add` is never called
        return add

    def cron(
        self,
        name: str,
        schedule: str,
        *,
        timezone: str = "UTC",
        group: str = "default",
        skip_if_older_than: Duration | None = "1d",
        catch_up: CatchUp = "latest",
        overlap: Overlap = "allow",
        from_previous: bool = False,
        jitter: Duration | None = None,
        timeout: Duration | None = None,
        retry: Retry | None = None,
        breaker: Breaker | None = None,
        takeover_delay: Duration | None = None,
    ) -> Callable[[Callable[[Tick], Coroutine[Any, Any, None]]], Callable[[Tick], Coroutine[Any, Any, None]]]:
        """Define a cron: a function that runs on a schedule, once for each tick in the whole cluster.

        Example:
            ```python
            @cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich")
            async def nightly(tick: Tick) -> None:
                print("report for", tick.scheduled_at)
            ```

        Args:
            name: Its name in the cluster; its history is stored under it.
            schedule: Five fields, or six with seconds first; `@daily` and the like; `@every 90s`.
            timezone: The time zone of the schedule.
            group: The group whose runners may run it.
            skip_if_older_than: A tick that could not run for longer than this is skipped. None: no tick is skipped.
            catch_up: Which ticks run of those that were missed while no runner held the cron: `latest`, `all` (at most
                100) or `none`.
            overlap: What happens to a tick while an earlier run is in progress: `allow` runs it concurrently, `skip`
                drops it, `queue` makes it wait (at most one).
            from_previous: Whether the next tick is the one after the previous tick, however late that ran; otherwise
                the newest that is due.
            jitter: Delays ticks by up to this long, always by the same time for one name: it spreads crons over time.
            timeout: How long a run may take. None: no limit.
            retry: Retry policy for a run that raises. None: it is not retried.
            breaker: After how many failures in a row ticks are skipped, and for how long. None: never.
            takeover_delay: How long to wait after a runner was lost without deregistering: gives effects that cannot
                be fenced time to end.

        Raises:
            ScheduleError: The schedule or its time zone cannot be parsed; the error shows the position.
            ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
        """
        options: CronOptions = {
            "timezone": timezone,
            "group": group,
            "skip_if_older_than": skip_if_older_than,
            "catch_up": catch_up,
            "overlap": overlap,
            "from_previous": from_previous,
            "jitter": jitter,
            "timeout": timeout,
            "retry": retry,
            "breaker": breaker,
            "takeover_delay": takeover_delay,
        }

        def add(body: Any) -> Any:
            self._cron_room.add(name, schedule, body, options)
            self._define(self._cron_room, self._cron_room.known[name].definition)
            return body

        require_name(name, kind="cron")  # checked now: without the parentheses `add` is never called
        return add

    @overload
    def workflow(self, fn: WorkflowFn[A, T], /) -> WorkflowFn[A, T]: ...
    @overload
    def workflow(
        self, /, *, name: str | None = ..., group: str = ..., retry: Retry | None = ...
    ) -> Callable[[WorkflowFn[A, T]], WorkflowFn[A, T]]: ...
    def workflow(self, fn: Any = None, /, **options: Any) -> Any:
        """Define a workflow: a function whose steps are stored, so that another runner can continue it after a crash.

        Example:
            ```python
            @cluster.workflow
            async def checkout(workflow: Workflow, order: Order) -> str:
                payment = await workflow.step("charge", charge, order)
                await workflow.sleep("7d", name="time to return it")
                return await workflow.step("ship", ship, order, payment)
            ```

        Args:
            fn: An async function of two arguments: the `Workflow`, and its payload.
            options: By name:
                name: Its name in the cluster. Default: the name of the function.
                group: The shard group whose runners run it.
                retry: Retry policy for steps that raise. Default: no retries.

        Raises:
            ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
        """

        def add(fn: Any) -> Any:
            self._workflow_room.add(fn, cast("WorkflowOptions", options))
            self._define(self._workflow_room)
            return fn

        return add if fn is None else add(fn)

    def setup(self, fn: Setup, /) -> Setup:
        """Open resources for handlers (a pool, a client): before the runner takes its first seat, until after its last.

        The context managers are opened in the order of their definition and closed in reverse order, each in the
        task that opened it. Clients open none of them.

        Example:
            ```python
            @cluster.setup
            @asynccontextmanager
            async def http() -> AsyncIterator[None]:
                async with httpx.AsyncClient() as app.http:
                    yield
            ```
        """
        if any(each.state is not State.STOPPED for each in self._own_runners()):
            raise refusal(
                f"setup of {getattr(fn, '__name__', fn)!r} comes after the start, when setups are open already",
                hint="move it before the start, into the module that makes the cluster",
            )
        self._setups.append(fn)
        return fn

    def _define(self, room: Workplace, definition: Definition | None = None) -> None:
        """Pass a definition to runners that are already running, so that they take its seat."""
        for runner in self._own_runners():
            runner.define(room, definition)

    def _own_runners(self) -> list[Runner]:
        """The runners of this cluster in this process that have not stopped."""
        self._runners = [
            each for each in self._runners if each.state is not State.STOPPED and _is_of_this_process(each)
        ]
        return self._runners

    # Lifecycle

    def run(self, *, teller: RunReporter | None = None, number: int = 1, wait: bool = True) -> None:
        """Run as a runner until SIGTERM or Ctrl-C, then drain, hand over and leave. A second signal exits at once.

        Probes, health and metrics are served at `http_listen` from before the runner starts until after it has left.

        Args:
            teller: Reports what happens. Default: the log.
            number: The number of this process among several that share their settings: all but the first serve probes
                at the next free ports.
            wait: Whether to wait for a database server that cannot be reached yet, instead of raising.

        Raises:
            ConfigurationError: The runner does not fit the cluster: shared settings, addresses, the database.
            PersistenceError: The database refuses this process, or cannot be reached and `wait` is false.

        Promise:
            The process exits within `drain` and some seconds after the first signal, whatever hangs; with exit
            code 0 if all seats were released.
        """

        def serving() -> HttpServer:
            from coterie import web  # Starlette and uvicorn: only processes that serve load them
            from coterie.web.server import HttpServer

            running = self._present()
            supervisor = None if running is None else running.supervisor
            return HttpServer(web.app(self), self.settings, number=number, supervisor=supervisor)

        beside = None if self.settings.http_listen is None else serving
        main.run(self._begin, self.settings, beside=beside, teller=teller, wait=wait)

    def defined(self) -> Mapping[str, Sequence[str]]:
        """The names of all definitions of this program so far, by kind: entity, singleton, cron, workflow."""
        found: dict[str, Sequence[str]] = {"entity": sorted(self._entities.types)}
        rooms = {"singleton": "_singletons", "cron": "_cron_room", "workflow": "_workflow_room"}
        return found | {kind: sorted(vars(self)[room].known) for kind, room in rooms.items() if room in vars(self)}

    async def start(self) -> None:
        """Start a runner: on return it is registered and about to take its seats (`ready` waits for those).

        Raises:
            ConfigurationError: The runner does not fit the cluster: shared settings, addresses, the database.
            PersistenceError: The database cannot be reached.
            RuntimeError: This cluster is already running.
        """
        before = acting.get()
        try:
            await self._begin().start()
        finally:
            acting.set(before)

    async def stop(self) -> None:
        """Drain, hand over and leave, within `drain` and some seconds. Does nothing if the cluster is not running."""
        running = self._present()
        if running is None:
            return
        running.origin.require_same()
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
        connection = self._take(lambda: Client(self.settings, system_doors(self.settings)))
        with self._holding(connection):
            async with connection:
                yield self

    @asynccontextmanager
    async def lifespan(self, app: Any, /) -> AsyncIterator[None]:
        """Run as a runner for the lifetime of a web application: `FastAPI(lifespan=cluster.lifespan)`."""
        del app
        async with self:
            yield

    async def ready(self, *, timeout: Duration | None = None) -> None:
        """Return when the seats have settled for the first time: this runner holds all free seats assigned to it.

        Raises:
            NotReady: It took longer than `timeout`; the error says what is missing. None: wait without limit.
            NotStarted: `start` has not been called.
        """
        within_s = seconds_or_none(timeout, what="timeout")
        await self._acting().ready(within_s=within_s)

    @property
    def is_shutting_down(self) -> bool:
        """Whether this runner or client is stopping or has stopped. Use it to end your own loops."""
        running = self._present()
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
        return self._entities.ref(entity, id, timeout_s=timeout_s)

    async def call(self, call: Awaitable[T], *, timeout: Duration | None = None, key: str | None = None) -> T:
        """Await a call with options for this call only: `await cluster.call(account.charge(7), timeout="1s")`.

        Args:
            call: What a method of a reference returned.
            timeout: How long to wait for the reply.
            key: Idempotency key: calls with the same key are one call. Persisted rpcs only.

        Raises:
            TypeError: The argument is not a call, or has a key and is not persisted.
        """
        taken = require_call(call, what="cluster.call")
        if key is not None and not taken.rpc.persisted:
            raise TypeError(f"{taken!r} is not persisted, and has no key: keys are kept in the database")
        if timeout is not None:
            taken.timeout_s = to_seconds(timeout, what="timeout")
        taken.key = key
        result: T = await self._entities.call(taken)
        return result

    async def send(
        self,
        call: Awaitable[T],
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        key: str | None = None,
    ) -> MessageId[T]:
        """Send a call without waiting for its reply: `await cluster.send(account.charge("order-7", 500))`.

        A persisted call is stored when this returns; `result` waits for its reply. Inside a handler it is stored
        atomically with the handler's reply and state, and runs after that commit. A volatile call has been accepted by
        a runner when this returns, and may be lost with that runner.

        Args:
            call: What a method of a reference returned.
            at: When it is to run: an instant with a time zone, by the database's clock. Persisted rpcs only.
            delay: The same, relative to now.
            key: Idempotency key: sends with the same key are one message. Persisted rpcs only.

        Raises:
            TypeError: The argument is not a call; or it is volatile, and an option is for persisted rpcs.
            KeyConflict: The key was used before with other arguments.
            PersistenceError: The message could not be stored.
        """
        taken = require_call(call, what="cluster.send")
        options = {"at": at, "delay": delay, "key": key}
        given = next((name for name, value in options.items() if value is not None), None)
        if given is not None and not taken.rpc.persisted:
            raise TypeError(f"{taken!r} is not persisted: {given}= is for persisted rpcs")
        if at is not None and delay is not None:
            raise TypeError(f"{taken!r} has at= and delay=: give one of them")
        if at is not None and at.tzinfo is None:
            raise ValueError(f"at is {at}, which has no time zone: add one, as in datetime.now(UTC)")
        taken.key = key
        delay_s = 0.0 if delay is None else to_seconds(delay, what="delay", allow_zero=True)
        return await self._entities.send(taken, at=at, delay_s=delay_s)

    async def result(self, message: MessageId[T], *, timeout: Duration | None = None) -> T:
        """Wait for the reply to a message that was sent. Raises what the handler raised.

        Raises:
            SendTimeout: It took longer than `timeout` (None: the setting `call_timeout`). The message is kept.
            MessageDead: Its attempts are used up.
            MessageCancelled: It was cancelled before it ran.
            MessageExpired: It is no longer stored, or never was.
        """
        timeout_s = seconds_or_none(timeout, what="timeout")
        result: T = await self._entities.result(message, timeout_s=timeout_s)
        return result

    async def cancel(self, message: MessageId[Any]) -> bool:
        """Cancel a message; false if it has started or ended, or does not exist."""
        return await self._acting().calling.posting.cancel(message)

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
        return await self._entities.broadcast(method, args, kwargs)

    def is_local(self, ref: Entity[Any]) -> bool:
        """Whether this runner holds the shard of an entity just now: the entity is, or would be, active here."""
        address = address_of(ref)
        if not spans.on:
            return self._is_local(address)
        facts = {"coterie.entity_type": address.type, "coterie.entity_id": address.id}
        with spans.span("cluster.is_local", facts):
            found = self._is_local(address)
            spans.note("coterie.is_local", str(found).lower())
            return found

    def _is_local(self, address: EntityAddress) -> bool:
        here = self._acting()
        seat = Seat.shard(self.shard_of(address.type, address.id))
        tenure = here.tenure(seat) if isinstance(here, Runner) else None
        return tenure is not None and tenure.held

    def shard_of(self, entity: type[Entity[Any]] | str, id: str) -> ShardId:
        """The shard of an entity, given its class or its name. A pure function: no I/O."""
        entity_type = self._entities.named(entity)
        return ShardId(entity_type.group, shard_number(entity_type.name, id, self.settings.shards))

    # Workflows and deferreds

    async def start_workflow(self, workflow: WorkflowFn[A, T], payload: A, *, id: str) -> WorkflowHandle[T]:
        """Start a run, once for each id: later calls return the handle of the existing run.

        If the current work has a transaction open, the run is part of its commit: stored with it, or not at all.

        Args:
            workflow: A function defined with `cluster.workflow`.
            payload: The argument of the function.
            id: The id of the run: an order number, for instance.

        Raises:
            KeyConflict: A run of this id exists with another payload.
        """
        transaction = None if self._is_elsewhere() else transaction_here()
        if transaction is None:
            await self._start_workflow(workflow, payload, id)
        else:
            from coterie.workflows.api import start_within

            await start_within(transaction, self._acting(), self._workflow_room.of(workflow), payload, id)
        return self.workflow_handle(workflow, id)

    def workflow_handle(self, workflow: WorkflowFn[Any, T], id: str) -> WorkflowHandle[T]:
        """The handle of a run, whether the run exists or not. No I/O."""
        from coterie.workflows.api import handle_of

        return handle_of(self._workflow_room.of(workflow), id, self._acting, self._writing)

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

    async def _start_workflow(
        self, workflow: Any, payload: Any, id: str, *, parent: str | None = None, waited_as: str = ""
    ) -> UnitStartResult:
        from coterie.workflows.api import start

        kind = self._workflow_room.of(workflow)
        here = self._writing("cluster.start_workflow")
        return await start(here, kind, payload, id, parent=parent, waited_as=waited_as)

    # Maintenance and health

    async def poll_storage(self) -> None:
        """Poll now for pending messages of this runner's shards; return when all of them have been seen (K6)."""
        host = self._acting().calling.host
        if host is not None and host.sweeping is not None:
            await host.sweeping.poll()

    async def reset(self, entity: type[Entity[Any]], id: str) -> int:
        """Retry an entity's stuck messages: dead ones, and those that wait for another attempt (K6).

        Does not touch the entity's state.

        Returns:
            The number of dead messages revived.
        """
        self._writing("cluster.reset")
        return await self._entities.reset(entity, id)

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
        return await self._acting().gathering.health()

    async def shards(self) -> Mapping[ShardId, str | None]:
        """All shards, each with the name of the runner that holds it just now, or None."""
        view = await self._acting().storage.view()
        names: dict[str | None, str] = {row.id: row.name for row in view.runners}
        split = ((Seat.split(seat.name), seat.holder) for seat in view.seats)
        return {ShardId.parse(name): names.get(holder) for (kind, name), holder in split if kind == "shard"}

    # The runner or client through which it acts

    @contextmanager
    def acting_as(self, connection: C) -> Iterator[C]:
        """Let this cluster's methods act through a connection, except inside other work."""
        with self._holding(self._take(lambda: connection)):
            yield connection

    @contextmanager
    def _holding(self, connection: Client) -> Iterator[None]:
        try:
            yield
        finally:
            if self._running is connection:
                self._running = None

    def _take(self, make: Callable[[], C]) -> C:
        """Make the runner or client through which this cluster acts from now on, unless there is one already."""
        running = self._present()
        if running is not None and running.state is not State.STOPPED and _is_of_this_process(running):
            how = "started already, as a runner" if isinstance(running, Runner) else "connected already, as a client"
            raise RuntimeError(
                f"{running.what} is {how}: stop that first, or make another Cluster; its methods work as it is"
            )
        made = make()
        self._running = made
        return made

    def _begin(self) -> Runner:
        """Make a runner, through which everything acts that its start sets going in this context."""
        made = self._take(self._new_runner)
        acting.set((self, made))
        return made

    def _new_runner(
        self,
        doors: ClientParts | None = None,
        *,
        settings: Settings | None = None,
        definitions: Sequence[Definition] = (),
        occupy: Callable[[Runner], Occupy] = no_occupants,
    ) -> Runner:
        """Make a runner of this cluster, not started yet."""
        settings = settings or self.settings
        # A caller with occupants of its own gets the shards for them, unless there are entities to occupy the shards.
        rooms: list[Workplace] = [self._entities] if occupy is no_occupants or self._entities.types else []
        rooms += [self._singletons] if self._singletons.known else []
        rooms += [vars(self)[room] for room in ("_cron_room", "_workflow_room") if room in vars(self)]
        made = Runner(
            settings,
            doors or system_doors(settings),
            rooms=rooms,
            definitions=definitions,
            occupy=occupy,
            setups=self._setups,
        )
        self._runners = [*self._own_runners(), made]
        return made

    def _inside(self) -> Client | None:
        inside = acting.get()
        return inside[1] if inside is not None and inside[0] is self else None

    def _present(self) -> Client | None:
        return self._inside() or self._running

    def _claim(self) -> Claim | None:
        """The claim that the current work must prove when it writes; None if it is the work of another cluster.

        Raises:
            RuntimeError: The work has a transaction open.
        """
        if self._is_elsewhere():
            return None
        refuse_commit_of_its_own("a write to cluster.kv", instead="or write a table of your own in it")
        return claim_here()

    def _is_elsewhere(self) -> bool:
        """Whether the current work is another cluster's, whose transactions hold nothing of this one."""
        inside = acting.get()
        return inside is not None and inside[0] is not self

    def _writing(self, what: str) -> Client:
        """As `_acting`, for a write that commits by itself.

        Raises:
            RuntimeError: The current work has a transaction open.
        """
        if not self._is_elsewhere():
            refuse_commit_of_its_own(what)
        return self._acting()

    def _acting(self) -> Client:
        """The runner or client through which this cluster acts. On the path of each call, so it is written out."""
        inside = acting.get()
        running = inside[1] if inside is not None and inside[0] is self else self._running
        if running is None or running.state is _STOPPED:
            if isinstance(running, Runner) and running.lost is not None:
                raise running.lost
            raise NotStarted(what=f"cluster {self.settings.name!r}")
        running.origin.require_same_loop()
        return running


class Runners:
    """`cluster.runners`: the registered runners."""

    def __init__(self, acting: Callable[[], Client], writing: Callable[[str], Client]) -> None:
        self._acting = acting
        self._writing = writing

    async def list(self) -> Sequence[RunnerRow]:
        """All runners that are registered just now."""
        return await self._acting().runners()

    async def drain(self, runner: str) -> None:
        """Make a runner, by its id or name, release all its seats and take no new ones. It keeps running.

        Raises:
            RunnerUnavailable: No runner, or more than one, has this id or name.
        """
        await self._writing("cluster.runners.drain").drain(runner)


def _is_of_this_process(connection: Client) -> bool:
    try:
        connection.origin.require_same()
    except Forked:
        return False
    return True
