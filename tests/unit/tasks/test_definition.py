"""From functions to tasks, and queues: what is read from them, and what is refused when the program is loaded."""

from __future__ import annotations

import functools
import inspect
from datetime import datetime, timedelta, timezone
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pytest

from coterie import ConfigurationError, MalformedMessage, Retry
from coterie.entities.calls.wire import FAILED
from coterie.entities.idempotency_key import key_of
from coterie.tasks.definition import SEATS, Queue, TaskType, define, define_queue

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

T = TypeVar("T")
USUAL = Retry(attempts=7)
JOB = f"j{5:032x}"


class Overdrawn(Exception): ...


class Size(Enum):
    BIG = "big"


class Box(Generic[T]): ...


async def resize(picture: str, width: int = 200) -> str:
    return f"{picture}@{width}"


def send_email(tenant: str, mail: str, *, text: str = "") -> int:
    return len(text)


def task(fn: Any = resize, *, queues: tuple[Queue, ...] = (), **options: Any) -> TaskType:
    return define(fn, options, queues={each.name: each for each in queues}, retry=USUAL)  # type: ignore[arg-type]


def queue(name: Any = "emails", **options: Any) -> Queue:
    return define_queue(name, options)  # type: ignore[arg-type] # what checkers refuse is refused here, too


def problem(fn: Any = resize, *, queues: tuple[Queue, ...] = (), **options: Any) -> str:
    """What is said about a task that is refused."""
    with pytest.raises(ConfigurationError) as caught:
        task(fn, queues=queues, **options)
    return str(caught.value)


def queue_problem(name: Any = "emails", **options: Any) -> str:
    """What is said about a queue that is refused."""
    with pytest.raises(ConfigurationError) as caught:
        queue(name, **options)
    return str(caught.value)


def test_what_is_left_out_has_the_defaults() -> None:
    found = task()
    assert (found.name, found.group, found.queue, found.key, found.partition) == ("resize", "default", None, (), None)
    assert (found.retry, found.timeout_s, found.priority, found.age_s) == (USUAL, None, 0, 3600.0)
    assert (found.pool, found.errors) == ("loop", {})


def test_all_options_are_read() -> None:
    emails, retry = queue(partition="tenant", age="10m", group="mail"), Retry(attempts=2)
    found = task(
        send_email,
        queues=(emails,),
        name="mail it:7",
        queue=emails,
        group="mail",
        key=("tenant", "mail"),
        retry=retry,
        errors=[Overdrawn],
        timeout="30s",
        priority=-100,
    )
    assert (found.name, found.group, found.queue) == ("mail it:7", "mail", "emails")
    assert (found.key, found.partition) == (("tenant", "mail"), "tenant")
    assert (found.retry, found.timeout_s, found.priority, found.age_s) == (retry, 30.0, -100, 600.0)
    assert (found.pool, found.errors) == ("thread", {"Overdrawn": Overdrawn})
    assert task(send_email, queues=(emails,), queue="emails", group="mail").partition == "tenant"
    assert task(send_email, pool="process").pool == "process"


def test_a_job_has_its_arguments_and_its_result() -> None:
    found = task(send_email, errors=[Overdrawn])
    payload = found.arguments.encode(("acme", "m-7"), {"text": "hi"})
    assert found.decode(payload) == (("acme", "m-7"), {"text": "hi"})
    assert found.result.decode(found.encode_reply(3)) == 3
    with pytest.raises(MalformedMessage, match="result of task 'send_email'"):
        found.encode_reply("three")
    with pytest.raises(TypeError, match=r"send_email'\(\): missing a required argument: 'mail'"):
        found.arguments.encode(("acme",), {})
    with pytest.raises(MalformedMessage, match="mail is 7"):
        found.arguments.encode(("acme", 7), {})
    assert (found.encode_failure(Overdrawn("by 5")) or b"").startswith(FAILED)
    assert found.encode_failure(ValueError()) is None


def test_a_task_without_a_queue_shares_the_seats_of_its_group() -> None:
    found = task(group="io")
    seats = {found.seat_of(f"j{number:032x}") for number in range(64)}
    assert seats == {f"queue:io:{number}" for number in range(SEATS)}
    assert found.part_of(b"") == "resize"


