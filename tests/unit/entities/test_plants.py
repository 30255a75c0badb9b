"""Planted bugs of the kind that hides behind one value of a parameter: the properties with drawn values find each."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from coterie.entities.calls.router import Router
from coterie.entities.persisted import inbox, sender
from coterie.entities.persisted.inbox import Inbox, ShardInbox
from coterie.entities.persisted.poller import Poller
from tests.unit.entities import test_backlogs as backlogs
from tests.unit.entities import test_outbox as outbox
from tests.unit.entities import test_router

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from coterie.entities.persisted.receiver import Handover
    from coterie.storage.contracts.messages import Message

    Plant = tuple[str, Callable[[], AbstractContextManager[Any]], Callable[[], object]]


def _key_compared_without(part: str) -> AbstractContextManager[Any]:
    parts = {"entity_type", "entity_id", "method", "key"} - {part}

    def is_same(one: Message, other: Message) -> bool:
        return all(getattr(one, each) == getattr(other, each) for each in parts)

    return patch.object(sender, "_has_same_key", is_same)


@contextmanager
def _full_page_taken_for_the_last() -> Iterator[None]:
    right = Poller._follow

    def hasty(self: Poller, shards: Any, marks: Any, rows: Any) -> Any:
        left = right(self, shards, marks, rows)
        for seat in left:
            self._inbox.read(shards[seat])
        return left

    with patch.object(Poller, "_follow", hasty):
        yield


def _early_one_without_room_forgotten() -> AbstractContextManager[Any]:
    def wait(self: ShardInbox, handover: Handover) -> None:
        if len(self.early) < inbox._EARLY_MOST:
            self.early.append(handover)

    return patch.object(ShardInbox, "wait", wait)


def _call_for_a_look_forgotten_half_way() -> AbstractContextManager[Any]:
    return patch.object(Poller, "_is_half_way", lambda _: False)


def _nobody_looks_when_a_mailbox_is_empty_again() -> AbstractContextManager[Any]:
    return patch.object(Inbox, "_wake_if_drained", lambda *_: None)


@contextmanager
def _only_the_first_group_counts() -> Iterator[None]:
    right = Router.others

    def narrow(self: Router, group: str, *, than: str) -> Any:
        return [each for each in right(self, group, than=than) if each.groups[0] == group]

    with patch.object(Router, "others", narrow):
        yield


def _several_groups() -> None:
    test_router.test_a_runner_of_several_groups_counts_in_each_of_them(("a", "special", "b", "default"))


PLANTS: list[Plant] = [
    *(
        (
            f"key compared without the {part}",
            partial(_key_compared_without, part),
            outbox.test_m6_a_key_is_one_of_a_method_of_an_entity,
        )
        for part in ("entity_type", "entity_id", "method")
    ),
    (
        "full page taken for the last",
        _full_page_taken_for_the_last,
        backlogs.test_m5_each_entity_begins_its_messages_in_the_order_of_their_sends,
    ),
    (
        "early hand-over without room forgotten",
        _early_one_without_room_forgotten,
        backlogs.test_m5_each_entity_begins_its_messages_in_the_order_of_their_sends,
    ),
    (
        "call for a look forgotten half-way through a round",
        _call_for_a_look_forgotten_half_way,
        backlogs.test_r2_what_is_stored_begins_when_its_shard_is_taken_not_when_somebody_looks_again,
    ),
    (
        "nobody looks when a mailbox is empty again",
        _nobody_looks_when_a_mailbox_is_empty_again,
        backlogs.test_r2_what_is_stored_begins_when_its_shard_is_taken_not_when_somebody_looks_again,
    ),
    ("only the first group of a runner counts", _only_the_first_group_counts, _several_groups),
]


@pytest.mark.parametrize("plant", PLANTS, ids=[name for name, *_ in PLANTS])
def test_a_planted_bug_is_found(plant: Plant) -> None:
    _, planted, finds = plant
    with planted(), pytest.raises((AssertionError, BaseExceptionGroup)):
        finds()
