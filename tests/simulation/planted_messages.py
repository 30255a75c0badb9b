"""Planted bugs of stored messages and state, each with the scenario or workload that finds it."""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from coterie.entities.host.executor import HandlerExecutor
from coterie.entities.persisted import inbox, sender
from coterie.entities.persisted.commit import Commits
from coterie.entities.persisted.inbox import Inbox
from coterie.entities.persisted.receiver import Handover
from coterie.entities.persisted.sender import PersistedSender
from coterie.entities.persisted.suspects import Suspects
from coterie.errors import PersistenceError
from coterie.kernel.ids import MessageId
from coterie.storage.contracts.messages import Suspected
from coterie.storage.sqlite import messages, states
from tests.simulation import test_messages
from tests.simulation.workloads import messages as workload

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from coterie.entities.host.work import Work
    from coterie.entities.persisted.inbox import ShardInbox
    from coterie.storage.contracts.messages import Commit, Delivery, Message, Receipt

    Planted = tuple[str, Callable[[], Any], Callable[[], Coroutine[Any, Any, object]], tuple[str, ...]]


@contextmanager
def _replied_before_the_commit() -> Iterator[None]:
    right = Commits._submit

    def hasty(self: Commits, work: Work, write: Commit) -> None:
        if work.is_stored:
            for waiter in work.inbox._waiters.pop(work.message_id, ()):  # type: ignore[attr-defined]
                waiter(write.reply)
        right(self, work, write)

    with patch.object(Commits, "_submit", hasty):
        yield


@contextmanager
def _state_kept_after_a_declared_error() -> Iterator[None]:
    right = Commits.undo

    def forgetful(self: Commits, work: Work) -> None:
        entity = work.resident.entity
        state = None if entity is None else entity.state
        right(self, work)
        if entity is not None:
            entity.state = state

    with patch.object(Commits, "undo", forgetful):
        yield


@contextmanager
def _instance_kept_after_a_lost_commit() -> Iterator[None]:
    with patch.object(HandlerExecutor, "dropped", lambda *_: None), _state_kept_after_a_declared_error():
        yield


@contextmanager
def _key_ignored() -> Iterator[None]:
    with patch.object(sender, "key_of", lambda *_: (None, b"")):
        yield


@contextmanager
def _awaited_call_under_a_new_key_each_time() -> Iterator[None]:
    with patch.object(PersistedSender, "_message", _without_derived_keys(PersistedSender._message)):
        yield


def _without_derived_keys(right: Callable[..., Message]) -> Callable[..., Message]:
    def wrong(self: PersistedSender, *args: Any, derives: bool = False, **more: Any) -> Message:
        del derives
        return right(self, *args, **more)

    return wrong


@contextmanager
def _sent_before_the_handler_has_ended() -> Iterator[None]:
    async def hasty(self: PersistedSender, call: Any, message: Message, outer: Work) -> MessageId[Any]:
        del call, outer
        receipt = await self._storage.messages.insert(message)
        return MessageId(receipt.id)

    with patch.object(PersistedSender, "_collect", hasty):
        yield


@contextmanager
def _doubt_about_a_send_forgotten() -> Iterator[None]:
    right = PersistedSender._retry

    async def sure(self: PersistedSender, *args: Any, **more: Any) -> Receipt:
        try:
            return await right(self, *args, **more)
        except PersistenceError as error:
            raise PersistenceError(doing="store it", problem=str(error), outcome="refused") from error

    with patch.object(PersistedSender, "_retry", sure):
        yield


@contextmanager
def _unknown_commit_taken_as_success() -> Iterator[None]:
    right = Commits.failed

    def sure(self: Commits, work: Work, write: Commit, error: BaseException) -> None:
        if isinstance(error, PersistenceError) and error.outcome == "unknown":
            self.written(work, write)
        else:
            right(self, work, write, error)

    with patch.object(Commits, "failed", sure):
        yield


@contextmanager
def _committed_without_the_fence() -> Iterator[None]:
    without = states.SQL["update"].replace("and epoch <= :epoch", "")
    with patch.object(states, "held", lambda *_: True), patch.dict(states.SQL, update=without):
        yield


@contextmanager
def _loss_not_counted_on_takeover() -> Iterator[None]:
    async def none(*_: Any, **__: Any) -> Suspected:
        return Suspected(0, ())

    with patch.object(messages.SqliteMessages, "suspect", none):
        yield