@pytest.mark.parametrize(
    ("hint", "value", "part"),
    [
        (str, "acme", "acme"),
        (int, 7, "7"),
        (str | None, None, ""),
        (Size, Size.BIG, "big"),
        (datetime, datetime(2026, 3, 29, 3, tzinfo=timezone(timedelta(hours=2))), "2026-03-29 01:00:00+00:00"),
        (str, "x" * 500, "x" * 500),
    ],
)
def test_the_partition_of_a_job_is_the_value_of_a_parameter(hint: Any, value: Any, part: str) -> None:
    def work(tenant: Any) -> None: ...

    work.__annotations__["tenant"] = hint
    emails = queue(partition="tenant")
    found = task(work, queues=(emails,), queue=emails)
    assert found.part_of(found.arguments.encode((value,), {})) == part
    assert found.seat_of(JOB) == "queue:emails"


def test_a_partition_fits_into_the_index() -> None:
    emails = queue(partition="tenant")
    found = task(send_email, queues=(emails,), queue=emails)
    long = found.part_of(found.arguments.encode(("ü" * 251, "m"), {}))
    assert len(long) == 64
    with pytest.raises(MalformedMessage, match="tenant of task 'send_email': it has a zero character"):
        found.part_of(found.arguments.encode(("a\0b", "m"), {}))
    plain = queue("plain")
    assert task(send_email, queues=(plain,), queue=plain).part_of(b"") == ""


def test_keys_are_those_of_rpcs() -> None:
    found = task(send_email, key="mail")
    payload = found.arguments.encode(("acme", "m|7"), {})
    assert key_of(found, payload)[0] == r"s:m\|7"
    assert key_of(found, payload, "mine")[0] == "s:mine"


def test_fingerprints_tell_parameters_apart() -> None:
    async def other(picture: str, width: float = 200) -> str:
        return picture

    async def required(picture: str, width: int) -> str:
        return picture

    async def renamed(picture: str, height: int = 200) -> str:
        return picture

    async def another(picture: str, width: int = 7) -> bytes:
        return b""

    assert len({task(each).fingerprint for each in (resize, other, required, renamed)}) == 4
    assert task(another).fingerprint == task().fingerprint


class Holder:
    def method(self) -> None: ...

    @staticmethod
    def static() -> None: ...


async def stream() -> AsyncIterator[int]:
    yield 1


def generator() -> Iterator[int]:
    yield 1


def generic(value: T) -> int:
    return 1


def generic_list(values: list[T]) -> int:
    return 1


def generic_result(value: int) -> Box[T]:
    raise NotImplementedError


def without_annotation(value) -> int:  # type: ignore[no-untyped-def]
    return 1


def without_result(value: int):  # type: ignore[no-untyped-def]
    return 1


def several(*values: int) -> int:
    return 1


def unkeyable(values: list[int]) -> int:
    return 1


def no_data(value: Holder) -> int:
    return 1


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (Holder.method, "method is a method"),
        (Holder().method, "method is a method"),
        (Holder.static, "static is a method"),
        (staticmethod(resize), "is a method"),
        (functools.partial(resize), "is no function"),
        (Holder, "Holder is no function"),
        (lambda: None, "<lambda> is no function"),
        (7, "7 is no function"),
        (stream, "task 'stream' is a generator"),
        (generator, "task 'generator' is a generator"),
        (generic, "parameter value has the type variable ~T"),
        (generic_list, "parameter values has the type variable ~T"),
        (generic_result, "its result has the type variable ~T"),
        (without_annotation, "parameter value has no annotation"),
        (without_result, "its result has no annotation"),
        (several, "takes *values"),
        (no_data, "Holder is not data"),
    ],
)
def test_what_is_no_task_is_refused(fn: Any, said: str) -> None:
    assert said in problem(fn)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"key": "mail"}, "key is 'mail', and that names no parameter: its parameters are picture, width"),
        ({"key": ()}, "key is (), and that names no parameter"),
        ({"key": ("picture", "mail")}, "names no parameter"),
        ({"name": ""}, "a task's name cannot be empty"),
        ({"name": "a/b"}, "name of a task is 'a/b'"),
        ({"name": 7}, "name of a task is 7"),
        ({"queue": 7}, "queue of task 'resize' is 7"),
        ({"queue": "emails"}, "queue of task 'resize' is 'emails', which is not defined"),
        ({"group": "a b"}, "group of task 'resize' is"),
        ({"retry": 3}, "retry of task 'resize' is 3, expected a Retry"),
        ({"errors": ValueError}, "errors is <class 'ValueError'>, expected a list"),
        ({"timeout": "30"}, "timeout of task 'resize' is \"30\""),
        ({"priority": 101}, "priority of task 'resize' is 101"),
        ({"priority": True}, "priority of task 'resize' is True"),
        ({"priority": "high"}, "priority of task 'resize' is 'high'"),
        ({"pool": "loop"}, "pool of task 'resize' is 'loop'"),
        ({"pool": "process"}, "is an async def, and pool is for plain functions"),
        ({"retries": 3}, 'a task has no option "retries": did you mean "retry"?'),
    ],
)
def test_wrong_options_of_a_task_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in problem(**options)


