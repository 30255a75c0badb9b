"""Planted bugs of crons. See `plants`."""

from __future__ import annotations

from tests.interleavings.plant import Plant, swapped

_HELD = "join held on held.name = i.seat and held.epoch = i.epoch\n"
_CLAIM, _END = "tick: claim x release and take", "tick: end x release and take"

TICK_PLANTS = (
    Plant(
        "crons fenced by seats locked too weakly",
        "C1",
        _CLAIM,
        "is not over, and not B's",
        swapped(("claim_ticks", "note_ticks", "take_crons"), ("for share of s", "for key share of s")),
    ),
    Plant(
        "ticks claimed without the fence",
        "C1",
        _CLAIM,
        "stale",
        swapped(
            ("claim_ticks",),
            ("when held.name is null then 'fenced'\n", ""),
            (" held.runner,", " coalesce(held.runner, '') as runner,"),
            ("        when c.last_at is distinct from", "when c.last_at is distinct from"),
        ),
    ),
    Plant(
        "outcomes without fence and epoch",
        "C1, M9",
        _END,
        "ended by A, and taken by B",
        swapped(
            ("note_ticks",),
            (_HELD + "        cross join clock", "cross join clock"),
            ("and epoch = i.epoch and attempt = i.attempt and outcome is null", "and outcome is null"),
            ("t.epoch = j.epoch and t.attempt = j.attempt and t.outcome is null", "t.outcome is null"),
            ("when held.name is null then 'fenced'\n    when", "when"),
        ),
    ),
    Plant(
        "ticks taken without a second look",
        "M9",
        "tick: sweep x sweep too",
        "begun twice",
        swapped(
            ("take_crons",),
            (
                "where t.ctid = l.place and t.outcome is null and t.epoch < l.epoch",
                "where t.cluster = $1 and t.name = l.name",
            ),
        ),
    ),
    Plant(
        "ticks taken as two attempts",
        "M9",
        "tick: try again x release and take",
        "B took it, and",
        swapped(("take_crons",), ("attempt = t.attempt + 1", "attempt = t.attempt + 2")),
    ),
    Plant(
        "pause not looked at",
        "C7",
        "tick: claim x pause",
        "begun while it was paused",
        swapped(
            ("claim_ticks",),
            ("when c.paused_at is not null and spans.runs > 0 then 'paused'\n", ""),
            (" and (c.paused_at is null or j.runs = 0)", ""),
        ),
    ),
    Plant(
        "claim overtaken, and told that it is written",
        "M3",
        "tick: claim x pause",
        "told 'written', and 0 ticks are there",
        swapped(("claim_ticks",), ("else coterie.overtaken()", "else 'written'")),
    ),
    Plant(
        "last tick not moved",
        "INV-C1",
        _CLAIM,
        "a claim in parts",
        swapped(("claim_ticks",), ("set last_at = j.until_at, runs", "set runs")),
    ),
    Plant(
        "another schedule not looked at",
        "M8",
        "tick: claim to come x deploy",
        "of a schedule that was replaced",
        swapped(("claim_ticks",), ("<> i.schedule and spans.until_at", "<> i.schedule and false and spans.until_at")),
    ),
    Plant(
        "tick by hand without a look who was faster",
        "M9",
        "tick: trigger x trigger too",
        "23505",
        swapped(("trigger_tick",), ("    on conflict (cluster, name, kind, at, seq) do nothing\n", "")),
    ),
    Plant(
        "what still runs cleared away",
        "C7",
        "tick: end x purge",
        "it was purged",
        swapped(
            ("purge_ticks",),
            ("where cluster = $1 and ended_at <=", "where cluster = $1 and claimed_at <="),
            ("order by ended_at", "order by claimed_at"),
        ),
    ),
)