@contextmanager
def _innocent_counted_with_the_guilty() -> Iterator[None]:
    right = messages.SQL["begun_alone"]
    wrong = right.replace("suspicion = 2 and epoch = :before", "suspicion > 0 and epoch < :epoch")
    assert wrong != right, "bring the plant up to date"
    with patch.dict(messages.SQL, begun_alone=wrong):
        yield


@contextmanager
def _suspect_begun_before_that_is_stored() -> Iterator[None]:
    async def hasty(*_: object) -> bool:
        return True

    with patch.object(Suspects, "_mark", hasty):
        yield


@contextmanager
def _failed_attempt_not_counted() -> Iterator[None]:
    with patch.object(Inbox, "failed", lambda self, work, _: self.dropped(work)):
        yield


@contextmanager
def _begun_too_early() -> Iterator[None]:
    right = Inbox.now_s
    with patch.object(Inbox, "now_s", lambda self: right(self) + 0.1):
        yield


@contextmanager
def _what_has_ended_forgotten() -> Iterator[None]:
    with patch.object(Inbox, "_remember_ended", lambda *_: None):
        yield


@contextmanager
def _old_hand_over_believed() -> Iterator[None]:
    with patch.object(inbox, "_FRESH_S", math.inf):
        yield


@contextmanager
def _hand_over_overtakes_what_was_left() -> Iterator[None]:
    right = Inbox._accept

    def hasty(self: Inbox, delivery: Delivery | Handover, shard: ShardInbox, *more: Any) -> None:
        if isinstance(delivery, Handover):
            shard.left, shard.blocked = set(), set()
        right(self, delivery, shard, *more)

    with patch.object(Inbox, "_accept", hasty):
        yield


PLANTED: tuple[Planted, ...] = (
    ("replied before the commit", _replied_before_the_commit, workload.main, ("INV-D2",)),
    ("state kept after a declared error", _state_kept_after_a_declared_error, workload.main, ("M7", "INV-D4")),
    ("instance kept after a lost commit", _instance_kept_after_a_lost_commit, workload.main, ("M7", "INV-D4")),
    ("key ignored", _key_ignored, workload.main, ("INV-D2", "INV-D3")),
    ("awaited call under a new key each time", _awaited_call_under_a_new_key_each_time, workload.main, ("INV-D3",)),
    ("sent before the handler has ended", _sent_before_the_handler_has_ended, workload.main, ("B3",)),
    ("doubt about a send forgotten", _doubt_about_a_send_forgotten, workload.main, ("INV-D6",)),
    ("unknown commit of a handler taken as success", _unknown_commit_taken_as_success, workload.main, ("INV-D2", "M7")),
    ("committed without the fence", _committed_without_the_fence, workload.main, ("INV-F2", "INV-D4", "M7")),
    ("failed attempt not counted", _failed_attempt_not_counted, workload.main, ("INV-D1",)),
    ("begun too early", _begun_too_early, workload.main, ("INV-D5",)),
    ("old hand-over believed", _old_hand_over_believed, workload.main, ("M5", "INV-D5")),
    ("what has ended forgotten", _what_has_ended_forgotten, workload.main, ("M5",)),
    (
        "loss not counted on takeover",
        _loss_not_counted_on_takeover,
        test_messages.test_c5_inv_d7_a_message_that_kills_its_process_is_set_aside_and_the_cluster_lives,
        (),
    ),
    (
        "suspect begun before that is stored",
        _suspect_begun_before_that_is_stored,
        test_messages.test_c5_inv_d7_a_message_that_kills_its_process_is_set_aside_and_the_cluster_lives,
        (),
    ),
    (
        "innocent counted with the guilty",
        _innocent_counted_with_the_guilty,
        test_messages.test_c5_inv_d7_a_message_that_kills_its_process_is_set_aside_and_the_cluster_lives,
        (),
    ),
    (
        "hand-over overtakes what was left",
        _hand_over_overtakes_what_was_left,
        test_messages.test_m5_inv_e2_messages_of_a_sender_begin_in_order_past_full_mailboxes_and_moves,
        ("INV-E2",),
    ),
)
"""Name, how it is planted, what finds it, and the promises that are then broken, if it says so."""
SAMPLE = {
    "state kept after a declared error",
    "key ignored",
    "sent before the handler has ended",
    "innocent counted with the guilty",
    "hand-over overtakes what was left",
}
"""Those that every change is held against; the others take longer."""
