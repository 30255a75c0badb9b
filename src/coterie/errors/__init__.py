"""Every error that coterie raises: what happened to what, and what to do.

    CoterieError                     .message .hint .code .retryable
    ├── ClusterError                 .reason
    │   ├── MailboxFull  RunnerFull  SendTimeout*  RunnerUnavailable  EntityNotAssigned  MalformedMessage  UnknownEntity
    │   ├── KeyConflict  ReentrantCall  InvalidArgument (also ValueError)  MessageDead  MessageCancelled
    │   ├── Discarded  MessageExpired  NotCommitted  TransactionTimeout  PersistenceError (with StorageReplaced)
    │   └── NotStarted  NotReady*  ShuttingDown  Forked  WrongLoop
    ├── RemoteError                  an undeclared exception in a handler
    ├── SingletonError               .reason .singleton
    │   └── StateLoadFailed  StatePersistFailed  SchemaDecodeFailed  HeartbeatFailed  LeaderHandoffFailed
    ├── LeadershipLost  NewerVersion  ClusterContextRequired  ScheduleError  ConfigurationError
    └── WorkflowError
        ├── StepDiverged (with ReplayDiverged)  DeferredTimeout*  DeferredRejected  DeferredMismatch  AlreadyResolved
        └── WorkflowFailed  WorkflowInterrupted  WorkflowNotFound  WorkflowEnded  WorkflowTimeout*  ReceiveTimeout*

Those with a star are a `TimeoutError`, too.
The text lives in the class: an annotation declares a fact, `text` and `advice` are filled from the facts.
`raise MailboxFull(entity="Account/alice", waiting=1000)` is all that the place of the failure says. Facts are
plain values, so an error survives pickling (for users' process pools) and the wire (`to_wire`, `from_wire`).
"""

from __future__ import annotations

from typing import Literal

from coterie.errors.base import CoterieError, quoted

__all__ = ["CoterieError", "quoted"]

Outcome = Literal["refused", "unreachable", "unknown"]


class ClusterError(CoterieError):
    """A call, a message or the cluster's own work that could not be done."""

    @property
    def reason(self) -> str:
        """The name of the error, for matching and for labels."""
        return type(self).__name__


class MailboxFull(ClusterError):
    """An entity's bounded queue has no room."""

    text = "mailbox of {entity} is full ({waiting} waiting)"
    advice = "slow the senders, or raise mailbox= on the entity"
    retryable = True
    entity: str
    waiting: int


class RunnerFull(ClusterError):
    """A runner holds as many entities as it may."""

    text = "runner {runner} holds {resident} entities, the most it may, so {entity} cannot be activated"
    advice = "add a runner, shorten max_idle, or raise resident_entities"
    retryable = True
    runner: str
    entity: str
    resident: int


class SendTimeout(ClusterError, TimeoutError):
    """No reply within the call's deadline. The handler may have run."""

    text = "no reply from {target} within {waited_s:g}s"
    advice = "raise timeout=, or look at what the handler waits for"
    retryable = True
    target: str
    waited_s: float
    message_id: str = ""  # of a persisted call that is stored, and runs whether or not it is waited for


class RunnerUnavailable(ClusterError):
    """The runner that should answer cannot be reached. A volatile call may have run once.

    `sent` is false if the request provably never left: then it did not run.
    """

    text = "runner {runner} cannot be reached for {target}: {problem}"
    advice = "the call may have run; send it again if that is safe"
    retryable = True
    runner: str
    target: str
    problem: str
    sent: bool = True


class EntityNotAssigned(ClusterError):
    """No runner holds the entity's shard at the moment."""

    text = "shard {shard} of {entity} has no owner"
    advice = "is a runner of its group up? coterie shards shows who owns what"
    retryable = True
    entity: str
    shard: str


class MalformedMessage(ClusterError):
    """A value does not fit the declared type."""

    text = "{what}: {problem}"
    what: str
    problem: str


class UnknownEntity(ClusterError):
    """No live runner knows this entity type or method."""

    text = "no runner knows {target}"
    advice = "is the program that defines it deployed? coterie runners list shows what each one knows"
    target: str


class KeyConflict(ClusterError):
    """The same key was used before with another payload."""

    text = "key {key!r} of {target} was used before with another payload (message {message_id})"
    advice = "use a new key for a new request, or send the same payload again"
    target: str
    key: str
    message_id: str


