"""What is played: steps, scripts, pairs of them, and where a session may get lost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from tests.support.interleaving.run import Run

Row = Mapping[str, Any]
Rows = Sequence[Row]
Reads = Mapping[str, Rows]

Verdict = Literal["go", "stop", "restart"]
Act = Literal["run", "hang", "let go", "end", "cut"]
Side = Literal["A", "B", "C"]
How = Literal["ended", "cut", "cut in commit", "ended in commit"]


def go(rows: Rows) -> Verdict:
    """Whatever the statement returned, go on."""
    return "go"


def stop_if_none(rows: Rows) -> Verdict:
    """Without a row there is nothing more to do: the transaction is rolled back."""
    return "go" if rows else "stop"


def restart_if_none(rows: Rows) -> Verdict:
    """Without a row somebody was faster: the script begins anew."""
    return "go" if rows else "restart"


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a script, or something that happens to its session.

    Args:
        name: Under which its rows are kept.
        sql: The statement, or what gives it from the rows of earlier steps of the script.
        values: Its parameters, likewise.
        opens: A transaction begins with it, which `COMMIT` ends; otherwise the statement is one by itself.
        then: What its rows mean for the script.
        nothing: Errors (SQLSTATE) that mean no rows, and no failure: it was a transaction by itself.
        act: "run" a statement; the others are made by `losses`.
    """

    name: str
    sql: str | Callable[[Reads], str] = ""
    values: Sequence[Any] | Callable[[Reads], Sequence[Any]] = ()
    opens: bool = False
    then: Callable[[Rows], Verdict] = go
    nothing: frozenset[str] = frozenset()
    act: Act = "run"

    def given(self, reads: Reads) -> tuple[str, Sequence[Any]]:
        """The statement and its parameters."""
        sql = self.sql(reads) if callable(self.sql) else self.sql
        return sql, self.values(reads) if callable(self.values) else self.values


COMMIT = Step("commit", "commit")


def atomic(*steps: Step) -> tuple[Step, ...]:
    """These steps as one transaction."""
    first, *rest = steps
    return (replace(first, opens=True), *rest, COMMIT)


@dataclass(frozen=True, slots=True)
class Script:
    """What one session does, in order. Refused by a deadlock or a lock timeout, it is tried again: so many tries."""

    name: str
    steps: tuple[Step, ...]
    tries: int = 2

    def __post_init__(self) -> None:
        names = [step.name for step in self.steps if step is not COMMIT]
        assert len(set(names)) == len(names), f"{self.name}: two steps have one name: {names}"


@dataclass(frozen=True, slots=True)
class Pair:
    """Two scripts on the same rows, and perhaps a third session in their way.

    A statement is one turn, so two that lock rows in opposite order do not meet halfway by themselves. A third
    session that holds one of the rows for a while makes them.

    Args:
        name: For people, and for the id of a run.
        given: SQL that writes the rows to begin with, after everything else was deleted.
        a: The first script.
        b: The second one.
        judge: What is wrong with a run, a sentence each; nothing if all is well.
        allows: SQLSTATEs that are no fault here.
        c: What the third session does, if there is one.
    """

    name: str
    given: str
    a: Script
    b: Script
    judge: Callable[[Run], Sequence[str]]
    allows: frozenset[str] = frozenset()
    c: Script | None = None

    def scripts(self, loss: Loss | None) -> Mapping[Side, Script]:
        """All scripts, one of them with its session lost on the way."""
        scripts: dict[Side, Script] = {"A": self.a, "B": self.b}
        if self.c is not None:
            scripts["C"] = self.c
        if loss is not None:
            scripts[loss.side] = with_loss(scripts[loss.side], loss)
        return scripts


@dataclass(frozen=True, slots=True)
class PairTables:
    """The tables of all pairs: how to empty them, what a judge sees of them, what holds in every run."""

    reset: str
    tables: Mapping[str, str]
    judge: Callable[[Run], Sequence[str]] = field(default=lambda _: ())


@dataclass(frozen=True, slots=True)
class Loss:
    """A session is lost at a step of its script.

    "ended": the server's side goes, as by an administrator or a crash. "cut": the client's side goes; a statement
    that the server is working at is finished all the same. "cut in commit": the same inside COMMIT, which becomes
    visible at some later time. "ended in commit": COMMIT was sent, never answered, and comes to nothing.
    """

    side: Side
    at: int
    how: How

    def __str__(self) -> str:
        return f"{self.side} {self.how} {self.at}"


def losses(pair: Pair) -> list[Loss]:
    """Every way in which one of the two sessions can be lost."""
    found: list[Loss] = []
    sides: tuple[tuple[Side, Script], ...] = (("A", pair.a), ("B", pair.b))
    for side, script in sides:
        alone = _alone(script)
        for at, step in enumerate(script.steps):
            ways: tuple[How, ...] = ("ended", "cut") if step is not COMMIT else ()
            if step is COMMIT or alone[at]:
                ways += ("cut in commit", "ended in commit")
            found.extend(Loss(side, at, how) for how in ways)
    return found


def with_loss(script: Script, loss: Loss) -> Script:
    """The script up to the loss, and what happens there."""
    before, at = script.steps[: loss.at], script.steps[loss.at]
    if loss.how == "ended":
        steps = (*before, at, Step("session ended", act="end"))
    elif loss.how == "cut":
        steps = (*before, at, Step("connection cut", act="cut"))
    else:
        work = (replace(at, opens=True),) if _alone(script)[loss.at] else ()
        late = (
            Step("commit takes effect", act="let go")
            if loss.how == "cut in commit"
            else Step("commit comes to nothing", act="end")
        )
        steps = (*before, *work, Step("commit, connection cut", act="hang"), late)
    return replace(script, steps=steps)


def _alone(script: Script) -> list[bool]:
    """Which steps are transactions by themselves."""
    alone, inside = [], False
    for step in script.steps:
        inside = inside or step.opens
        alone.append(not inside)
        inside = inside and step is not COMMIT
    return alone
