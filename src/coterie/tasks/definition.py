"""Makes a `TaskType` of a function, and queues: all checks of a definition run here, when the program is loaded."""

from __future__ import annotations

import hashlib
import inspect
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from coterie.entities.arguments import Arguments, codec_of, hints_of
from coterie.entities.calls.wire import FAILED, pack_failure
from coterie.entities.declared_errors import declared_errors, nearest
from coterie.entities.idempotency_key import ACCEPTED, can_be_key
from coterie.errors import MalformedMessage
from coterie.kernel.durations import Duration, seconds_or_none, to_seconds
from coterie.kernel.ids import EntityAddress, Seat
from coterie.kernel.serialization.codec import codec_for
from coterie.kernel.serialization.schema import describe
from coterie.settings import parsers
from coterie.storage.contracts.jobs import QueueDefinition
from coterie.tasks.worker.body_frames import place_of
from coterie.work.definition import is_async, refusal, refuse_unknown, retry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from coterie.kernel.retry import Retry
    from coterie.kernel.serialization.codec import Codec
    from coterie.tasks.frames import Pool

SEATS = 8
"""How many seats share the jobs without a queue of one group."""
AGE_S = 3600.0
PRIORITY_MOST = 100
_LIMIT_MOST = 1_000_000
_PARTITION_MOST_BYTES = 500
"""A longer value is replaced by its hash: with the seat it has to fit into an index entry."""
_RATE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)/([smhd])")
_PER_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_BURST_S = 0.1
"""The default burst is one start, and what the rate allows in this time: starts are spread, and lateness costs none."""


class TaskOptions(TypedDict, total=False):
    """The options of `@cluster.task(…)`."""

    name: str | None
    """Its name in the cluster. Default: the name of the function."""
    queue: Queue | str | None
    """The queue that limits it, or its name. Default: no limits."""
    group: str
    """The group whose runners run it. Default: `default`."""
    key: str | tuple[str, ...] | None
    """The parameters whose values are the key: jobs of equal keys are one job."""
    retry: Retry | None
    """How often and when an attempt that raised is repeated. Default: the setting `retry`."""
    errors: Sequence[type[Exception]]
    """Errors that are results: they are not retried, and reach the caller that waits as themselves."""
    timeout: Duration | None
    """How long an attempt may take. Default: no limit."""
    priority: int
    """From -100 to 100: jobs of a higher one run first. Default: 0."""
    pool: Literal["thread", "process"]
    """Where a plain `def` runs: in a thread (the default), or in a process of its own."""


class QueueOptions(TypedDict, total=False):
    """The options of `cluster.queue(name, …)`. All limits are of the whole cluster."""

    concurrency: int | None
    """How many of its jobs run at once. Default: no limit."""
    rate: str | None
    """How many start in a second, minute, hour or day: `50/s`, `10/d`. Default: no limit."""
    burst: int | None
    """How many may start at once after a pause. Default: a tenth of a second's worth, at least 1."""
    partition: str | None
    """The parameter of its tasks whose values are its partitions, which take turns."""
    partition_concurrency: int | None
    """How many jobs of one partition run at once. Default: no limit."""
    age: Duration
    """How long a job waits until its priority is one higher. Default: an hour."""
    group: str
    """The group whose runners run its jobs. Default: `default`."""
    takeover_delay: Duration | None
    """How long jobs of a lost runner count as running, for what ignores its cancellation. Default: not at all."""
    expected_wait: Duration | None
    """The health is degraded while its oldest job waits longer than this. Default: never."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Queue:
    """A queue of this program, as `cluster.queue` made it. Tasks take it as `queue=`."""

    name: str
    group: str
    partition: str | None
    """The parameter whose values are its partitions."""
    definition: QueueDefinition
    """What is stored of it."""

    def __repr__(self) -> str:
        return f"queue {self.name!r}"


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskType:
    """The definition of one task, made once."""

    name: str
    what: str
    """Its name in errors."""
    fn: Callable[..., Any]
    """The function itself."""
    group: str
    queue: str | None
    """The name of its queue; None: it has none, and its jobs live on the seats of its group."""
    key: tuple[str, ...]
    """The parameters that form the key."""
    partition: str | None
    """The parameter whose values are the partitions of its queue."""
    retry: Retry
    timeout_s: float | None
    priority: int
    age_s: float
    """How long a job waits to gain one level of priority."""
    pool: Pool
    fingerprint: str
    """Of its parameters: what a job of another one has may not be decodable here."""
    arguments: Arguments
    result: Codec[Any]
    errors: dict[str, type[Exception]]
    """The declared errors, by the name under which they cross."""
    result_what: str
    """The name of the result in errors."""

    def decode(self, payload: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a job, by position and by keyword.

        Raises:
            MalformedMessage: They do not fit the annotations.
        """
        return self.arguments.decode(payload)

    def encode_reply(self, value: Any) -> bytes:
        """Encode what the function returned.

        Raises:
            MalformedMessage: It does not fit the annotation.
        """
        return self.result.checked(value, self.result_what)

    def encode_failure(self, error: BaseException) -> bytes | None:
        """The reply of a job that raised a declared error, which is a result; None: it is none of them."""
        return None if nearest(error, self.errors) is None else FAILED + pack_failure(error, self.errors)

    def seat_of(self, job_id: str) -> str:
        """The seat of a job: that of its queue, or one of those of its group, by its id."""
        return seat_of_job(job_id, queue=self.queue, group=self.group)

    def part_of(self, payload: bytes) -> str:
        """The partition of a job: the value of a parameter, as text.

        Tasks without a queue are partitions themselves, so that they take turns.
        """
        if self.queue is None:
            return self.name
        if self.partition is None:
            return ""
        return _partition(self.arguments.value(payload, self.partition), what=f"{self.partition} of {self.what}")