class ReentrantCall(ClusterError):
    """An awaited call to an entity that waits for this very call."""

    text = "{target} is already in this chain of calls ({chain}) and would wait for itself"
    advice = "give it to cluster.send(…) instead of awaiting it, or call the method on self"
    target: str
    chain: str


class InvalidArgument(ClusterError, ValueError):
    """A text or an instant that not every database can keep."""

    text = "{what} is {value}: {problem}"
    what: str
    value: str
    problem: str


class MessageDead(ClusterError):
    """The message was set aside after its attempts."""

    text = "message {message_id} to {target} is dead after {attempts} attempts: {problem}"
    advice = "coterie messages show {message_id} tells each attempt, coterie messages retry {message_id} runs it again"
    message_id: str
    target: str
    attempts: int
    problem: str


class MessageExpired(ClusterError):
    """The message is unknown: its retention has passed, or it never existed."""

    text = "message {message_id} is unknown: its retention has passed, or it never existed"
    advice = "results are kept for the setting retention after completion"
    message_id: str


class NotCommitted(ClusterError):
    """The message was stored in a transaction that has not committed."""

    text = "message {message_id} is not committed yet: the transaction that it was sent in is open"
    advice = "commit that transaction first, then wait for the result; if it is rolled back, there will be none"
    retryable = True
    message_id: str


class MessageCancelled(ClusterError):
    """The message was cancelled: before it ran, or, a job, while it ran."""

    text = "message {message_id} was cancelled"
    advice = "send it again if it is to run after all"
    message_id: str


class Discarded(ClusterError):
    """The handler of the message has given it up, by `raise Discard(…)`."""

    text = "message {message_id} to {target} was discarded: {problem}"
    advice = "it is not retried; send it again, with another key if it has one, once that has changed"
    message_id: str
    target: str
    problem: str


class TransactionTimeout(ClusterError):
    """A user's transaction was open for longer than it may be."""

    text = (
        "transaction of {target} was open for {waited_s:g}s, longer than the limit of {limit_s:g}s, and was rolled back"
    )
    advice = "await other services before or after the block, or raise transaction_limit"
    target: str
    waited_s: float
    limit_s: float


class PersistenceError(ClusterError):
    """The database did not do what was asked.

    `outcome` says what is known: "refused" (rolled back, nothing was written), "unreachable" (nothing was
    sent), "unknown" (the connection broke while the commit was under way: it may have happened).
    """

    text = "cannot {doing}: {problem}"
    advice = "is the database up, and reachable from here?"
    retryable = True
    doing: str
    problem: str
    outcome: Outcome = "refused"


class StorageReplaced(PersistenceError):
    """The database file was deleted, moved or replaced while this process had it open: what is written is lost.

    A runner stops with this error, a client's reads and writes raise it; neither recovers without a restart.
    """

    advice = "stop all processes that use it, put the file back or restore a backup, then start them again"
    retryable = False


class UnreadablePayload(PersistenceError):
    """A stored value cannot be decrypted: this process does not have its key, or the value was changed or moved.

    `key` is the id of the key, empty if there is none. The row waits in storage for a process that has the key.
    """

    advice = "give this process the key in payload_keys; coterie payloads status counts the rows of each key"
    key: str


class NotStarted(ClusterError):
    """Used before it was started."""

    text = "{what} is not started"
    advice = "use it inside `async with cluster:` (a runner) or `async with cluster.connect():` (a client)"
    what: str


class NotReady(ClusterError, TimeoutError):
    """Started, but not able to do its work within the time that was given."""

    text = "{what} is not ready after {waited_s:g}s: {problem}"
    advice = "wait longer, or look at the log for what keeps it"
    retryable = True
    what: str
    waited_s: float
    problem: str


class ShuttingDown(ClusterError):
    """Used while or after it stops."""

    text = "{what} is stopping or has stopped"
    advice = "send it from a process that stays"
    what: str


class Forked(ClusterError):
    """Used in a child process that inherited it by fork."""

    text = "{what} was opened in process {parent} and inherited by process {child} through a fork"
    advice = "open it after the fork, or start processes with spawn"
    what: str
    parent: int
    child: int


