"""Planted bugs of jobs. See `plants`."""

from __future__ import annotations

from tests.interleavings.plant import Plant, swapped

ENDS = ("end_jobs", "commit_jobs")
_COUNT = """coterie.claimed_jobs(
        bucket.cluster, bucket.seat, bucket.concurrency is not null, array(select distinct part from found)
    )"""
_SNAPSHOT = """(
        select part, count(*) as running from coterie.jobs
        where cluster = bucket.cluster and seat = bucket.seat and state = 2 group by part
    )"""
_UNLOCKED = "coterie.queues as q natural join (select seat from queue) as s"

JOB_PLANTS = (
    Plant(
        "jobs claimed without their seat",
        "C1",
        "job: claim x release, grant and look, seat",
        "claimed unseen",
        swapped(("claim_jobs",), ("from coterie.queues as q cross join held\n", "from coterie.queues as q\n")),
    ),
    Plant(
        "jobs claimed while the queue is not locked",
        "T9",
        "job: claim x pause and look",
        "claimed unseen",
        swapped(("claim_jobs",), ("    for no key update of q\n", "")),
    ),
    Plant(
        "jobs claimed for a runner that is not locked",
        "T1",
        "job: claim for c x evict the runner, target",
        "who is no runner",
        swapped(("claim_jobs",), (" offset 0 for key share skip locked", " offset 0")),
    ),
    *(
        Plant(
            f"what runs counted by the statement's snapshot: {limit}",
            "T2",
            f"job: claim x claim another, {limit}",
            "too many run",
            swapped(("claim_jobs",), (_COUNT, _SNAPSHOT)),
        )
        for limit in ("limit of the queue", "limit of a partition")
    ),
    Plant(
        "tokens spent that were read before the queue was locked",
        "T2",
        "job: claim x claim another, rate",
        "tokens",
        swapped(
            ("claim_jobs",),
            (
                "from (select *, clock_timestamp() as now from queue) as q",
                f"from (select q.*, clock_timestamp() as now from {_UNLOCKED}) as q",
            ),
        ),
    ),
    Plant(
        "the bucket filled by a new holder",
        "T2",
        "job: claim x define, definition",
        "tokens",
        swapped(
            ("define_queue",),
            (
                "coterie.bucket_at(q.tokens, q.rate, q.burst, q.refilled_at, excluded.refilled_at)",
                "excluded.burst",
            ),
        ),
    ),
    Plant(
        "jobs ended without the number of their claim",
        "T1",
        "job: end x give back and claim",
        "claimed again since",
        swapped(ENDS, (" or j.claim <> i.claim then", " then"), (" and j.claim = i.claim and j.canc", " and j.canc")),
    ),
    Plant(
        "a lone job ended without the number of its claim",
        "T1",
        "job: lone end x give back and claim",
        "claimed again since",
        swapped(("end_job",), ("j.claim = $4 and ", "$4::bigint is not null and ")),
    ),
    Plant(
        "claims counted anew when a job is revived",
        "T1",
        "job: end x revive and claim",
        "was given again",
        swapped(("revive_jobs",), ("failures = 0, lost = 0", "failures = 0, lost = 0, claim = 0")),
    ),
    Plant(
        "a job ended that was cancelled",
        "T6",
        "job: end x cancel",
        "nothing of it will commit",
        swapped(
            ENDS,
            ("        when j.cancelling then 'cancelled'\n", ""),
            ("case when i.cancelling then 6 when i.disc", "case when i.disc"),
        ),
    ),
    Plant(
        "a lone job ended that was cancelled",
        "T6",
        "job: lone end x cancel",
        "nothing of it will commit",
        swapped(("end_job",), ("\n    and not j.cancelling", "")),
    ),
    Plant(
        "sent whatever becomes of the job",
        "T1, M3",
        "job: end and send x cancel",
        "in parts",
        swapped(("commit_jobs",), ("    where j.outcome is null\n        and (s.key", "    where (s.key")),
    ),
    Plant(
        "a cancelled job taken back",
        "T6",
        "job: cancel x take back",
        "nothing of it will commit",
        swapped(
            ("take_back_jobs",),
            ("case when j.cancelling then 6 when", "case when"),
            ("case when j.cancelling or j.lost + 1 >= $6 then clock", "case when j.lost + 1 >= $6 then clock"),
        ),
    ),
    Plant(
        "a job ended, overtaken, and told that it is written",
        "M3",
        "job: end x give back and claim",
        "told 'written'",
        swapped(ENDS, ("then coterie.overtaken()", "then 'written'")),
    ),
)
