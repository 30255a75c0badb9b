"""A handful of Python processes that act as one.

Names are imported when they are first used, so that the command line starts fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coterie.cluster import Cluster
    from coterie.cron.api import CronInfo, Crons, TickInfo, Upcoming
    from coterie.cron.tick import Tick
    from coterie.durable.unit import Durable
    from coterie.durable.waits import Deferred
    from coterie.entities.calls.broadcast import Replies
    from coterie.entities.entity import Entity
    from coterie.entities.persisted.api import FailedAttempt, MessageInfo, Messages
    from coterie.entities.rpc import rpc
    from coterie.errors import (
        AlreadyResolved,
        AlreadyUndone,
        ClusterContextRequired,
        ClusterError,
        ConfigurationError,
        CoterieError,
        DeferredMismatch,
        DeferredRejected,
        DeferredTimeout,
        Discarded,
        EntityNotAssigned,
        Forked,
        HeartbeatFailed,
        InvalidArgument,
        KeyConflict,
        LeaderHandoffFailed,
        LeadershipLost,
        MailboxFull,
        MalformedMessage,
        MessageCancelled,
        MessageDead,
        MessageExpired,
        NewerVersion,
        NotCommitted,
        NotReady,
        NotStarted,
        PersistenceError,
        ReceiveTimeout,
        ReentrantCall,
        RemoteError,
        ReplayDiverged,
        RunnerFull,
        RunnerUnavailable,
        ScheduleError,
        SchemaDecodeFailed,
        SendTimeout,
        ShuttingDown,
        SingletonError,
        StateLoadFailed,
        StatePersistFailed,
        StepDiverged,
        StorageReplaced,
        TransactionTimeout,
        UnknownEntity,
        UnreadablePayload,
        WorkflowEnded,
        WorkflowError,
        WorkflowFailed,
        WorkflowInterrupted,
        WorkflowNotFailed,
        WorkflowNotFound,
        WorkflowTimeout,
        WrongLoop,
    )
    from coterie.interop.sync import SyncCluster, SyncKeyValueStore, SyncWorkflowHandle
    from coterie.kernel.context import ClusterContext, current, within_cluster
    from coterie.kernel.durations import Duration
    from coterie.kernel.ids import MessageId, ShardId, Snowflake
    from coterie.kernel.retry import Breaker, Discard, Retry, Snooze
    from coterie.kv.store import KeyValueStore
    from coterie.observe.health import Health, Reason
    from coterie.schedules.api import ScheduleInfo, Schedules
    from coterie.schedules.verdict import ScheduleOutcome
    from coterie.settings import Encrypted, Settings
    from coterie.singletons.api import SavedState, SingletonInfo, Singletons
    from coterie.singletons.heartbeat import ExecutionMeta
    from coterie.singletons.leader import Leader
    from coterie.storage.contracts.jobs import JobProgress
    from coterie.tasks.api import JobInfo, Jobs
    from coterie.tasks.definition import Queue
    from coterie.tasks.pauses import Pauses
    from coterie.tasks.queues import QueueInfo, Queues
    from coterie.tasks.task import Job, Task
    from coterie.work.middleware import CallNext, WorkInfo
    from coterie.work.transaction import Transaction
    from coterie.workflows.api import WorkflowHandle, WorkflowInfo, Workflows
    from coterie.workflows.history import StepInfo
    from coterie.workflows.workflow import Workflow

__all__ = [
    "AlreadyResolved",
    "AlreadyUndone",
    "Breaker",
    "CallNext",
    "Cluster",
    "ClusterContext",
    "ClusterContextRequired",
    "ClusterError",
    "ConfigurationError",
    "CoterieError",
    "CronInfo",
    "Crons",
    "Deferred",
    "DeferredMismatch",
    "DeferredRejected",
    "DeferredTimeout",
    "Discard",
    "Discarded",
    "Durable",
    "Duration",
    "Encrypted",
    "Entity",
    "EntityNotAssigned",
    "ExecutionMeta",
    "FailedAttempt",
    "Forked",
    "Health",
    "HeartbeatFailed",
    "InvalidArgument",
    "Job",
    "JobInfo",
    "JobProgress",
    "Jobs",
    "KeyConflict",
    "KeyValueStore",
    "Leader",
    "LeaderHandoffFailed",
    "LeadershipLost",
    "MailboxFull",
    "MalformedMessage",
    "MessageCancelled",
    "MessageDead",
    "MessageExpired",
    "MessageId",
    "MessageInfo",
    "Messages",
    "NewerVersion",
    "NotCommitted",
    "NotReady",
    "NotStarted",
    "Pauses",
    "PersistenceError",
    "Queue",
    "QueueInfo",
    "Queues",
    "Reason",
    "ReceiveTimeout",
    "ReentrantCall",
    "RemoteError",
    "ReplayDiverged",
    "Replies",
    "Retry",
    "RunnerFull",
    "RunnerUnavailable",
    "SavedState",
    "ScheduleError",
    "ScheduleInfo",
    "ScheduleOutcome",
    "Schedules",
    "SchemaDecodeFailed",
    "SendTimeout",
    "Settings",
    "ShardId",
    "ShuttingDown",
    "SingletonError",
    "SingletonInfo",
    "Singletons",
    "Snooze",
    "Snowflake",
    "StateLoadFailed",
    "StatePersistFailed",
    "StepDiverged",
    "StepInfo",
    "StorageReplaced",
    "SyncCluster",
    "SyncKeyValueStore",
    "SyncWorkflowHandle",
    "Task",
    "Tick",
    "TickInfo",
    "Transaction",
    "TransactionTimeout",
    "UnknownEntity",
    "UnreadablePayload",
    "Upcoming",
    "WorkInfo",
    "Workflow",
    "WorkflowEnded",
    "WorkflowError",
    "WorkflowFailed",
    "WorkflowHandle",
    "WorkflowInfo",
    "WorkflowInterrupted",
    "WorkflowNotFailed",
    "WorkflowNotFound",
    "WorkflowTimeout",
    "Workflows",
    "WrongLoop",
    "current",
    "rpc",
    "within_cluster",
]

_MODULES = {
    "cluster": ("Cluster",),
    "cron.api": ("CronInfo", "Crons", "TickInfo", "Upcoming"),
    "cron.tick": ("Tick",),
    "durable.unit": ("Durable",),
    "durable.waits": ("Deferred",),
    "entities.calls.broadcast": ("Replies",),
    "entities.entity": ("Entity",),
    "entities.persisted.api": ("FailedAttempt", "MessageInfo", "Messages"),
    "entities.rpc": ("rpc",),
    "interop.sync": ("SyncCluster", "SyncKeyValueStore", "SyncWorkflowHandle"),
    "kernel.context": ("ClusterContext", "current", "within_cluster"),
    "kernel.durations": ("Duration",),
    "kernel.ids": ("MessageId", "ShardId", "Snowflake"),
    "kernel.retry": ("Breaker", "Discard", "Retry", "Snooze"),
    "kv.store": ("KeyValueStore",),
    "observe.health": ("Health", "Reason"),
    "settings": ("Encrypted", "Settings"),
    "schedules.api": ("ScheduleInfo", "Schedules"),
    "schedules.verdict": ("ScheduleOutcome",),
    "singletons.api": ("SavedState", "SingletonInfo", "Singletons"),
    "singletons.heartbeat": ("ExecutionMeta",),
    "singletons.leader": ("Leader",),
    "storage.contracts.jobs": ("JobProgress",),
    "tasks.api": ("JobInfo", "Jobs"),
    "tasks.definition": ("Queue",),
    "tasks.pauses": ("Pauses",),
    "tasks.queues": ("QueueInfo", "Queues"),
    "tasks.task": ("Job", "Task"),
    "work.middleware": ("CallNext", "WorkInfo"),
    "work.transaction": ("Transaction",),
    "workflows.api": ("WorkflowHandle", "WorkflowInfo", "Workflows"),
    "workflows.history": ("StepInfo",),
    "workflows.workflow": ("Workflow",),
}
"""The public names that are not errors, by the modules where they live."""
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    value: object = getattr(import_module(f"coterie.{_HOMES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
