"""Planted bugs, kept for ever: each swaps a right statement for a wrong one, and the interleavings must notice.

A bug counts as found when some run of the catalogue, which passes with the right statements, is judged wrong. Where
the wrong form only shows without the foreign key that repairs it, the plant drops that key, and a right form without
the key (`control`) shows that it is not the missing key that is found.
"""

from __future__ import annotations

import re

from tests.interleavings.database import SQL
from tests.interleavings.job_plants import JOB_PLANTS
from tests.interleavings.late_definitions import LATE_PLANTS
from tests.interleavings.leader_states import LEADING_PLANTS
from tests.interleavings.message_plants import MAIL_PLANTS
from tests.interleavings.plant import Plant, swapped
from tests.interleavings.started_units import START_PLANTS
from tests.interleavings.tick_plants import TICK_PLANTS
from tests.interleavings.unit_plants import UNIT_PLANTS

__all__ = ["CONTROL", "PLANTS", "Plant"]

FENCED = ("write_states", "put_kv", "claim_states")

WITHOUT_KEY = "alter table coterie.seats drop constraint seats_holder_fkey"
FREE_SEATS = "update coterie.seats set holder = null where cluster = $1 and holder = $2 returning name"
NO_LOCK = "select 1 from (select $1::text, $2::text, $3::bigint) as nothing"
SERVER_CHECK = re.compile(r"where g\.cluster = \$1 and g\.timeline = .*")


def fenced_by(query: str) -> dict[str, str]:
    """The fenced statements with another query in place of the locked seats."""
    pattern = re.compile(r"(held as materialized \(\n).*?(\n\), )", re.DOTALL)
    assert all(len(pattern.findall(SQL[name])) == 1 for name in FENCED), "bring the plants up to date"
    return {name: pattern.sub(lambda match: match[1] + query + match[2], SQL[name]) for name in FENCED}


CONTROL = Plant(
    "none: the runner deleted, then its seats freed, without the foreign key",
    "C4",
    "",
    "",
    {"free_seats": FREE_SEATS},
    schema=WITHOUT_KEY,
    evict=("evict", "free_seats"),
    leave=("evict", "free_seats"),
)
"""The right form by hand: two statements at READ COMMITTED, the runner first."""

_FIRST = "first write x release and grant"
_ME = """me as materialized (
    select id, name from coterie.runners where id = $2 and cluster = $1 for key share
"""
_ME_LAST = """me as materialized (
    select id from coterie.runners cross join (select count(*) from held) as seats
    where id = $2 and cluster = $1 for key share of runners
"""