class WrongLoop(ClusterError):
    """Used on another event loop than the one on which it was started."""

    text = "{what} was started on another event loop, in thread {owner!r}, and is used in thread {here!r}"
    advice = "call it on its own loop: asyncio.run_coroutine_threadsafe(…, loop) carries a call there"
    what: str
    owner: str
    here: str


class RemoteError(CoterieError):
    """An undeclared exception in a handler, with its remote traceback; or a declared one whose class is not known."""

    text = "{type_name}: {problem}"
    type_name: str
    problem: str
    remote_traceback: str
    declared: bool = False

    def __str__(self) -> str:
        return f"{self.message}\n\n{self.remote_traceback}" if self.remote_traceback else self.message


class SingletonError(CoterieError):
    """A singleton could not do its own housekeeping."""

    text = "singleton {singleton!r}: {problem}"
    singleton: str
    problem: str

    @property
    def reason(self) -> str:
        """The name of the error, for matching and for labels."""
        return type(self).__name__


class StateLoadFailed(SingletonError):
    """The state could not be read."""

    text = "state of {singleton!r} cannot be loaded: {problem}"
    advice = "it is tried again; nothing was changed"
    retryable = True


class StatePersistFailed(SingletonError):
    """The state could not be saved."""

    text = "state of {singleton!r} cannot be saved: {problem}"
    advice = "it is tried again while this runner leads"
    retryable = True


class SchemaDecodeFailed(SingletonError):
    """The stored state does not fit the program's type."""

    text = "state of {singleton!r} does not fit this program: {problem}"
    advice = "roll the program forward, or add a migration; the stored state was not touched"


class HeartbeatFailed(SingletonError):
    """The sign of life could not be written."""

    text = "heartbeat of {singleton!r} cannot be written: {problem}"
    advice = "it is written again with the next one"


class LeaderHandoffFailed(SingletonError):
    """A hook failed or hung while leadership changed hands."""

    text = "hand-over of {singleton!r} did not go cleanly: {problem}"
    advice = "leadership moved all the same; look at the hook"


class LeadershipLost(CoterieError):
    """This runner no longer holds the seat (`singleton:importer`, `shard:default:42`): nothing was written.

    With `in_doubt` an earlier attempt, which the database has not answered, may have been written.
    """

    text = "{seat} is lost: epoch {epoch} is no longer ours"
    advice = "stop writing; this work is being cancelled, and others go on with it"
    seat: str
    epoch: int
    in_doubt: bool = False

    @property
    def message(self) -> str:
        """What happened to what: a shard is lost, of all else the leadership."""
        kind, _, name = self.seat.partition(":")
        what = f"shard {name}" if kind == "shard" else f"leadership of {quoted(name)}"
        doubt = ", and whether its last write happened is not known" if self.in_doubt else ""
        return f"{what} is lost: epoch {self.epoch} is no longer ours{doubt}"


class NewerVersion(CoterieError):
    """A stored state was written by a later version of the program: this runner cannot use it."""

    text = "{what} is version {found}, this program knows up to {known}"
    advice = "roll the program forward, or add a migration; the stored state was not touched"
    what: str
    found: int
    known: int


class ClusterContextRequired(CoterieError):
    """Asked for the context outside of cluster work."""

    text = "there is no cluster context here"
    advice = "call it from a handler, singleton or cron, or open one with within_cluster(…)"


class ScheduleError(CoterieError):
    """A cron expression or a time zone that cannot be read."""

    text = "cannot read {expression!r}: {problem}"
    expression: str
    problem: str
    position: int = 0
    length: int = 1
    timezone: str | None = None
    cron: str = ""

    @property
    def message(self) -> str:
        """What cannot be read and why; with `timezone` it is that which is unknown."""
        if self.timezone is not None:
            subject = f"cron {quoted(self.cron)}" if self.cron else f"schedule {quoted(self.expression)}"
            return f"{subject} needs a time zone that exists; {quoted(self.timezone)} is unknown"
        return f"cron {quoted(self.cron)}: {super().message}" if self.cron else super().message

    @property
    def pointer(self) -> str:
        """The expression and marks below what is wrong in it, for terminals; nothing where it is the zone."""
        if self.timezone is not None:
            return ""
        shown = "".join(char if char.isprintable() else " " for char in self.expression)
        return f"{shown}\n{' ' * self.position}{'^' * self.length}"


