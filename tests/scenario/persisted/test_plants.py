"""Planted bugs of retries and tags: the scenarios find each, on a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from coterie import Discard, MessageDead, Snooze
from coterie.entities.host.executor import HandlerExecutor
from coterie.entities.host.host import Host
from coterie.entities.persisted.commit import Commits
from coterie.entities.persisted.inbox import Inbox
from coterie.kernel.retry import Retry
from coterie.storage.sqlite import message_writes
from tests.scenario.persisted import test_retries as retries
from tests.scenario.persisted import test_tags as tags
from tests.scenario.persisted.entity_program import QUICK

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from pathlib import Path

    from coterie.entities.persisted.inbox import StoredCall

    Plant = tuple[Callable[[], AbstractContextManager[Any]], Callable[[str], Coroutine[Any, Any, None]]]


def _snooze_counts_an_attempt() -> AbstractContextManager[Any]:
    def counted(self: Inbox, work: StoredCall, delay_s: float) -> None:
        self._set_back(work, "Snooze", again_s=delay_s)

    return patch.object(Inbox, "put_off", counted)


def _effects_of_a_snoozed_run_kept() -> AbstractContextManager[Any]:
    right = HandlerExecutor.raised

    def raised(self: HandlerExecutor, work: Any, error: BaseException) -> None:
        if isinstance(error, Snooze) and work.resident.entity is not None:
            with patch.object(Commits, "undo", lambda *_: None):
                right(self, work, error)
        else:
            right(self, work, error)

    return patch.object(HandlerExecutor, "raised", raised)


def _discard_is_retried() -> AbstractContextManager[Any]:
    right = HandlerExecutor.raised

    def raised(self: HandlerExecutor, work: Any, error: BaseException) -> None:
        right(self, work, RuntimeError(error.why) if isinstance(error, Discard) else error)

    return patch.object(HandlerExecutor, "raised", raised)


def _unless_is_ignored() -> AbstractContextManager[Any]:
    def retries(self: Retry, error: BaseException | None) -> bool:
        return self.on is None or not isinstance(error, Exception) or isinstance(error, self.on)

    return patch.object(Retry, "retries", retries)


def _policy_of_the_rpc_is_ignored() -> AbstractContextManager[Any]:
    return patch.object(Host, "retry_of", lambda *_: QUICK)


def _tags_of_a_handler_s_sends_are_lost() -> AbstractContextManager[Any]:
    right = message_writes._commit

    def commit(connection: Any, scope: Any, write: Any) -> Any:
        return right(connection, scope, replace(write, sends=tuple(replace(each, tags=()) for each in write.sends)))

    return patch.object(message_writes, "_commit", commit)


PLANTED: dict[str, Plant] = {
    "a snooze counts an attempt": (
        _snooze_counts_an_attempt,
        retries.test_a_call_that_is_put_off_runs_again_as_the_same_attempt_and_leaves_nothing,
    ),
    "the effects of a run that was put off are kept": (
        _effects_of_a_snoozed_run_kept,
        retries.test_a_call_that_is_put_off_runs_again_as_the_same_attempt_and_leaves_nothing,
    ),
    "a discarded call is retried": (
        _discard_is_retried,
        retries.test_a_discarded_call_ends_with_an_error_and_is_neither_retried_nor_dead,
    ),
    "unless is ignored": (_unless_is_ignored, retries.test_only_what_the_rpc_s_policy_names_is_tried_again),
    "the policy of the rpc is ignored": (
        _policy_of_the_rpc_is_ignored,
        retries.test_only_what_the_rpc_s_policy_names_is_tried_again,
    ),
    "the tags of what a handler sends are lost": (
        _tags_of_a_handler_s_sends_are_lost,
        tags.test_a_handler_s_sends_have_their_tags_if_it_succeeds,
    ),
}


@pytest.mark.parametrize("name", PLANTED)
async def test_each_planted_bug_is_found(name: str, tmp_path: Path) -> None:
    plant, finds = PLANTED[name]
    with plant(), pytest.raises((AssertionError, MessageDead, pytest.fail.Exception)):
        await finds(f"sqlite:///{tmp_path}/planted.db")