PLANTS = (
    Plant("fence removed", "C1", _FIRST, "stale", fenced_by("select distinct seat as name, epoch from items")),
    Plant(
        "fence by sub-select",
        "C1",
        _FIRST,
        "stale",
        fenced_by(
            "select distinct i.seat as name, i.epoch from items as i where exists (select from coterie.seats as s"
            " where s.cluster = $1 and s.name = i.seat and s.holder = $2 and s.epoch = i.epoch)"
        ),
    ),
    Plant(
        "fence by runner only",
        "C1",
        _FIRST,
        "stale",
        fenced_by("select distinct i.seat as name, i.epoch from items as i cross join me"),
    ),
    Plant(
        "a CTE that joins no fence",
        "M3",
        _FIRST,
        "stale",
        swapped(
            FENCED, ("from items as i join held on held.name = i.seat and held.epoch = i.epoch\n", "from items as i\n")
        ),
    ),
    Plant("seats locked too weakly", "C1", _FIRST, "stale", swapped(FENCED, ("for share of s", "for key share of s"))),
    Plant(
        "fence by holder without epoch",
        "C1",
        "first write x release and re-grant to itself",
        "stale",
        swapped(
            FENCED,
            ("select s.name, s.epoch\n", "select s.name, u.epoch\n"),
            ("s.name = u.seat and s.epoch = u.epoch", "s.name = u.seat"),
        ),
    ),
    Plant(
        "seats locked before the runner",
        "C1",
        "first write x evict, a held",
        "40P01",
        swapped(
            ("write_states",),
            ("), " + _ME, ""),
            ("cross join me\n", ""),
            ("), inserted as (", "), " + _ME_LAST + "), inserted as ("),
            ("where i.version = 0", "cross join me where i.version = 0"),
        ),
    ),
    Plant(
        "eviction as one statement",
        "C4 a",
        "acquire x evict",
        "no runner",
        {
            "evict": "with gone as (delete from coterie.runners where id = $2 and cluster = $1 returning id), freed as"
            " (update coterie.seats as s set holder = null from gone where s.cluster = $1 and s.holder = gone.id)"
            " select id from gone"
        },
        schema=WITHOUT_KEY,
    ),
    Plant(
        "seats updated before the runner is deleted",
        "C4 a",
        "acquire x evict",
        "no runner",
        {"free_seats": FREE_SEATS},
        schema=WITHOUT_KEY,
        evict=("free_seats", "evict"),
        leave=("free_seats", "evict"),
    ),
    Plant(
        "lease checked without a lock",
        "C4 b",
        "renew x evict",
        "although its renewal succeeded",
        swapped(("lock_expired_lease", "lock_still_lease"), ("\nfor update", "")),
    ),
    Plant(
        "lease checked by sub-select",
        "C4 b",
        "renew x evict",
        "although its renewal succeeded",
        {
            "lock_expired_lease": NO_LOCK,
            "lock_still_lease": NO_LOCK,
            "evict_expired": "delete from coterie.runners where id = $2 and cluster = $1 and exists (select from"
            " coterie.leases where id = $2 and counter = 1 and expires_at < clock_timestamp()) returning id",
        },
        evict=("evict_expired",),
    ),
    Plant(
        "free seats not locked",
        "C4",
        "acquire s1, s2 x acquire s2, s1",
        "was granted",
        swapped(("acquire",), ("    for no key update of s\n", "")),
    ),
    Plant(
        "free seats locked as asked",
        "C4 c",
        "acquire s1, s2 x acquire s2, s1, s1 held",
        "40P01",
        swapped(("acquire",), ("order by s.name", "order by array_position($3::text[], s.name)")),
    ),
    Plant(
        "release without epoch",
        "C1",
        "late release x release and re-grant to itself",
        "was granted",
        swapped(("release",), ("and epoch = $4", "and $4::bigint is not null")),
    ),
    Plant(
        "epoch forgotten at release",
        "INV-F1",
        _FIRST,
        "as before",
        swapped(("release",), ("set holder = null", "set holder = null, epoch = 0")),
    ),
    Plant(
        "renewal that brings itself back",
        "C4, incident 9",
        "renew x evict",
        "although its renewal succeeded",
        {
            "renew": "insert into coterie.leases (cluster, id, expires_at, counter) values"
            " ($1, $2, clock_timestamp() + make_interval(secs => $3), 1) on conflict (id) do update"
            " set expires_at = excluded.expires_at, counter = leases.counter + 1 returning counter"
        },
        schema="alter table coterie.leases drop constraint leases_id_fkey",
    ),
    Plant(
        "release without a trace",
        "C5",
        "release x evict and acquire",
        "told clean=",
        swapped(("release",), (", released_epoch = epoch", "")),
    ),
    Plant(
        "definition changed without a lock first",
        "M8",
        "register v3 x v1 comes back",
        "although ['v3'] registered",
        {"contest": "select 1 from (select $1::text, $2::text[], $3::text[]) as nothing"},
    ),
    Plant(
        "the last one decides what all agree on",
        "M4",
        "agree x agree otherwise",
        "told",
        swapped(("agree",), ("do nothing", "do update set value = excluded.value")),
    ),
    Plant(
        "modify without a look at the stamp",
        "K1",
        "kv modify x kv modify too",
        "update was lost",
        {
            "kv_replace": "update coterie.kv as kv set value = u.value, stamp = u.stamp"
            " from unnest($2::text[], $3::bigint[], $4::bytea[], $5::bigint[], $6::float8[])"
            " as u (key, expected, value, stamp, ttl_s) where kv.cluster = $1 and kv.key = u.key returning kv.stamp"
        },
    ),
    Plant(
        "insert after a look that locks nothing",
        "M4",
        "kv modify, absent x kv modify too",
        "23505",
        {
            "kv_insert": "insert into coterie.kv (cluster, key, value, stamp, expires_at)"
            " select $1, u.key, u.value, u.stamp, clock_timestamp() + make_interval(secs => u.ttl_s)"
            " from unnest($2::text[], $3::bytea[], $4::bigint[], $5::float8[]) as u (key, value, stamp, ttl_s)"
            " where not exists (select from coterie.kv where cluster = $1 and key = u.key) returning stamp"
        },
    ),
    Plant(
        "keys changed without the fence",
        "C1, K1",
        "kv fenced replace x release and grant",
        "stale",
        swapped(
            ("swap_kv",),
            ("from items as i join held on held.name = i.seat and held.epoch = i.epoch\n", "from items as i\n"),
        ),
    ),
    Plant(
        "keys removed without the fence",
        "C1, K1",
        "kv fenced remove x release and grant",
        "stale",
        swapped(
            ("remove_kv",),
            (
                "from items as i join held on held.name = i.seat and held.epoch = i.epoch\n    ))",
                "from items as i\n    ))",
            ),
        ),
    ),
    Plant(
        "generation raised by everybody",
        "M13",
        "raise generation x raise generation",
        "generation was raised",
        {"raise_generation": SQL["raise_generation"].split("where (g.system")[0] + "returning generation"},
    ),
    Plant(
        "grants under the generation of another server",
        "M13",
        "acquire on a new server x raise generation",
        "granted",
        {"acquire": SERVER_CHECK.sub("where g.cluster = $1", SQL["acquire"])},
    ),
    Plant(
        "isolation level left to the database",
        "m4",
        "first write x evict and grant",
        "40001",
        level="repeatable read",
    ),
    *MAIL_PLANTS,
    *JOB_PLANTS,
    *LEADING_PLANTS,
    *TICK_PLANTS,
    *UNIT_PLANTS,
    *LATE_PLANTS,
    *START_PLANTS,
)
