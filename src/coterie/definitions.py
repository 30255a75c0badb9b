"""The decorators of `Cluster`: with them a program defines its entities, singletons, crons, workflows and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

from coterie.work.definition import refusal, require_name

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.cron.definition import CronOptions
    from coterie.cron.tick import Tick
    from coterie.entities.definition import EntityOptions
    from coterie.entities.entity import E
    from coterie.program import Program
    from coterie.setup import Setup
    from coterie.singletons.definition import SingletonOptions, StatelessOptions
    from coterie.singletons.leader import Leader
    from coterie.tasks.definition import Queue, QueueOptions, TaskOptions
    from coterie.tasks.task import Task, TaskDecorator
    from coterie.work.middleware import MiddlewareFn
    from coterie.workflows.definition import WorkflowOptions
    from coterie.workflows.workflow import Workflow

T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A")
P = ParamSpec("P")

if TYPE_CHECKING:
    CronBody = TypeVar("CronBody", bound=Callable[[Tick], Coroutine[Any, Any, None]] | Callable[[Tick], None])
    MiddlewareT = TypeVar("MiddlewareT", bound=MiddlewareFn)
    SingletonBody: TypeAlias = Callable[[Leader[R]], Coroutine[Any, Any, None]]
    WorkflowFn: TypeAlias = Callable[[Workflow, A], Coroutine[Any, Any, T]]


class Definitions:
    """What a program can define with a cluster. Wrong definitions are refused when they are made."""

    _program: Program

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
            options: See `EntityOptions`.
        """

        def add(cls: Any) -> Any:
            self._program.entities.add(cls, cast("EntityOptions", options))
            return cls

        return add if cls is None else add(cls)

    @overload
    def singleton(
        self, name: str, **options: Unpack[SingletonOptions[R]]
    ) -> Callable[[SingletonBody[R]], SingletonBody[R]]: ...
    @overload
    def singleton(
        self, name: str, *, state: None = ..., **options: Unpack[StatelessOptions[None]]
    ) -> Callable[[SingletonBody[None]], SingletonBody[None]]: ...
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
            options: See `SingletonOptions`.
        """

        def add(body: Any) -> Any:
            self._program.singletons.add(name, body, cast("SingletonOptions[Any]", options))
            self._program.define(self._program.singletons, self._program.singletons.known[name].definition)
            return body

        require_name(name, kind="singleton")  # checked now: without the parentheses `add` is never called
        return add

    def cron(self, name: str, schedule: str, **options: Unpack[CronOptions]) -> Callable[[CronBody], CronBody]:
        """Define a cron: a function that runs on a schedule, once for each tick in the whole cluster.

        An `async def`, or a plain `def`, which runs in a thread (the setting `threads`).

        Example:
            ```python
            @cluster.cron("nightly", "0 3 * * *", timezone="Europe/Zurich")
            async def nightly(tick: Tick) -> None:
                print("report for", tick.scheduled_at)
            ```

        Args:
            name: Its name in the cluster; its history is stored under it.
            schedule: Five fields, or six with seconds first; `@daily` and the like; `@every 90s`.
            options: See `CronOptions`.

        Raises:
            ScheduleError: The schedule or its time zone cannot be parsed; the error shows the position.
        """

        def add(body: Any) -> Any:
            self._program.crons.add(name, schedule, body, options)
            self._program.define(self._program.crons, self._program.crons.known[name].definition)
            return body

        require_name(name, kind="cron")  # checked now: without the parentheses `add` is never called
        return add

    @overload
    def workflow(self, fn: WorkflowFn[A, T], /) -> WorkflowFn[A, T]: ...
    @overload
    def workflow(self, /, **options: Unpack[WorkflowOptions]) -> Callable[[WorkflowFn[A, T]], WorkflowFn[A, T]]: ...
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
            options: See `WorkflowOptions`.
        """

        def add(fn: Any) -> Any:
            self._program.workflows.add(fn, cast("WorkflowOptions", options))
            self._program.define(self._program.workflows)
            return fn

        return add if fn is None else add(fn)

    @overload
    def task(self, fn: Callable[P, Coroutine[Any, Any, T]], /) -> Task[P, T, Coroutine[Any, Any, T]]: ...
    @overload
    def task(self, fn: Callable[P, T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, fn: Any = None, /, **options: Any) -> Any:
        """Define a task: a function that can also run durably, on some runner. Works with and without parentheses.

        An `async def`, or a plain `def`, which runs in a thread (the setting `threads`) or in a process. Called, it
        runs here and now, as unit tests do. Parameters and result must be annotated.

        Example:
            ```python
            @cluster.task(retry=Retry(attempts=5, on=[SmtpError]), timeout="30s")
            def send_email(to: str, text: str) -> str: ...

            message = await cluster.send(send_email.job("a@example.org", "hi"), delay="10m")
            receipt = await cluster.result(message)
            ```

        Args:
            fn: The function.
            options: See `TaskOptions`.
        """

        def add(fn: Any) -> Any:
            from coterie.tasks.task import Task  # only programs that have tasks load it

            made = self._program.tasks.add(fn, cast("TaskOptions", options))
            self._program.define_all(self._program.tasks, self._program.tasks.seats_of(made))
            return Task(made, self._program.job_caller)

        return add if fn is None else add(fn)

    def queue(self, name: str, **options: Unpack[QueueOptions]) -> Queue:
        """Define a queue: it limits how many jobs of its tasks run, and how many start, in the whole cluster.

        Example:
            ```python
            emails = cluster.queue("emails", concurrency=20, rate="50/s", partition="tenant", partition_concurrency=2)
            ```

        Args:
            name: Its name in the cluster.
            options: See `QueueOptions`.
        """
        made = self._program.tasks.add_queue(name, options)
        self._program.define_all(self._program.tasks, self._program.tasks.seats_of(made))
        return made

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
        self._refuse_late(f"setup of {getattr(fn, '__name__', fn)!r}", "setups are open already")
        self._program.setups.append(fn)
        return fn

    def middleware(self, fn: MiddlewareT, /) -> MiddlewareT:
        """Run a function around every attempt of an rpc, job, tick or step: authorization, error trackers, sessions.

        The first one defined is the outermost. What it raises is the error of the attempt; what it returns is the
        result, which is checked and committed like that of the body.

        Example:
            ```python
            @cluster.middleware
            async def timed(work: WorkInfo, call_next: CallNext) -> Any:
                with histogram.time(work.kind, work.name):
                    return await call_next()
            ```
        """
        shown = getattr(fn, "__name__", repr(fn))
        self._refuse_late(f"middleware {shown}", "work has begun without it")
        self._program.middleware.add(fn)
        return fn

    def _refuse_late(self, what: str, why: str) -> None:
        if self._program.runners:
            raise refusal(
                f"{what} comes after the start, when {why}",
                hint="move it before the start, into the module that makes the cluster",
            )
