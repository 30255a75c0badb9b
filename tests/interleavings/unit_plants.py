"""Planted bugs of durable work. See `plants`."""

from __future__ import annotations

from tests.interleavings.plant import Plant, swapped

_RESOLVED, _STEP, _END = (
    "unit: suspend x resolve",
    "unit: lone step x release and take",
    "unit: resolve x end of a leader's",
)
_FENCED = ("add_steps", "add_step", "write_steps", "end_units", "suspend_unit", "open_unit", "wake_due_units")
_FORGOTTEN = """), forgotten as materialized (
    select coterie.forget_units($1, array(select unit from gone)) as units
"""
_DELETED = """), forgotten as materialized (
    select 0 as units
), steps_forgotten as (
    delete from coterie.steps where cluster = $1 and unit = any(array(select unit from gone))
), deferreds_forgotten as (
    delete from coterie.deferreds where cluster = $1 and unit = any(array(select unit from gone))
"""
_COUNTED = "and (select count(*) from made) + (select count(*) from locked) = cardinality($6::text[])"
_LOOKED = """and not exists (
            select from coterie.deferreds as d
            where d.cluster = $1 and d.unit = $5 and d.name = any($6::text[]) and d.resolved_at is not null
        )"""
_CONFLICT = """    on conflict (cluster, unit, name) do update
    set resolved_at = excluded.resolved_at, value = excluded.value, error = excluded.error, life = excluded.life
    where d.resolved_at is null or d.life <> excluded.life
"""

