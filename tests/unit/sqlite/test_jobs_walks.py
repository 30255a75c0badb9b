"""Random walks over all that is done with jobs, judged by their history (T1-T4, T6, T9): runners come, die and lie."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from coterie.storage import migrations
from coterie.storage.contracts.jobs import (
    GiveBack,
    JobClaim,
    JobDelivery,
    JobEnd,
    JobFilter,
    JobInsert,
    JobSetback,
    NewJob,
    QueueDefinition,
    QueueLimits,
)
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.jobs import claims, ends, inserts, jobs, queues, rows
from coterie.storage.sqlite.store import Scope
from tests.support.history.job_recorder import JobRecorder
from tests.support.history.jobs import (
    BodyBegan,
    BodyOver,
    CancelTold,
    EndTold,
    JobClaimed,
    JobEnded,
    JobSent,
    RunnerLost,
    checkers,
)
from tests.support.history.ownership import Event, Violation, check

if TYPE_CHECKING:
    from collections.abc import Iterator

    import apsw

SEAT = "queue:one"
LIMITS = (
    QueueLimits(),
    QueueLimits(concurrency=2),
    QueueLimits(concurrency=4, partition_concurrency=1),
    QueueLimits(partition_concurrency=2, rate=2.0, burst=2.0),
    QueueLimits(concurrency=0),
)
STEPS = 400


class Walk:
    """Runners, senders and operators of one queue, each step one of them."""

    def __init__(self, connection: apsw.Connection, seed: int) -> None:
        self.connection = connection
        self.chance = random.Random(seed)
        self.now_ns = 1_800_000_000_000_000_000
        self.recorder = JobRecorder(connection, now_ns=lambda: self.now_ns)
        self.jobs: list[str] = []
        self.bodies: list[JobDelivery] = []
        self.runners: list[str] = []
        self.holder: Claim | None = None
        self.former: list[Claim] = []
        for _ in range(3):
            self.join()
        self.hold()

    @property
    def scope(self) -> Scope:
        return Scope("default", self.now_ns)

    def step(self) -> None:
        """One thing that somebody does, a while later; now and then the clock is set back."""
        self.now_ns += self.chance.choice((1_000_000, 100_000_000, 700_000_000))
        if self.chance.random() < 0.01:
            self.now_ns -= 3_000_000_000
        actions = (
            *(self.start,) * 5, *(self.send,) * 3, *(self.end,) * 3, self.fail, self.give_back, self.cancel, self.kill,
            self.join, self.hold, self.take_back, self.mature, self.pause, self.limit, self.park, self.revive,
        )  # fmt: skip
        self.connection.execute("begin immediate")
        self.chance.choice(actions)()
        self.connection.execute("commit")

    def send(self) -> None:
        made = [self._new_job() for _ in range(self.chance.randint(1, 3))]
        (receipts,) = inserts.insert(self.connection, self.scope, [JobInsert(tuple(made))])
        for receipt in receipts:
            self.recorder.note(JobSent(receipt.id))

    def _new_job(self) -> NewJob:
        chance, number = self.chance, len(self.jobs)
        self.jobs.append(f"{number:08x}")
        return NewJob(
            id=self.jobs[-1],
            seat=SEAT,
            part=chance.choice("ab"),
            task=chance.choice(("known", "odd")),
            payload=b"",
            key=chance.choice((None, None, f"k{number // 4}")),
            priority=chance.choice((0, 0, 0, 1, -1)),
            age_s=60.0,
            delay_s=chance.choice((0.0, 0.0, 2.5)),
        )

    def start(self) -> None:
        """The holder, or one that takes itself for it, claims the first ready jobs for a runner."""
        known = queues.queue(self.connection, self.scope, SEAT)
        claim = self.chance.choice([*self.former[-1:], *[self.holder] * 4])
        if known is None or claim is None:
            return
        parts = jobs.sweep(self.connection, self.scope, SEAT, after=None, parts=9, each=3)
        runner = self.chance.choice([*self.runners, *self.runners, "gone"])
        pairs = tuple((head.id, runner) for part in parts for head in part.heads)
        stamp = known.stamp - (self.chance.random() < 0.1)
        told = claims.claim(self.connection, self.scope, JobClaim(claim, stamp, pairs))
        if claim != self.holder:
            assert told.outcome == "fenced"
        for delivery in told.jobs:
            self.recorder.note(BodyBegan(delivery.id, delivery.claim, delivery.runner))
            self.bodies.append(delivery)

    def end(self) -> None:
        """A runner ends a job; the answer may be lost, then it asks again, perhaps much later."""
        if (body := self._body()) is not None:
            write = JobEnd(body.runner, body.id, body.claim, b"reply", discarded=self.chance.random() < 0.2)
            if ends.end(self.connection, self.scope, [write]) == ["written"]:
                self.recorder.note(EndTold(body.id, body.claim))

    def fail(self) -> None:
        if (body := self._body()) is not None:
            again_s = self.chance.choice((0.0, 1.0, None))
            error = self.chance.choice(("boom", None))
            ends.setback(self.connection, self.scope, JobSetback(body.runner, body.id, body.claim, again_s, error))

    def give_back(self) -> None:
        if (body := self._body()) is not None:
            write = GiveBack(body.runner, ((body.id, body.claim),), park=self.chance.random() < 0.2)
            ends.give_back(self.connection, self.scope, write)

    def _body(self) -> JobDelivery | None:
        """A body that has ended; now and then one that had ended before tells so again."""
        if not self.bodies:
            return None
        body = self.chance.choice(self.bodies)
        if self.chance.random() < 0.9:
            self.bodies.remove(body)
        self.recorder.note(BodyOver(body.id, body.claim))
        return body

    def cancel(self) -> None:
        if self.jobs:
            job = self.chance.choice(self.jobs)
            told, _ = ends.cancel(self.connection, self.scope, job, reply=b"cancelled")
            if told in ("cancelled", "cancelling"):
                self.recorder.note(CancelTold(job))

    def kill(self) -> None:
        if len(self.runners) > 1:
            lost = self.runners.pop(self.chance.randrange(len(self.runners)))
            self.connection.execute("delete from runners where id = ?", (lost,))
            if self.holder is not None and self.holder.runner == lost:
                self.former.append(self.holder)
                self.holder = None

    def join(self) -> None:
        runner = f"r{self.now_ns}.{len(self.runners)}"
        me = Registration(id=runner, name="a", address="", host_id="", groups=("default",))
        seats.register(self.connection, self.scope, me)
        self.runners.append(runner)

    def hold(self) -> None:
        """A free seat is taken, by a runner that knows how the queue is defined."""
        if self.holder is not None:
            return
        seats.declare(self.connection, self.scope, [SeatDeclaration(SEAT, "default")])
        runner = self.chance.choice(self.runners)
        (grant,) = seats.acquire(self.connection, self.scope, runner, [SEAT])
        self.holder = Claim(runner, SEAT, grant.epoch)
        defined = {name: getattr(LIMITS[2], name) for name in QueueLimits.__struct_fields__}
        definition = QueueDefinition(seat=SEAT, group="default", fingerprint="", **defined)
        assert queues.define(self.connection, self.scope, self.holder, definition) is not None

    def take_back(self) -> None:
        if self.holder is not None:
            claims.take_back(self.connection, self.scope, self.holder, takeover_delay_s=0.5, loss_limit=2, most=2)

    def mature(self) -> None:
        if self.holder is not None:
            claims.mature(self.connection, self.scope, self.holder, most=5)

    def pause(self) -> None:
        queues.pause(self.connection, self.scope, SEAT, paused=self.chance.random() < 0.3)

    def limit(self) -> None:
        queues.set_limits(self.connection, self.scope, SEAT, self.chance.choice((*LIMITS, None)))

    def park(self) -> None:
        if self.holder is not None:
            move = self.chance.choice((claims.park, claims.unpark))
            move(self.connection, self.scope, self.holder, ["odd"], most=3)

    def revive(self) -> None:
        jobs.revive(self.connection, self.scope, JobFilter(), most=1)


def walked(seed: int) -> list[Event]:
    connection = open_memory()
    try:
        for migration in migrations.load("coterie.storage.sqlite.migrations"):
            connection.execute(migration.sql)
        walk = Walk(connection, seed)
        for _ in range(STEPS):
            walk.step()
        return walk.recorder.history()
    finally:
        connection.close()


SEEDS = [*range(10), *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(10, 200))]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens_the_promises_hold(seed: int) -> None:
    history = walked(seed)
    check(history, *checkers(pending_allowed=True, slack_s=0.0))
    assert any(isinstance(event, JobEnded) for event in history)


def test_the_walks_go_far() -> None:
    kinds = Counter(type(event) for seed in range(10) for event in walked(seed))
    assert min(kinds[JobClaimed], kinds[JobEnded], kinds[EndTold], kinds[RunnerLost]) > 100


PLANTS = [
    ("T2", "room", "and state = 2", "and state = 2 and runner is not null"),
    ("T1", "claim", "claim = claim + 1", "claim = max(claim, 1)"),
    ("T1", "revive", "state = 1, ended_at_ns", "state = 1, claim = 0, ended_at_ns"),
    ("T4", "sweep", "order by j.rank_at_ns, j.id", "order by j.rank_at_ns desc"),
    ("T1", "judged", "state, claim, settled", "state, 1, null"),
]


def seeds_that_fail(promise: str) -> Iterator[int]:
    for seed in range(40):
        try:
            check(walked(seed), *checkers(pending_allowed=True, slack_s=0.0))
        except Violation as violation:
            if violation.promise == promise:
                yield seed


@pytest.mark.parametrize(("promise", "statement", "old", "new"), PLANTS)
def test_a_planted_bug_is_seen(
    monkeypatch: pytest.MonkeyPatch, promise: str, statement: str, old: str, new: str
) -> None:
    assert old in rows.SQL[statement]
    monkeypatch.setitem(rows.SQL, statement, rows.SQL[statement].replace(old, new))
    assert next(seeds_that_fail(promise), None) is not None


def test_a_slot_that_is_freed_by_a_cancel_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """T6: while its body runs it takes its slot."""
    monkeypatch.setitem(rows.SQL, "cancelling", rows.SQL["end_cancelled"])
    assert next(seeds_that_fail("T2"), None) is not None