class ConfigurationError(CoterieError):
    """A setting or an environment that cannot be used."""

    problem: str


class WorkflowError(CoterieError):
    """A workflow, a step or a deferred that did not go as it should."""


class StepDiverged(WorkflowError):
    """The code took another path than the one that is stored."""

    text = "{unit}: step {found!r} was reached where {stored!r} is stored"
    advice = "the code changed while this ran; guard the change with patched(…). Nothing was changed"
    unit: str
    found: str
    stored: str


class ReplayDiverged(StepDiverged):
    """In a replay, the code took another path than the history. `stored` is `the end` where the history ends."""

    text = "{unit}: {found!r} was reached at {place}, where {stored!r} is stored"
    advice = "runs like this one would not continue with this code; guard the change with patched(…)"
    place: str


class DeferredTimeout(WorkflowError, TimeoutError):
    """The value did not come in time."""

    text = "deferred {name!r} of {unit} got no value within {waited_s:g}s"
    unit: str
    name: str
    waited_s: float


class ReceiveTimeout(WorkflowError, TimeoutError):
    """No message came in time."""

    text = "{unit} received no message {name!r} within {waited_s:g}s"
    advice = "what comes later waits for the next receive of this name"
    unit: str
    name: str
    waited_s: float


class DeferredRejected(WorkflowError):
    """The deferred was rejected."""

    text = "deferred {name!r} of {unit} was rejected: {problem}"
    unit: str
    name: str
    problem: str


class DeferredMismatch(WorkflowError):
    """A value of another type than the deferred was given."""

    text = "deferred {name!r} of {unit} takes {expected}: {problem}"
    advice = "nothing was stored; give a value of that type with the same token"
    unit: str
    name: str
    expected: str
    problem: str


class AlreadyResolved(WorkflowError):
    """The first value wins, and after the end of its work a deferred takes none."""

    text = "deferred {name!r} of {unit} has a value already"
    advice = "the first one stays"
    unit: str
    name: str
    is_over: bool = False

    @property
    def message(self) -> str:
        """What happened to what: it has a value, or its work is over."""
        if self.is_over:
            return (
                f"deferred {quoted(self.name)} of {self.unit} takes no value any more: the work it belonged to is over"
            )
        return super().message


class WorkflowFailed(WorkflowError):
    """The workflow ended with an error."""

    text = "workflow {workflow}/{id} failed: {problem}"
    workflow: str
    id: str
    problem: str


class WorkflowInterrupted(WorkflowError):
    """The workflow was interrupted."""

    text = "workflow {workflow}/{id} was interrupted{reason}"
    advice = "what it had said how to undo was undone; start it anew under another id"
    workflow: str
    id: str
    reason: str = ""
    """Why, if nobody has asked."""


class WorkflowNotFound(WorkflowError):
    """There is no such run."""

    text = "there is no run {id!r} of workflow {workflow!r}, or none any more"
    advice = "start_workflow starts one; runs that have ended are kept for the setting retention"
    workflow: str
    id: str


class WorkflowEnded(WorkflowError):
    """The run is over, so it cannot be resumed, and receives nothing."""

    text = "workflow {workflow}/{id} is {status}, and {refused}"
    advice = "start this work again under another id"
    workflow: str
    id: str
    status: str
    refused: str = "cannot be resumed"


class WorkflowNotFailed(WorkflowError):
    """Only a run that has failed is retried."""

    text = "workflow {workflow}/{id} is {status}, and only a run that has failed is retried"
    advice = "start_workflow(…, again=True) begins another life of a run that is over"
    workflow: str
    id: str
    status: str


class AlreadyUndone(WorkflowError):
    """A compensation of the run has begun: what its steps say is not so any more."""

    text = "workflow {workflow}/{id} has begun to undo what its steps did, and cannot go on from them"
    advice = (
        'start it again with again=True; on_failure="hold" has a run wait for your decision before it undoes anything'
    )
    workflow: str
    id: str


class WorkflowTimeout(WorkflowError, TimeoutError):
    """The run has not ended within the time that was given. It goes on."""

    text = "workflow {workflow}/{id} has not ended within {waited_s:g}s: it is {status}"
    advice = "it goes on: wait again with a longer timeout=; coterie workflows show {workflow}/{id} shows its steps"
    workflow: str
    id: str
    waited_s: float
    status: str