UNIT_PLANTS = (
    Plant(
        "suspended after a look without a lock",
        "M11",
        _RESOLVED,
        "a lost wake-up",
        swapped(("suspend_unit",), (_COUNTED, _LOOKED)),
    ),
    Plant(
        "what is waited for not locked",
        "M11",
        "unit: suspend x resolve, d made",
        "a lost wake-up",
        swapped(("suspend_unit",), ("    order by d.name\n    for share\n", "")),
    ),
    Plant(
        "suspended although it is to be interrupted",
        "M11",
        "unit: suspend x interrupt",
        "is to be interrupted",
        swapped(("suspend_unit",), (" and not u.interrupting\n", "\n")),
    ),
    Plant(
        "a value that wakes nobody",
        "M11",
        _RESOLVED,
        "a lost wake-up",
        swapped(
            ("resolve_deferred",),
            ("case when u.status = 'suspended' and u.starts_at is null then 'running' else u.status end", "u.status"),
        ),
    ),
    Plant(
        "a value that is not upserted",
        "M10",
        _RESOLVED,
        "23505",
        swapped(("resolve_deferred",), (_CONFLICT, "")),
    ),
    Plant(
        "the last value wins",
        "M10",
        "unit: resolve suspended x resolve too",
        "both were told",
        swapped(("resolve_deferred",), ("    where d.resolved_at is null or d.life <> excluded.life\n", "")),
    ),
    Plant(
        "a value for a unit that is over by then",
        "W5",
        _END,
        "left behind",
        swapped(
            ("resolve_deferred",),
            (" for no key update\n", "\n"),
            (
                "when exists (select from resolved) then coterie.overtaken()",
                "when exists (select from resolved) then 'resolved'",
            ),
        ),
    ),
    Plant(
        "a token without a life",
        "W15",
        "unit: end and open x resolve",
        "meant for",
        swapped(
            ("resolve_deferred",),
            ("where ended_at is null and life = $6::bigint\n)", "where ended_at is null\n)"),
            ("and u.unit = $2 and u.life = $6::bigint and", "and u.unit = $2 and"),
        ),
    ),
    Plant(
        "a child of a parent that is not locked",
        "W10",
        "unit: start of a child x failure and its children",
        "left behind",
        swapped(("start_unit",), (" and ended_at is null for key share", " and ended_at is null")),
    ),
    Plant(
        "children that are not looked for",
        "W10",
        "unit: start of a child x failure and its children",
        "left behind",
        swapped(("end_units",), ("e.status <> 'done' and not e.held", "false")),
    ),
    Plant(
        "an end that deletes what it saw before it waited",
        "W5",
        "unit: lone step x end of a leader's",
        "left behind",
        swapped(("end_units",), (_FORGOTTEN, _DELETED)),
    ),
    Plant(
        "a step of a unit that is not locked",
        "W5",
        "unit: lone step x end of a leader's",
        "left behind",
        swapped(("add_step",), (" for key share of u\n", "\n")),
    ),
    Plant(
        "an end that does not look who was faster",
        "W1",
        "unit: end x end interrupted",
        "both were told that they ended it",
        swapped(("end_units",), ("    where l.ended_at is null and l.life", "    where l.life")),
    ),
    Plant(
        "a parent that is not told",
        "W4",
        "unit: end of a child x suspend",
        "a lost wake-up: its child has ended",
        swapped(("end_units",), ("        union\n        select parent from found where parent is not null\n", "")),
    ),
    Plant(
        "a life that begins while a step is being added",
        "W12",
        "unit: lone step of a life x renewal",
        "with a step of a former one",
        swapped(("renew_unit",), ("    for update of u\n", "    for no key update of u\n")),
    ),
    Plant(
        "a step that is stored in any life",
        "W12",
        "unit: lone step of a life x renewal",
        "with a step of a former one",
        {
            **swapped(("add_steps", "write_steps"), (" and life = coalesce(i.life, life)", "")),
            **swapped(("add_step",), ("u.life = coalesce($14::bigint, u.life)", "$14::bigint is not null")),
        },
    ),
    Plant(
        "retried after undoing",
        "W9",
        "unit: retry x undoing and failure",
        "retried after undoing",
        swapped(("retry_units",), (" and not f.undone", "")),
    ),
    Plant(
        "ended by the failure before",
        "W9",
        "unit: retry x late failure",
        "ended by a failure before that",
        swapped(("end_units",), (" and l.retries = coalesce(f.of_retries, l.retries)", "")),
    ),
    Plant(
        "put off after its begin",
        "W14",
        "unit: push x begin",
        "23514",
        swapped(("push_start",), ("u.status = 'suspended' and u.starts_at is not null", "u.ended_at is null")),
    ),
    Plant(
        "begun although it was put off",
        "W14",
        "unit: push x begin",
        "was put off, and runs",
        swapped(("wake_due_units",), ("coalesce(u.wake_at <= clock_timestamp(), false)", "true")),
    ),
    Plant(
        "begun again twice",
        "W12",
        "unit: start again x start again too",
        "both have started it",
        swapped(
            ("start_again",),
            ("    for update\n), forgotten", "), forgotten"),
            ("exists (select from over)", "u.life <> 0"),
        ),
    ),
    Plant(
        "steps without the fence",
        "C1",
        _STEP,
        "stale",
        swapped(("add_step",), ("and s.epoch = $4 and s.holder = $2", "and $4::bigint > 0")),
    ),
    Plant(
        "units fenced by seats locked too weakly",
        "C1",
        "unit: suspend x release and take",
        "stale",
        swapped(_FENCED, ("for share of s", "for key share of s")),
    ),
    Plant(
        "told of a step as it was",
        "W1",
        "unit: steps x its end too",
        "told of None",
        swapped(("write_steps",), ("and t.name = i.name then coterie.overtaken()", "and t.name = i.name then t.kind")),
    ),
    Plant(
        "opened, and taken for abandoned",
        "M10",
        "unit: open x purge",
        "purged in use",
        swapped(
            ("open_unit",),
            ("do update set changed_at = excluded.changed_at where u.seat = excluded.seat", "do nothing"),
        ),
    ),
    Plant(
        "a purge that waits for who uses a unit",
        "M10",
        "unit: lone step x purge",
        "purged in use",
        swapped(
            ("purge_units",),
            (
                "    order by changed_at limit $3\n    for update skip locked",
                "    order by changed_at limit $3\n    for update",
            ),
        ),
    ),
    Plant(
        "a timer without a second look",
        "M11",
        "unit: wake x end",
        "23514",
        swapped(
            ("wake_due_units",),
            (
                " and u.status = 'suspended'\n    and coalesce(u.wake_at <= clock_timestamp(), false)",
                "",
            ),
        ),
    ),
)