def define(fn: Any, options: TaskOptions, *, queues: dict[str, Queue], retry: Retry) -> TaskType:
    """The task that a function describes.

    Args:
        fn: The function.
        options: The options of its `@cluster.task`.
        queues: The queues of the program, by name.
        retry: The policy of tasks without one.

    Raises:
        ConfigurationError: The function or an option is invalid; which part, and what to write instead.
    """
    refuse_unknown(options, TaskOptions.__annotations__, what="a task")
    _require_function(fn)
    name = _name(options.get("name"), fn)
    what = f"task {name!r}"
    group = parsers.name().read(options.get("group", "default"), what=f"group of {what}")
    queue = _queue(options.get("queue"), queues, group=group, what=what)
    hints = hints_of(fn, None, what=what)
    _refuse_type_variables(hints, what=what)
    arguments = Arguments(fn, hints, what=what, is_method=False)
    return TaskType(
        name=name,
        what=what,
        fn=fn,
        group=group,
        queue=None if queue is None else queue.name,
        key=_key(options.get("key"), arguments.names, hints, what=what),
        partition=None if queue is None else _partition_parameter(queue, arguments.names, hints, what=what),
        retry=retry_of(options.get("retry"), what=what) or retry,
        timeout_s=seconds_or_none(options.get("timeout"), what=f"timeout of {what}"),
        priority=priority_of(options.get("priority", 0), what=what),
        age_s=AGE_S if queue is None else queue.definition.age_s,
        pool=_pool(options.get("pool", "thread"), fn, what=what),
        fingerprint=_fingerprint((each.name, describe(each.type), each.required) for each in arguments.fields),
        arguments=arguments,
        result=codec_of(hints, "return", what=what, part="its result", example="-> int, or -> None"),
        errors=declared_errors(options.get("errors", ()), what=what),
        result_what=f"result of {what}",
    )


def define_queue(name: Any, options: QueueOptions) -> Queue:
    """The queue that a program describes.

    Raises:
        ConfigurationError: The name or an option is invalid; which one, and what to write instead.
    """
    name = parsers.name().read(name, what="name of a queue")
    what = f"queue {name!r}"
    refuse_unknown(options, QueueOptions.__annotations__, what=what)
    partition = _parameter(options.get("partition"), what=what)
    limits = _limits(options, partition, what=what)
    group = parsers.name().read(options.get("group", "default"), what=f"group of {what}")
    age_s = to_seconds(options.get("age", AGE_S), what=f"age of {what}")
    takeover_delay_s = seconds_or_none(options.get("takeover_delay"), what=f"takeover_delay of {what}") or 0.0
    expected_wait_s = seconds_or_none(options.get("expected_wait"), what=f"expected_wait of {what}")
    facts = (sorted(limits.items()), partition, group, age_s, takeover_delay_s, expected_wait_s)
    definition = QueueDefinition(
        seat=Seat.queue(name),
        group=group,
        fingerprint=_fingerprint(facts),
        age_s=age_s,
        takeover_delay_s=takeover_delay_s,
        expected_wait_s=expected_wait_s,
        **limits,
    )
    return Queue(name=name, group=group, partition=partition, definition=definition)


