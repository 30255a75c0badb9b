"""Planted bugs of stored messages. See `plants`."""

from __future__ import annotations

from tests.interleavings.database import SQL
from tests.interleavings.plant import Plant, swap, swapped

WRITES = ("end_messages", "commit_handlers", "set_back")

_OLD_ENOUGH = (
    "        and ($7::float8 is null or completed_at <= clock_timestamp() - make_interval(secs => $7))\n    returning 1"
)

MAIL_PLANTS = (
    Plant(
        "messages ended without the fence",
        "C1",
        "message: end x release and grant",
        "stale",
        swapped(WRITES, ("when held.name is null then 'fenced'\n", "")),
    ),
    Plant(
        "messages fenced by seats locked too weakly",
        "C1",
        "message: end x release and grant",
        "stale",
        swapped((*WRITES, "suspect", "mark_suspect", "cancel_fenced"), ("for share of s", "for key share of s")),
    ),
    Plant(
        "a lone message ended without the fence",
        "C1",
        "message: lone end x release and grant",
        "stale",
        swapped(("end_message",), ("from held\n", "")),
    ),
    Plant(
        "a lone message fenced by a seat locked too weakly",
        "C1",
        "message: lone end x release and grant",
        "stale",
        swapped(("end_message",), ("for share of s", "for key share of s")),
    ),
    Plant(
        "sent whatever becomes of the rest",
        "M3, B3",
        "message: commit x release and grant",
        "in parts",
        swapped(
            ("commit_handlers",),
            (
                "from sends as s join judged as j on j.n = s.n\n    where j.outcome is null\n        and (s.key",
                "from sends as s\n    where (s.key",
            ),
        ),
    ),
    Plant(
        "suspicion without the fence",
        "C5",
        "message: suspect x release and grant",
        "stale",
        swapped(
            ("suspect",),
            (
                "    from held\n        join coterie.messages as m",
                "    from (select $3::text as name, now() as lost_at) as held\n        join coterie.messages as m",
            ),
        ),
    ),
    Plant(
        "a suspect begun without the fence",
        "C5",
        "message: mark x release and grant",
        "stale",
        swapped(("mark_suspect",), ("from held\n", "")),
    ),
    Plant(
        "a loss counted for what had failed meanwhile",
        "C5",
        "message: set back x take over what was begun alone",
        "B counted a loss",
        swapped(("set_back",), ("        suspicion = 0, -- its process has survived it\n", "")),
    ),
    Plant(
        "put off under no fence",
        "T5, C1",
        "message: put off x release and grant",
        "stale",
        swapped(
            ("set_back",),
            ("when held.name is null then 'fenced'", "when i.error is not null and held.name is null then 'fenced'"),
        ),
    ),
    Plant(
        "a loss counted for what was put off meanwhile",
        "T5, C5",
        "message: put off x take over what was begun alone",
        "B counted a loss",
        swapped(
            ("set_back",),
            ("suspicion = 0, --", "suspicion = case when j.error is null then m.suspicion else 0 end, --"),
        ),
    ),
    Plant(
        "taken back under no fence",
        "C1",
        "message: cancel under the fence x release and grant",
        "stale",
        swapped(
            ("cancel_fenced",),
            ("from held\nwhere m.cluster", "where m.cluster"),
            ("m.seat = held.name", "m.seat = $3 and (select true from held union select true) is not null"),
        ),
    ),
    Plant(
        "taken back without a look at the seat",
        "C1",
        "message: cancel unheld x acquire and look",
        "taken back while",
        {
            "cancel": "update coterie.messages set status = 1, completed_at = now(), reply = $3, key = null, epoch = 0"
            " where cluster = $1 and id = $2 and completed_at is null returning id"
        },
    ),
    Plant(
        "seat looked at without a lock, before it is taken back",
        "C1",
        "message: cancel unheld x acquire and look",
        "taken back while",
        swapped(("cancel",), ("    for share of s\n", "")),
    ),
    Plant(
        "overtaken, and told that it is written",
        "M3",
        "message: end x cancel",
        "told 'written', and it is not done",
        swapped(WRITES, ("else coterie.overtaken()", "else 'written'")),
    ),
    Plant(
        "a lone one overtaken, and told that it is written",
        "M3",
        "message: lone end x cancel",
        "told 'written', and it is not done",
        swapped(
            ("end_message",),
            (")\nupdate", "), done as (\nupdate"),
            ("returning 'written' as outcome", "returning m.id)\nselect 'written' as outcome"),
        ),
    ),
    Plant(
        "a commit that does not look whether all was sent",
        "M4, M6",
        "message: insert n1 x send",
        "told 'written'",
        swapped(("commit_handlers",), ("        and unsent.n is null then 'written'", "        then 'written'")),
    ),
    Plant(
        "a key that is there is refused as an error",
        "M4",
        "message: insert n1 x insert n2",
        "23505",
        swapped(("insert_messages",), ("on conflict do nothing\n", "")),
    ),
    Plant(
        "keys taken as they come",
        "M3",
        "message: insert x, z, y x insert y, z, x, z held",
        "40P01",
        swapped(("insert_messages",), ("on conflict do nothing\n", "order by u.id\non conflict do nothing\n")),
    ),
    Plant(
        "the dead removed without a second look",
        "m17",
        "message: revive x remove",
        "lives again, and",
        {
            "remove_dead": swap(
                SQL["remove_dead"],
                ("any(array(select id from chosen)) and status = $3", "any(array(select id from chosen)) and $3 = $3"),
                (_OLD_ENOUGH, "    returning 1"),
            )
        },
    ),
)
