"""Planted bugs of one shape: a statement looks first and writes later, and nobody looks a second time."""

from __future__ import annotations

from tests.interleavings.plant import Plant, swapped

_SAYS = "as in no serial order"
_AGE = (
    "        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))\n    returning 1"
)

SERIAL_PLANTS = (
    Plant(
        "live keys purged",
        "K1",
        "expired key: put x purge",
        _SAYS,
        swapped(
            ("kv_purge",),
            ("where cluster = $1 and expires_at <= clock_timestamp() and key", "where cluster = $1 and key"),
        ),
    ),
    Plant(
        "what was revived and done removed with the dead",
        "m17",
        "dead messages, one held: remove dead x revive and end",
        _SAYS,
        swapped(("remove_dead",), (" and status = $3\n" + _AGE, " and completed_at is not null\n    returning 1")),
    ),
    Plant(
        "what was revived removed as ended",
        "m17",
        "dead message: revive x remove",
        _SAYS,
        swapped(
            ("remove_messages",),
            (" and completed_at is not null\n        and status = coalesce($3, status)\n" + _AGE, "\n    returning 1"),
        ),
    ),
    Plant(
        "one machine id for two",
        "M15",
        "machine: lease x lease",
        _SAYS,
        swapped(("machines_lease",), ("    for update skip locked\n", "")),
    ),
    Plant(
        "a key that came meanwhile taken for a row that is gone",
        "M3",
        "incoming row and a free key: move x insert",
        _SAYS,
        swapped(("move_incoming",), ("    else coterie.overtaken()", "    else 'left'")),
    ),
    Plant(
        "an inbox taken for empty without its lock",
        "M11",
        "run that waits: send x suspend at the inbox",
        _SAYS,
        swapped(("suspend_unit",), ("        order by name\n        for share\n", "        order by name\n")),
    ),
    Plant(
        "a run that began meanwhile not woken",
        "M11",
        "run that may begin: send x begin and wait",
        _SAYS,
        swapped(
            ("send_to_run",),
            (
                "when exists (select from inbox where begun) and not exists (select from woken) then",
                "when false then",
            ),
        ),
    ),
    Plant(
        "two values published under one number",
        "W7",
        "run without an inbox: publish x publish in another branch",
        _SAYS,
        swapped(
            ("publish_value",),
            ("or not exists (select from stored) then coterie.overtaken()", "then coterie.overtaken()"),
        ),
    ),
    Plant(
        "the stamp of a schedule not compared",
        "C9",
        "schedule: fire x swap",
        _SAYS,
        swapped(
            ("fire_schedules",),
            (" or r.stamp <> i.stamp", ""),
            (" and r.life = j.life and r.stamp = j.stamp", ""),
            ("where r.ctid = j.place", "where r.cluster = $1 and r.key = j.key"),
        ),
    ),
    Plant(
        "a schedule that was overtaken taken for fired",
        "C9",
        "schedule: fire x pause",
        _SAYS,
        swapped(("fire_schedules",), ("    else coterie.overtaken()", "    else 'written'")),
    ),
    Plant(
        "a pause of a schedule that is gone",
        "C9",
        "schedule: fire for the last time x pause",
        _SAYS,
        swapped(("pause_schedule",), (" for no key update", "")),
    ),
    Plant(
        "a pause that ends twice",
        "C7",
        "paused cron: resume x resume",
        _SAYS,
        swapped(("resume_cron",), (" for no key update", "")),
    ),
    Plant(
        "a job that is not given back since it was cancelled meanwhile",
        "T6",
        "claimed job: give job back x cancel job",
        _SAYS,
        swapped(("give_jobs_back",), ("else coterie.overtaken()::bigint end", "else given.count end")),
    ),
    Plant(
        "a lost job that is not taken back since it was cancelled meanwhile",
        "T6",
        "lost job: take jobs back x cancel job",
        _SAYS,
        swapped(("take_back_jobs",), ("then coterie.overtaken() end", "then '' end")),
    ),
)