def seat_of_job(job_id: str, *, queue: str | None, group: str) -> str:
    """The seat of a job: that of its queue, or one of those of its group, by its id."""
    return Seat.jobs(group, int(job_id[-1], 16) % SEATS) if queue is None else Seat.queue(queue)


def priority_of(value: Any, *, what: object) -> int:
    """A priority, if it is one."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > PRIORITY_MOST:
        raise refusal(f"priority of {what} is {value!r}: it must be a whole number from -100 to 100")
    return value


def rate_of(text: Any, *, what: str) -> float:
    """Starts a second, of a rate as users write it."""
    match = _RATE.fullmatch(text) if isinstance(text, str) else None
    rate = float(match[1]) / _PER_S[match[2]] if match else 0.0
    if not 0 < rate <= _LIMIT_MOST:
        raise refusal(
            f"rate of {what} is {text!r}", hint='write how many start in a second, minute, hour or day: "50/s", "10/d"'
        )
    return rate


def count_of(value: Any, *, called: str, what: str) -> int | None:
    """A limit that is a number of jobs, or None."""
    if value is None:
        return None
    found: int = parsers.whole(1, _LIMIT_MOST).read(value, what=f"{called} of {what}")
    return found


def default_burst(rate: float) -> float:
    """The size of the bucket of a queue that gives none."""
    return 1.0 + rate * _BURST_S


# Functions


def _require_function(fn: Any) -> None:
    shown = getattr(fn, "__name__", repr(fn))
    if isinstance(fn, staticmethod | classmethod) or inspect.ismethod(fn) or _is_in_class(fn):
        raise refusal(
            f"{shown} is a method, and a task is a function: it runs in any process",
            hint="move it out of its class, and pass what it needs as arguments",
        )
    if not inspect.isfunction(fn) or fn.__name__ == "<lambda>":
        raise refusal(f"{shown} is no function", hint="write @cluster.task before a def or an async def")
    inner = inspect.unwrap(fn)
    if inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner):
        raise refusal(f"task {shown!r} is a generator, and a task has one result", hint="return a list")


def _is_in_class(fn: Any) -> bool:
    outer = str(getattr(fn, "__qualname__", "")).rpartition(".")[0]
    return bool(outer) and not outer.endswith("<locals>")


def _name(given: Any, fn: Any) -> str:
    name = fn.__name__ if given is None else given
    try:
        return EntityAddress(name, "id").type
    except (ValueError, TypeError, AttributeError) as error:
        problem = str(error).replace("an entity type", "a task's name").replace("entity type", "task's name")
        raise refusal(f"name of a task is {name!r}: {problem}") from error


def _refuse_type_variables(hints: dict[str, Any], *, what: str) -> None:
    for name, hint in hints.items():
        free = () if isinstance(hint, type) else getattr(hint, "__parameters__", ())
        found = hint if _is_variable(hint) else next(iter(free), None)
        if found is not None:
            part = "its result" if name == "return" else f"parameter {name}"
            raise refusal(
                f"{what}: {part} has the type variable {found}, of which a stored job does not know the type",
                hint="write one task for each type, or Any",
            )


def _is_variable(hint: Any) -> bool:
    return type(hint).__name__ in ("TypeVar", "ParamSpec", "TypeVarTuple")


def _key(given: Any, names: tuple[str, ...], hints: dict[str, Any], *, what: str) -> tuple[str, ...]:
    if given is None:
        return ()
    key = tuple(given) if isinstance(given, list | tuple) else (given,)
    if not key or any(name not in names for name in key):
        raise refusal(f"{what}: key is {given!r}, and that names no parameter", hint=_takes(names))
    for name in key:
        _require_keyable(name, hints, what=what, makes="key")
    return key


def _takes(names: tuple[str, ...]) -> str:
    return f"its parameters are {', '.join(names)}" if names else "it has no parameters"


def _require_keyable(name: str, hints: dict[str, Any], *, what: str, makes: str) -> None:
    if not can_be_key(hints[name]):
        raise refusal(
            f"{what}: parameter {name} is of type {codec_for(hints[name]).name}, which makes no {makes}",
            hint=ACCEPTED.replace("a key", f"a {makes}"),
        )


def _pool(given: Any, fn: Any, *, what: str) -> Pool:
    if given not in ("thread", "process"):
        raise refusal(f"pool of {what} is {given!r}", hint="write one of 'thread', 'process'")
    if is_async(fn):
        if given == "process":
            raise refusal(f"{what} is an async def, and pool is for plain functions", hint=f"write def {fn.__name__}")
        return "loop"
    if given == "process" and "<locals>" in fn.__qualname__:
        raise refusal(
            f"{what} is defined inside of a function, where another process does not find it",
            hint="move it to the top of its module",
        )
    if given != "process":
        return "thread"
    place_of(fn, what=what)
    return "process"


def _fingerprint(facts: Iterable[object]) -> str:
    return hashlib.sha256(repr(list(facts)).encode()).hexdigest()[:16]


# Queues


def _queue(given: Any, queues: dict[str, Queue], *, group: str, what: str) -> Queue | None:
    if given is None:
        return None
    name = given.name if isinstance(given, Queue) else given
    if not isinstance(name, str):
        raise refusal(f"queue of {what} is {given!r}", hint='write queue=cluster.queue("emails", …), or its name')
    found = queues.get(name)
    if found is None:
        known = f"there are {', '.join(queues)}" if queues else "there is none yet"
        raise refusal(
            f"queue of {what} is {name!r}, which is not defined", hint=f'write cluster.queue("{name}") before; {known}'
        )
    if isinstance(given, Queue) and found is not given:
        raise refusal(f"queue of {what} is one of another cluster, or was replaced", hint="take the one of its cluster")
    if found.group != group:
        raise refusal(
            f"{what} is of group {group!r}, and its queue {name!r} is of group {found.group!r}",
            hint=f'write group="{found.group}" for the task too',
        )
    return found


def _partition_parameter(queue: Queue, names: tuple[str, ...], hints: dict[str, Any], *, what: str) -> str | None:
    name = queue.partition
    if name is None:
        return None
    if name not in names:
        raise refusal(
            f"{what}: its queue {queue.name!r} has partition={name!r}, and that names no parameter", hint=_takes(names)
        )
    _require_keyable(name, hints, what=what, makes="partition")
    return name


def _parameter(given: Any, *, what: str) -> str | None:
    if given is not None and not (isinstance(given, str) and given.isidentifier()):
        raise refusal(f"partition of {what} is {given!r}", hint='write the name of a parameter: partition="tenant"')
    return given


def _limits(options: QueueOptions, partition: str | None, *, what: str) -> dict[str, Any]:
    concurrency = count_of(options.get("concurrency"), called="concurrency", what=what)
    each = count_of(options.get("partition_concurrency"), called="partition_concurrency", what=what)
    burst = count_of(options.get("burst"), called="burst", what=what)
    given = options.get("rate")
    rate = None if given is None else rate_of(given, what=what)
    if each is not None and partition is None:
        raise refusal(
            f"{what} has partition_concurrency and no partition", hint='name a parameter too: partition="tenant"'
        )
    if burst is not None and rate is None:
        raise refusal(f"{what} has burst and no rate", hint='write rate="50/s" too, or leave out burst')
    return {
        "concurrency": concurrency,
        "partition_concurrency": each,
        "rate": rate,
        "burst": None if rate is None else default_burst(rate) if burst is None else float(burst),
    }


def _partition(value: Any, *, what: str) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)
    text = "" if value is None else str(value)
    if "\0" in text:
        raise MalformedMessage(what=what, problem="it has a zero character, which databases cannot store")
    data = text.encode()
    return text if len(data) <= _PARTITION_MOST_BYTES else hashlib.sha256(data).hexdigest()
