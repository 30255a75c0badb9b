"""Answers every call once, with its handler's result or an error of the cluster, and counts it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from coterie.entities.calls.wire import pack_failure
from coterie.entities.declared_errors import nearest
from coterie.errors import CoterieError, RunnerUnavailable, SendTimeout, UnknownEntity
from coterie.kernel import metrics

if TYPE_CHECKING:
    from coterie.entities.host.activation import HostCounts
    from coterie.entities.host.work import Work

log = logging.getLogger("coterie.entities")


class Responder:
    """Answers calls. A closed call (answered, or its caller no longer waits) is left alone.

    Args:
        runner: The name of the runner, for errors.
        counts: Counts the answers.

    Promise:
        A handler's result is sent only while the seat is held. Afterwards the error says that the call may have run,
        so that the caller does not repeat it unknowingly [INV-D8].
    """

    def __init__(self, runner: str, counts: HostCounts) -> None:
        self._runner = runner
        self._counts = counts

    def reply(self, work: Work, value: object) -> None:
        """The handler returned, or its stream has ended.

        Raises:
            MalformedMessage: The value does not fit the annotation; nothing was sent.
        """
        if work.is_open:
            self.send_result(work, b"" if work.rpc.is_stream else work.rpc.encode_result(value))

    def send_result(self, work: Work, body: bytes) -> None:
        """Send an encoded result, or the end of a stream."""
        if not (work.is_open and self._may_answer(work)):
            return
        self._counts.replied += 1
        work.rpc.counted.ok.value += 1
        if work.rpc.is_stream:
            work.end()
        else:
            work.reply(body)

    def fail(self, work: Work, error: BaseException) -> None:
        """The handler raised, or the entity could not be activated."""
        if work.is_open and self._may_answer(work):
            self._counts.failed += 1
            counted = work.rpc.counted
            (counted.failed if nearest(error, work.rpc.errors) is None else counted.declared).value += 1
            work.failed(pack_failure(error, work.rpc.errors))

    def refuse(self, work: Work, error: CoterieError) -> None:
        """The call cannot run here, or not in time."""
        if work.is_open:
            work.is_open = False
            self._counts.refused += 1
            # An unknown entity type gets no label, so that callers cannot create label values.
            entity_type = "" if isinstance(error, UnknownEntity) else work.entity_type
            metrics.REFUSED.of(entity_type, error.code).value += 1
            work.refuse(error)

    def not_mine(self, work: Work) -> None:
        """The call has not run, and must be sent elsewhere."""
        if work.is_open:
            work.is_open = False
            self._counts.refused += 1
            metrics.REFUSED.of(work.entity_type, "not_mine").value += 1
            work.not_mine()

    def cut_short(self, work: Work, problem: str) -> None:
        """The call may have run, and its outcome can no longer be sent."""
        self.refuse(work, RunnerUnavailable(runner=self._runner, target=work.target, problem=problem, sent=True))

    def _may_answer(self, work: Work) -> bool:
        if work.resident.shard.tenure.held:
            work.is_open = False
            return True
        self.cut_short(work, "it lost the shard while the call ran")
        return False


def timed_out(work: Work) -> SendTimeout:
    """The error of a call whose deadline has passed here."""
    hint = "" if work.has_begun else "it has not run: the entity was busy, or did not become active in time"
    return SendTimeout(target=work.target, waited_s=work.within_s, hint=hint)


def report_defect(work: Work, error: BaseException) -> None:
    """Log an undeclared error."""
    log.error("%s failed, and its instance is dropped: %r", work.target, error, exc_info=error)


def report_stubborn(work: Work, waited_s: float) -> None:
    """Log a handler that was cancelled and still runs."""
    if work.task is not None and not work.task.done():
        log.error(
            "%s was cancelled %g s ago and still runs, so that other calls of %s wait: it swallows CancelledError",
            work.target,
            waited_s,
            work.address,
        )
