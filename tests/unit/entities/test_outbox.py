"""What a handler sends, whatever it is: one message for each key of a method of an entity, at its instant [M6, m9]."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie import Entity, rpc
from coterie.entities.definition import define
from coterie.entities.host.work import Work, handling
from coterie.entities.persisted.sender import PersistedSender
from coterie.entities.reference import require_call
from coterie.errors import KeyConflict
from coterie.kernel.clock import to_datetime
from coterie.testing import run_simulation
from tests.unit.entities.account_entity import Loopback
from tests.unit.entities.fake_network import FakeCalling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from coterie.entities.definition import EntityType
    from coterie.entities.reference import Call
    from coterie.storage.contracts.messages import Message

SAMPLE = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
ZONES = [UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=9, minutes=30))]


class Shop(Entity):
    @rpc(persisted=True, key="order")
    async def pack(self, order: str, many: int = 1) -> None: ...

    @rpc(persisted=True, key="order")
    async def bill(self, order: str, many: int = 1) -> None: ...

    @rpc(persisted=True)
    async def greet(self, order: str, many: int = 1) -> None: ...


class Depot(Shop):
    """Of the same methods."""


TYPES: dict[str, EntityType[Any]] = {"Shop": define(Shop), "Depot": define(Depot)}


class Send(NamedTuple):
    """What a handler sends; without a key of its own `greet` has none."""

    entity_type: str
    entity_id: str
    method: str
    key: str

    @property
    def is_keyed(self) -> bool:
        return self.method != "greet"


SENDS = st.builds(
    Send,
    st.sampled_from(sorted(TYPES)),
    st.sampled_from(["a", "b"]),
    st.sampled_from(["pack", "bill", "greet"]),
    st.sampled_from(["k", "l"]),
)


@contextmanager
def handler() -> Iterator[Work]:
    """The handler of a call runs here."""
    work = Work("Shop", "a", "run", b"", 1e9, 1e9, "0" * 32, has_begun=True)
    token = handling.set(work)
    try:
        yield work
    finally:
        handling.reset(token)


def call(send: Send, many: int = 1) -> Call[Any]:
    kind = TYPES[send.entity_type]
    ref: Any = kind.ref(send.entity_id, Loopback(kind), timeout_s=None)
    return require_call(getattr(ref, send.method)(send.key, many), what="a test")


def collected(sends: list[Send], **options: Any) -> tuple[list[str], list[Message]]:
    """The ids that the handler was given, and what it leaves behind."""

    async def main() -> tuple[list[str], list[Message]]:
        calling = FakeCalling()
        post = PersistedSender(calling, calling.storage)  # type: ignore[arg-type] # as far as they are needed
        with handler() as work:
            ids = [str(await post.send(call(each), TYPES[each.entity_type], **options)) for each in sends]
            return ids, [] if work.effects is None else list(work.effects.sends)

    return run_simulation(main, seed=0)


@SAMPLE
@given(st.lists(SENDS, min_size=1, max_size=8))
@example([Send("Shop", "a", "pack", "k"), Send("Shop", "a", "bill", "k")])
@example([Send("Shop", "a", "pack", "k"), Send("Depot", "a", "pack", "k")])
@example([Send("Shop", "a", "pack", "k"), Send("Shop", "b", "pack", "k")])
def test_m6_a_key_is_one_of_a_method_of_an_entity(sends: list[Send]) -> None:
    """Two methods of one entity under one key are two messages."""
    ids, left = collected(sends)
    first: dict[Send, str] = {}
    expected = [first.setdefault(each, id_) if each.is_keyed else id_ for each, id_ in zip(sends, ids, strict=True)]
    assert ids == expected
    assert [message.id for message in left] == list(dict.fromkeys(expected)), "each once, in order"
    by_id = {message.id: message for message in left}
    for send, id_ in zip(sends, ids, strict=True):
        found = by_id[id_]
        assert (found.entity_type, found.entity_id, found.method) == (send.entity_type, send.entity_id, send.method)


@SAMPLE
@given(SENDS.filter(lambda send: send.is_keyed), st.lists(SENDS, max_size=4))
def test_m4_other_arguments_under_a_key_are_a_conflict_whatever_was_sent_between(one: Send, others: list[Send]) -> None:
    async def main() -> None:
        calling = FakeCalling()
        post = PersistedSender(calling, calling.storage)  # type: ignore[arg-type] # as far as they are needed
        with handler():
            for each in [one, *others]:
                await post.send(call(each), TYPES[each.entity_type])
            with pytest.raises(KeyConflict):
                await post.send(call(one, many=2), TYPES[one.entity_type])

    run_simulation(main, seed=0)


@SAMPLE
@given(st.integers(1, 10**7).map(lambda micros: micros / 1e6))
def test_m13_a_delay_counts_from_the_send_to_the_microsecond(delay_s: float) -> None:
    """Also of a handler that ends much later: what is stored is an instant."""
    _, (message,) = collected([Send("Shop", "a", "pack", "k")], delay_s=delay_s)
    assert (message.delay_s, message.is_immediate) == (0.0, False)
    assert message.due_at is not None
    error = message.due_at - to_datetime(0) - timedelta(seconds=delay_s)
    assert abs(error) <= timedelta(microseconds=1)


@SAMPLE
@given(st.datetimes(datetime(1971, 1, 1), datetime(2199, 1, 1)), st.sampled_from(ZONES))  # noqa: DTZ001 the zone is drawn
def test_m13_an_instant_is_kept_as_it_was_given(at: datetime, zone: timezone) -> None:
    _, (message,) = collected([Send("Shop", "a", "pack", "k")], at=at.replace(tzinfo=zone))
    assert message.due_at == at.replace(tzinfo=zone)