def test_a_process_finds_only_what_a_module_has() -> None:
    def inner() -> None: ...

    assert "where another process does not find it" in problem(inner, pool="process")
    assert "makes no key" in problem(unkeyable, key="values")


def test_the_queue_of_a_task_fits_to_it() -> None:
    emails = queue(partition="tenant")
    assert "and that names no parameter: its parameters are picture, width" in problem(queues=(emails,), queue=emails)
    assert "its queue 'emails' is of group 'default'" in problem(send_email, queues=(emails,), queue=emails, group="x")
    assert "one of another cluster" in problem(send_email, queues=(emails,), queue=queue(partition="tenant"))
    assert "there are emails" in problem(send_email, queues=(emails,), queue="mails")
    values = queue(partition="values")
    assert "parameter values is of type list[int], which makes no partition" in problem(
        unkeyable, queues=(values,), queue=values
    )


def test_a_queue_without_options_has_no_limits() -> None:
    found = queue()
    assert (found.name, found.group, found.partition) == ("emails", "default", None)
    stored = found.definition
    assert (stored.seat, stored.group, stored.age_s) == ("queue:emails", "default", 3600.0)
    assert stored.takeover_delay_s == 0.0
    assert (stored.concurrency, stored.partition_concurrency, stored.rate, stored.burst) == (None, None, None, None)


def test_all_options_of_a_queue_are_read() -> None:
    found = queue(
        concurrency=20,
        rate="50/s",
        burst=9,
        partition="tenant",
        partition_concurrency=2,
        age="1m",
        group="mail",
        takeover_delay="5s",
        expected_wait="10m",
    ).definition
    assert (found.concurrency, found.rate, found.burst, found.partition_concurrency) == (20, 50.0, 9.0, 2)
    assert (found.age_s, found.group, found.takeover_delay_s, found.expected_wait_s) == (60.0, "mail", 5.0, 600.0)


@pytest.mark.parametrize(
    ("text", "rate", "burst"),
    [("50/s", 50, 6), ("1/s", 1, 1.1), ("30/m", 0.5, 1.05), ("36/h", 0.01, 1.001), ("86400/d", 1, 1.1)],
)
def test_rates_are_starts_in_a_time(text: str, rate: float, burst: float) -> None:
    found = queue(rate=text).definition
    assert found.rate == rate
    assert found.burst == pytest.approx(burst)


@pytest.mark.parametrize("text", ["", "50", "50/", "/s", "50/x", "-1/s", "0/s", "50 / s", "1e3/s", "9999999/s", 50])
def test_other_texts_are_no_rates(text: Any) -> None:
    assert 'write how many start in a second, minute, hour or day: "50/s", "10/d"' in queue_problem(rate=text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "a:b"}, "name of a queue"),
        ({"name": None}, "name of a queue"),
        ({"concurrency": 0}, "concurrency of queue 'emails'"),
        ({"concurrency": "many"}, "concurrency of queue 'emails'"),
        ({"partition_concurrency": 2}, "has partition_concurrency and no partition"),
        ({"burst": 2}, "has burst and no rate"),
        ({"rate": "5/s", "burst": 0}, "burst of queue 'emails'"),
        ({"partition": 7}, "partition of queue 'emails' is 7"),
        ({"partition": "a b"}, "partition of queue 'emails' is 'a b'"),
        ({"age": "0s"}, "age of queue 'emails'"),
        ({"takeover_delay": "soon"}, "takeover_delay of queue 'emails'"),
        ({"expected_wait": -1}, "expected_wait of queue 'emails'"),
        ({"group": ""}, "group of queue 'emails'"),
        ({"concurency": 5}, 'queue \'emails\' has no option "concurency": did you mean "concurrency"?'),
    ],
)
def test_wrong_options_of_a_queue_are_refused(options: dict[str, Any], said: str) -> None:
    assert said in queue_problem(**options)


def test_queues_of_other_options_have_other_fingerprints() -> None:
    several = [queue(), queue(concurrency=1), queue(rate="1/s"), queue(rate="1/s", burst=2), queue(partition="a")]
    several += [queue(age="1m"), queue(group="x"), queue(takeover_delay="1s"), queue(expected_wait="1s")]
    assert len({each.definition.fingerprint for each in several}) == len(several)
    assert queue().definition.fingerprint == queue().definition.fingerprint


def test_a_task_is_the_same_function() -> None:
    found = task(resize)
    assert found.fn is resize
    assert inspect.iscoroutinefunction(found.fn)
