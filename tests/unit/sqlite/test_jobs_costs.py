"""What hot work on jobs costs, counted by SQLite: beside many others what it costs without them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import apsw
import pytest

from coterie.storage import migrations
from coterie.storage.contracts.jobs import (
    GiveBack,
    JobClaim,
    JobEnd,
    JobFilter,
    JobInsert,
    JobProgress,
    JobSetback,
    NewJob,
    QueueDefinition,
)
from coterie.storage.interface import Claim, Registration, SeatDeclaration
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.database import open_memory
from coterie.storage.sqlite.jobs import claims, ends, inserts, jobs, queues, rows
from coterie.storage.sqlite.store import Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Work = Callable[[apsw.Connection], object]

NOW = Scope("default", 1_800_000_000_123_456_789)
RUNNER, SEAT, OTHER = "a" * 32, "queue:one", "queue:two"
CLAIM, ELSEWHERE = Claim(RUNNER, SEAT, 1), Claim(RUNNER, OTHER, 1)
GROUP = 20
"""Jobs that are there for each piece of work, in each of two partitions, and of a group."""

FILL = """
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)
insert into jobs (
    cluster, id, seat, part, task, fingerprint, state, key, digest, priority, sent_at_ns, due_at_ns, rank_at_ns,
    ended_at_ns, payload
)
select
    'default', printf('%s%031x', iif(n % 2, '0', 'e'), n), iif(n % 3, 'queue:one', 'queue:two'),
    iif(n % 5, 'busy', 'p' || n), 'resize', '', state, 'earlier ' || n, x'', 0, n,
    n + iif(state, 0, 9000000000000000000), n + 9000000000000000000, iif(state < 4, null, n), x''
from (select n, n % 8 as state from numbers)
where state <> 2
"""
"""Of all states but claimed, whose number the limits of queues bound; ready ones that come after those of the work."""


def job(number: int, **more: Any) -> NewJob:
    given = {"part": f"a{number % 2}", "key": f"new {number}", "tags": (("order", f"{number}"),), **more}
    return NewJob(id=f"5{number:031x}", seat=SEAT, task="resize", payload=b"p", **given)


READY = [job(number) for number in range(2 * GROUP)]
RUNNING = [job(100 + number, part="r") for number in range(GROUP)]
NEW = tuple(job(200 + number) for number in range(GROUP))
IDS = [each.id for each in READY]
PAIRS = tuple((each.id, RUNNER) for each in READY[:GROUP])
ENDS = [JobEnd(RUNNER, each.id, 1, b"reply") for each in RUNNING]
SENDING = JobEnd(RUNNER, RUNNING[0].id, 1, b"reply", jobs=(NEW[0],))
BACK = GiveBack(RUNNER, tuple((each.id, 1) for each in RUNNING))
LIMITS: dict[str, Any] = {"concurrency": 1000, "partition_concurrency": 1000, "rate": 1e6, "burst": 1e6}


TAGS = """
insert into job_tags (cluster, job, name, value)
select cluster, id, 'order', 'old' from jobs where id not like '5%'
"""


def unregister(connection: apsw.Connection) -> object:
    connection.execute("delete from runners where id = ?", (RUNNER,))
    return connection.changes()


HOT: Mapping[str, Work] = {
    "insert": lambda c: inserts.insert(c, NOW, [JobInsert(NEW[:1])]),
    "insert, a group": lambda c: inserts.insert(c, NOW, [JobInsert(NEW)]),
    "insert what is there": lambda c: inserts.insert(c, NOW, [JobInsert(tuple(READY[:1]))]),
    "find": lambda c: rows.find(c, NOW, "resize", "new 7"),
    "look": lambda c: jobs.look(c, NOW, IDS[:GROUP]),
    "claim": lambda c: claims.claim(c, NOW, JobClaim(CLAIM, 1, PAIRS)),
    "end": lambda c: ends.end(c, NOW, ENDS[:1]),
    "end, a group": lambda c: ends.end(c, NOW, ENDS),
    "end, with a job": lambda c: ends.end(c, NOW, [SENDING]),
    "setback": lambda c: ends.setback(c, NOW, JobSetback(RUNNER, RUNNING[0].id, 1, 1.0, "boom")),
    "give back": lambda c: ends.give_back(c, NOW, BACK),
    "progress": lambda c: ends.progress(c, NOW, RUNNER, RUNNING[0].id, 1, JobProgress(1.0)),
    "cancel": lambda c: ends.cancel(c, NOW, IDS[0], reply=b"cancelled"),
    "refill": lambda c: jobs.refill(c, NOW, SEAT, ["a0", "a1", "none"], each=5),
    "sweep": lambda c: jobs.sweep(c, NOW, SEAT, after=None, parts=2, each=5),
    "mature": lambda c: claims.mature(c, NOW, CLAIM, most=GROUP),
    "running": lambda c: jobs.running(c, NOW, SEAT),
    "claimed": lambda c: jobs.claimed(c, NOW, RUNNER),
    "fetch": lambda c: jobs.fetch(c, NOW, {each.id: 1 for each in RUNNING}),
    "take back": lambda c: claims.take_back(c, NOW, CLAIM, takeover_delay_s=0.0, loss_limit=3, most=GROUP),
    "loss of a runner": unregister,
    "list by tag": lambda c: jobs.listed(c, NOW, JobFilter(tag=("order", "7"))),
    "list what runs": lambda c: jobs.listed(c, NOW, JobFilter(state="claimed"), most=5),
    "list": lambda c: jobs.listed(c, NOW, JobFilter(), after=IDS[0], most=5),
    "purge past the last": lambda c: jobs.purge(c, NOW, after="f", retention_s=1.0, key_retention_s=1.0, most=GROUP),
}


class MeasuredJobs:
    """Our tables in memory, and what work on them costs; nothing of the work stays."""

    def __init__(self, *, others: int) -> None:
        self.connection = connection = open_memory()
        for migration in migrations.load("coterie.storage.sqlite.migrations"):
            connection.execute(migration.sql)
        me = Registration(id=RUNNER, name="a", address="", host_id="", groups=("default",))
        seats.register(connection, NOW, me)
        for seat in (SEAT, OTHER):
            seats.declare(connection, NOW, [SeatDeclaration(seat, "default")])
        assert len(seats.acquire(connection, NOW, RUNNER, [SEAT, OTHER])) == 2
        definition = QueueDefinition(seat=SEAT, group="default", fingerprint="", **LIMITS)
        queues.define(connection, NOW, CLAIM, definition)
        inserts.insert(connection, NOW, [JobInsert((*READY, *RUNNING))])
        told = claims.claim(connection, NOW, JobClaim(CLAIM, 1, tuple((each.id, RUNNER) for each in RUNNING)))
        assert len(told.jobs) == GROUP
        if others:
            connection.execute(FILL, {"count": others})
            connection.execute(TAGS)

    def cost(self, work: Work) -> tuple[object, int]:
        """What it returns, and the operations of SQLite's machine."""
        seen: list[Mapping[str, int]] = []
        self.connection.execute("begin immediate")
        try:
            self.connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, lambda event: seen.append(event["stmt_status"]))
            told = work(self.connection)
            self.connection.trace_v2(0, None)
        finally:
            self.connection.execute("rollback")
        return told, sum(each["SQLITE_STMTSTATUS_VM_STEP"] for each in seen)


