"""All places that start something which goes on by itself: each is supervised, or listed here with the reason why not.

A new loop that nobody supervises fails this test: start it with `Tasks.supervise`, or say below why it may end.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import coterie

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(coterie.__file__).parent
STARTS = {"spawn", "create_task", "ensure_future", "Thread", "call_later", "call_at", "call_soon_threadsafe"}

SUPERVISED = {
    "accept connections": "transport/tcp.py::Handshakes.open",
    "watch certificates": "transport/tcp.py::TcpWire.listen",
    "commit groups": "storage/group_commit.py::GroupWriter._start",
    "end with trust": "ownership/membership.py::Membership._start",
    "fire schedules": "schedules/registry.py::HeldSchedules._begin",
    "feed the page": "web/cluster_view.py::ClusterView.supervise_feed",
    "hand over": "ownership/membership.py::Membership._compare",
    "hold cron": "cron/seat.py::CronSeat.__init__",
    "keep queues": "tasks/dispatcher/dispatcher.py::Dispatcher.__init__",
    "keep the lease": "ownership/lease_thread.py::LeaseKeeper._live",
    "lead singleton": "singletons/leadership.py::Leadership.__init__",
    "look at queues": "tasks/registry.py::HeldQueues._begin",
    "live again": "runner.py::Runner._start",
    "move incoming work": "incoming/mover.py::IncomingMover.__init__",
    "prune": "work/pruner.py::Pruner.start",
    "report the runner": "main.py::_run",
    "run workflows": "workflows/registry.py::ShardWorkflows.__init__",
    "serve HTTP": "web/server.py::_Server.main_loop",
    "settle seats": "ownership/membership.py::Membership._start",
    "start jobs": "tasks/dispatcher/dispatcher.py::Dispatcher.__init__",
    "stamp executions": "singletons/leadership.py::Leadership._begin",
    "sweep crons": "cron/registry.py::HeldCrons._begin",
    "sweep jobs": "tasks/worker/worker.py::JobWorker._start",
    "sweep messages": "entities/persisted/poller.py::Poller.wake",
    "sweep jobs of workflows": "workflows/registry.py::HeldWorkflows._begin",
    "sweep workflows": "workflows/registry.py::HeldWorkflows._begin",
    "watch calls": "client.py::Client._start",
    "watch users' commits": "entities/persisted/commit_watcher.py::CommitWatcher.watch",
    "watch files": "cli/run/supervisor.py::WorkerSupervisor.run_again_and_again",
    "watch the lease keeper": "ownership/membership.py::Membership._start",
}
"""Every standing task by its name, which is a label of `coterie_task_failures_total`, and where it is started."""

_COMMAND = "a command that people look at: it ends with its error"
_ONE_CALL = "one call, message or stream: its end is told to whoever waits"
_ONE_BODY = "code of the program: its end has an outcome"
_ASKED = "ends with what it was asked for; the next one who asks starts another"
_TIMER_ONCE = "rings once"

NOT_STANDING = {
    "cli/bench/__init__.py::_taken": _COMMAND,
    "cli/bench/__init__.py::_elsewhere": _COMMAND,
    "cli/demo/load.py::DepositLoad.start": _COMMAND,
    "cli/demo/runners.py::DemoRunner.start": _COMMAND,
    "cli/progress.py::ProgressLine.ticking": _COMMAND,
    "cli/run/supervisor.py::WorkerSupervisor.run": "starts a worker again whatever ended it, and is awaited",
    "cli/commands/top.py::Top.run": _COMMAND,
    "cron/seat.py::CronSeat._begin": "one tick: after an error the holder takes again, and finds it open",
    "cron/run.py::TickRun._within_timeout": _ONE_BODY,
    "cron/run.py::TickRun._beat_of_thread.beat": "one callback",
    "cron/run.py::TickRun._beat": "one write of a heartbeat; the next heartbeat starts another",
    "cron/tick.py::Tick.transaction": "one commit, awaited",
    "kv/changes.py::KeyValues.modify": "the changes of one key: its errors go to those who wait",
    "entities/calls/server.py::RemoteStream._finish": _ONE_CALL,
    "entities/calls/broadcast.py::Broadcasts.ask": _ONE_CALL,
    "entities/calls/broadcast.py::Broadcasts.on_request": _ONE_CALL,
    "entities/calls/client.py::CallClient._drop": _TIMER_ONCE,
    "entities/persisted/commit.py::Commits.undo": _ONE_CALL,
    "entities/persisted/commit.py::Commits._save": _ONE_CALL,
    "entities/persisted/commit.py::Commits.failed": _ONE_CALL,
    "entities/persisted/inbox.py::Inbox._arm": "arms itself again whatever a delivery raises",
    "entities/host/deactivation.py::Deactivations.begin": _ONE_BODY,
    "entities/host/deactivation.py::Deactivations.within_limit": _ONE_BODY,
    "entities/host/executor.py::HandlerExecutor.stop": _TIMER_ONCE,
    "entities/persisted/receiver.py::Receiver.on_request": _ONE_CALL,
    "entities/host/deactivation.py::IdleEntities._arm": "arms itself again whatever an eviction raises",
    "entities/calls/by_name_server.py::ByNameServer._begin": _ONE_CALL,
    "entities/persisted/sender.py::PersistedSender._deliver": _ONE_CALL,
    "entities/host/activation.py::Resident._spawn_resource": "holds a resource of the program open",
    "entities/host/resources.py::Resource.__init__": "holds a resource of the program open",
    "entities/calls/router.py::RouteNews.request": _ASKED,
    "entities/persisted/reply.py::RowLookup.find": _ASKED,
    "entities/host/dispatch.py::CallQueue.serve_on": "takes what is ready; starts the next one whatever ends it",
    "entities/host/dispatch.py::SpareTask.__init__": "carries on one handler",
    "entities/persisted/suspects.py::Suspects.add": "ends with the last suspect; after an error a poll adds them again",
    "incoming/mover.py::IncomingMover._follow": "one hint; a poll finds what it does not reach",
    "interop/loop_thread.py::LoopThread.__init__": "runs an event loop, which no error of a callback ends",
    "interop/loop_thread.py::LoopThread.connect": "one start, awaited",
    "interop/loop_thread.py::LoopThread.end": "one stop, at the end of the process",
    "interop/loop_thread.py::ThreadCall._begin": _ONE_CALL,
    "interop/loop_thread.py::ThreadCall._submit": _ONE_CALL,
    "interop/transactional_outbox.py::TransactionalOutbox.commit": "one commit, awaited",
    "entities/persisted/commit_watcher.py::CommitWatcher._ask_on": "one hint: without it a sweep finds the messages",
    "storage/group_commit.py::GroupWriter._leave": "one write: its end is told to whoever waits",
    "kernel/service.py::Service.start": "one start, awaited",
    "kernel/service.py::Service.stop": "one stop, awaited",
    "kernel/supervisor.py::Supervisor.give_up": "ends the runner",
    "kernel/service.py::Tasks.spawn": "what all the others come to",
    "kernel/service.py::Tasks.supervise": "what is supervised",
    "observe/collect.py::Collector.collect": _ASKED,
    "observe/collect.py::Collector._gather": _ASKED,
    "observe/collect.py::Collector._ask_all": _ASKED,
    "observe/otlp.py::Gauges.refresh": _ASKED,
    "observe/otlp.py::Gauges._refresh_health": _ASKED,
    "ownership/lease_thread.py::ThreadSideLoop.tell": "one callback",
    "ownership/lease_thread.py::ThreadSideLoop._start": "a loop: its end reaches all who wait, and they are supervised",
    "ownership/lease_thread.py::ThreadSideLoop._stop": "ends the thread",
    "ownership/directory.py::Directory.refresh": _ASKED,
    "ownership/failure_detector.py::FailureDetector._begin": "one attempt to reach a runner; the next pass tries anew",
    "ownership/failure_detector.py::FailureDetector._lost": "one examination; the lease decides if it fails",
    "ownership/machine_id.py::IdGenerator._begin_raising": _ASKED,
    "ownership/lease_thread.py::LeaseKeeper._keep": "one renewal: the keeper raises its error",
    "ownership/membership.py::Membership._asked_to_resign": "gives up one seat",
    "ownership/membership.py::Membership._settle": "a timer that only wakes the pass",
    "ownership/membership.py::Membership._begin_move": "one move: what fails is owed, and given back by the next pass",
    "runner.py::RunnerLife._start": "waits for the first settling",
    "runner.py::Runner._end_by_itself": "one stop",
    "runner.py::Runner.define": "one callback",
    "runner.py::Runner.beside": "one start",
    "setup.py::Setups.open": "holds open what the program opened",
    "main.py::Signals.on_first": "one callback",
    "main.py::_live": "one drain, awaited",
    "main.py::_drain": "tells of the progress of one drain",
    "singletons/leadership.py::Leadership._spawn": "one hook or one end",
    "work/threads.py::ThreadPool._fill": "gives one body a thread; while bodies wait, the next change sets it again",
    "work/threads.py::ThreadPool.cancel": _TIMER_ONCE,
    "work/threads.py::ThreadPool._start_thread": "every error of a body is its caller's",
    "work/threads.py::ThreadPool._run_bodies": "one callback",
    "work/occupants.py::Occupants._resign": "releases one seat",
    "singletons/state.py::LeaderState._spawn": "one save, awaited",
    "durable/journal.py::Journal._spawn": "one step, awaited",
    "storage/postgres/lease_session.py::SessionTerminator.beside": "lives as long as one eviction",
    "storage/postgres/session.py::PostgresSession._watch": _TIMER_ONCE,
    "storage/sqlite/executor.py::ThreadExecutor._start": "every error of work is its caller's, of idling is logged",
    "storage/sqlite/executor.py::ThreadExecutor._post": "one callback",
    "storage/user_transaction.py::UserTransaction._start_the_clock": _TIMER_ONCE,
    "storage/user_transaction.py::UserTransaction._end": "one end of a transaction",
    "tasks/exchange.py::JobExchange._send": "one attempt to connect: what the frames say is found by sweeps",
    "tasks/exchange.py::JobExchange.on_request": _ONE_CALL,
    "tasks/exchange.py::JobExchange._refresh": _ASKED,
    "tasks/exchange.py::JobExchange._tell_holder": "one search for a holder: likewise",
    "tasks/worker/attempt.py::JobRun.attempt": _TIMER_ONCE,
    "tasks/worker/attempt.py::JobRun.stop": _TIMER_ONCE,
    "tasks/worker/attempt.py::JobRun.undo": "one rollback",
    "tasks/worker/body_process.py::BodyRunner.run": "reads for a process; whatever ends it ends the process",
    "tasks/worker/processes.py::BodyProcess.__init__": "listens to one process: its end is that of the process",
    "tasks/worker/processes.py::BodyProcess.run": _TIMER_ONCE,
    "tasks/worker/progress.py::ProgressNotes._note": "the notes of one job; the next one starts another",
    "tasks/worker/progress.py::ProgressNotes._report": "one callback",
    "tasks/worker/reports.py::HolderReports.changed": _TIMER_ONCE,
    "tasks/worker/worker.py::JobWorker._accept": _TIMER_ONCE,
    "tasks/worker/worker.py::JobWorker._begin_run": _ONE_BODY,
    "tasks/worker/worker.py::JobWorker._cannot_decode": "one write: without it the sweep finds the job",
    "tasks/worker/worker.py::JobWorker._look_up": "one read: without it the sweep finds the jobs",
    "tasks/worker/worker.py::JobWorker._put_off": "one write: without it the sweep finds the job",
    "tasks/worker/worker.py::JobWorker._return": "what is to be given back: the sweep finds what is left",
    "tasks/worker/worker.py::JobWorker._sweep": "one drain",
    "transport/connection.py::Connection.close": _TIMER_ONCE,
    "kernel/deadlines.py::Deadlines.arm": "arms itself again whatever a sweep raises",
    "transport/listener.py::PendingSocket.__init__": _TIMER_ONCE,
    "transport/listener.py::Refusals._rest": _TIMER_ONCE,
    "transport/tcp.py::Handshakes._accept": "one TLS handshake",
    "transport/peers.py::Peers._opened": _ASKED,
    "transport/connection.py::Pulse.__init__": "see the next",
    "transport/connection.py::Pulse._tick": "arms itself before it does anything that could raise",
    "web/limits.py::Bounded.pause_writing": _TIMER_ONCE,
    "web/limits.py::Bounded._expect": _TIMER_ONCE,
    "web/server.py::HttpServer._start": "uvicorn, which waits for its supervised loop",
    "web/server.py::_Server.shutdown": _TIMER_ONCE,
    "workflows/execution.py::Execution.hint": "one look",
    "workflows/execution.py::Execution.interrupt": _TIMER_ONCE,
    "workflows/execution.py::Execution._run": _ONE_BODY,
    "workflows/registry.py::HeldWorkflows.send_hint": "one hint",
    "workflows/registry.py::HeldWorkflows.interrupt_children": "after an error the next poll does it",
    "workflows/registry.py::ShardWorkflows._begin": "one run: after an error the shard takes again, and finds it",
    "workflows/registry.py::ShardWorkflows.receive": _TIMER_ONCE,
    "workflows/api.py::start_within.enlist": "one hint: without it a sweep finds the run",
}
"""Everything else that is started, and why an error may end it."""


class Start(NamedTuple):
    """A place in the source that starts something."""

    place: str
    how: str
    name: str


def starts(path: Path) -> Iterator[Start]:
    """What a file starts."""
    prefix = str(path.relative_to(SOURCE))

    def visit(node: ast.AST, scope: tuple[str, ...]) -> Iterator[Start]:
        for child in ast.iter_child_nodes(node):
            is_scope = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
            inner = (*scope, child.name) if is_scope else scope  # type: ignore[attr-defined]
            if isinstance(child, ast.Call):
                how = getattr(child.func, "attr", getattr(child.func, "id", ""))
                if how in STARTS or how.lstrip("_") == "supervise":
                    yield Start(f"{prefix}::{'.'.join(inner)}", how, _name_of(child))
            yield from visit(child, inner)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), ())


def _name_of(call: ast.Call) -> str:
    texts = [*(word.value for word in call.keywords if word.arg == "name"), *call.args]
    return next((each.value for each in texts if isinstance(each, ast.Constant) and isinstance(each.value, str)), "")


def all_starts() -> list[Start]:
    files = sorted(path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "testing")
    return [start for path in files for start in starts(path)]


def test_all_that_goes_on_by_itself_is_supervised_or_has_a_reason_not_to_be() -> None:
    found = {start.place for start in all_starts() if start.how in STARTS}
    new = sorted(found - NOT_STANDING.keys())
    assert not new, f"start these with Tasks.supervise, or say in NOT_STANDING why an error may end them: {new}"
    assert not sorted(NOT_STANDING.keys() - found), "these are not in the source any more"


def test_the_list_of_standing_tasks_is_that_of_the_source() -> None:
    found: dict[str, str] = {}
    for start in all_starts():
        if start.how not in STARTS and start.name:
            found[start.name] = f"{found[start.name]}, {start.place}" if start.name in found else start.place
    assert found == SUPERVISED


@pytest.mark.parametrize("name", SUPERVISED)
def test_the_name_of_a_standing_task_is_a_label_with_few_values(name: str) -> None:
    assert name == name.strip()
    assert "{" not in name
