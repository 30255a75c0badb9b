"""What to do when an attempt to call has brought no answer of a handler: try again, or tell the caller. Pure.

nobody holds the shard, "not mine"       again, after news; at the deadline `EntityNotAssigned`
the runner was not reached, not sent     again, after news; at the deadline `RunnerUnavailable`
the owner's program does not know it     again, while others of its group might; then `UnknownEntity`
anything else                            it may have run, or will never work: told at once [D8]
"""

from __future__ import annotations

from coterie.errors import CoterieError, RunnerUnavailable, SendTimeout, ShuttingDown, UnknownEntity


def may_run_elsewhere(error: CoterieError) -> bool:
    """Whether an error shows that no handler ran, and that another attempt may go better."""
    return isinstance(error, UnknownEntity) or (isinstance(error, RunnerUnavailable) and not error.sent)


def as_told(error: CoterieError, *, what: str, runner: str, waited_s: float, stopping: bool) -> CoterieError:
    """The error as the caller should see it: by the names of people, not of incarnations.

    Args:
        error: How the attempt ended.
        what: The call: `Account/alice.balance`.
        runner: The name of the runner that was asked.
        waited_s: How long the caller was ready to wait.
        stopping: Whether the caller's own process is stopping.
    """
    if isinstance(error, SendTimeout):
        return SendTimeout(target=f"{what} on runner {runner}", waited_s=waited_s, hint=error.hint)
    if isinstance(error, RunnerUnavailable):
        return RunnerUnavailable(runner=runner, target=what, problem=error.problem, sent=error.sent, hint=error.hint)
    if isinstance(error, ShuttingDown) and not stopping:  # it lost its place, and comes back: see `runner`
        problem = "this process lost its connections while it waited"
        return RunnerUnavailable(runner=runner, target=what, problem=problem, sent=True)
    return error