@pytest.fixture(scope="module")
def beside() -> Iterator[MeasuredJobs]:
    measured = MeasuredJobs(others=5_000)
    yield measured
    measured.connection.close()


@pytest.fixture(scope="module")
def alone() -> Iterator[MeasuredJobs]:
    measured = MeasuredJobs(others=0)
    yield measured
    measured.connection.close()


@pytest.mark.parametrize("name", HOT)
def test_beside_many_others_hot_work_costs_what_it_does_alone(
    beside: MeasuredJobs, alone: MeasuredJobs, name: str
) -> None:
    told, steps = beside.cost(HOT[name])
    was, alone_steps = alone.cost(HOT[name])
    print(f"\n{name:24} {steps} steps, alone {alone_steps}", end="")
    if name not in ("mature", "sweep", "list"):  # there is more to be found beside others
        assert str(told) == str(was)
    assert steps <= 1.05 * alone_steps + 60


def test_a_job_of_a_large_claim_costs_what_one_of_a_small_claim_does(beside: MeasuredJobs) -> None:
    def costs(count: int) -> float:
        given = tuple(job(1000 + number) for number in range(count))
        pairs = tuple((each.id, RUNNER) for each in given)

        def work(connection: apsw.Connection) -> None:
            inserts.insert(connection, NOW, [JobInsert(given)])
            told = claims.claim(connection, NOW, JobClaim(CLAIM, 1, pairs))
            written = [JobEnd(RUNNER, each.id, each.claim, b"reply") for each in told.jobs]
            assert ends.end(connection, NOW, written) == ["written"] * count

        return beside.cost(work)[1] / count

    assert costs(400) < 1.2 * costs(20)


PLANTS = [
    ("claim", "claim", "and id in", "and +id in"),
    ("claim", "candidates", "and id in", "and +id in"),
    ("claim", "room", "and state = 2", "and +state = 2"),
    ("end, a group", "end", "and id = ended", "and +id = ended"),
    ("end", "judged", "and id in", "and +id in"),
    ("refill", "refill", "and j.state = 1", "and +j.state = 1"),
    ("fetch", "fetch", "and id in", "and +id in"),
    ("find", "find", "and key = :key", "and +key = :key"),
    ("list by tag", "chosen_tagged", "and tag.value = :value", "and +tag.value = :value"),
]
"""Statements that find their rows by no index, as `+` hides a column from all of them."""


@pytest.mark.parametrize(("name", "statement", "old", "new"), PLANTS)
def test_a_walk_is_seen(
    beside: MeasuredJobs,
    alone: MeasuredJobs,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    statement: str,
    old: str,
    new: str,
) -> None:
    """That the test above can fail."""
    assert old in rows.SQL[statement]
    changed = re.sub("indexed by [a-z_]+", "", rows.SQL[statement].replace(old, new))
    monkeypatch.setitem(rows.SQL, statement, changed)
    assert beside.cost(HOT[name])[1] > 1.05 * alone.cost(HOT[name])[1] + 60
