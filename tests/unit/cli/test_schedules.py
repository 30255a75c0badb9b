"""`coterie schedules`: what was put at run time, when it is due, what it has sent, and acts on it."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tests.unit.cli.command_runner import require_golden, transcript
from tests.unit.cli.stored_cluster import Account

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.cli.command_runner import Said
    from tests.unit.cli.stored_cluster import Stored

    Ask = Callable[..., Said]


def put(stored: Stored, name: str, schedule: str = "0 7 * * MON", **options: Any) -> None:
    """Put a schedule, or the same once more."""

    async def put_it() -> None:
        call = stored.cluster.ref(Account, "sched").charge("o-1", 5_000)  # overdrawn: it ends at once
        await stored.cluster.schedules.put(name, schedule, call, **options)

    stored.do(put_it())


def shown(ask: Ask, name: str) -> Any:
    return json.loads(ask("schedules", "show", name, "--json").out)


def test_schedules_are_listed_by_prefix_and_shown_with_what_comes(ask: Ask, stored: Stored) -> None:
    put(stored, "listed/acme", timezone="Europe/Zurich")
    put(stored, "listed/beta", "0 8 * * *")
    require_golden("schedules_list", transcript(ask("schedules", "list", "listed/")))
    assert [each["name"] for each in json.loads(ask("schedules", "list", "listed/", "--json").out)] == [
        "listed/acme",
        "listed/beta",
    ]
    less = ask("schedules", "list", "listed/", "--limit", "1")
    assert ("listed/acme" in less.out, "listed/beta" in less.out) == (True, False)
    assert "1 more schedule" in less.err
    assert "cluster.schedules.put(" in ask("schedules", "list", "nothing/").out
    told = shown(ask, "listed/acme")
    assert (told["schedule"]["calls"], told["schedule"]["is_over"]) == ("Account/sched.charge", False)
    assert (len(told["upcoming"]), told["history"]) == (5, [])
    text = ask("schedules", "show", "listed/acme").out
    assert "it was not due yet" in text
    assert re.search(r"^calls +Account/sched\.charge$", text, re.MULTILINE)


def test_a_preview_has_the_notes_of_changed_clocks(ask: Ask, stored: Stored) -> None:
    put(stored, "zoned", "30 2 * * *", timezone="Europe/Zurich")
    told = json.loads(ask("schedules", "preview", "zoned", "--count", "366", "--json").out)
    assert len(told["instants"]) == 366
    assert [each for each in told["instants"] if each["note"]], "clocks change within a year"
    assert len(ask("schedules", "preview", "zoned", "-n", "3").out.strip().splitlines()) == 5


def test_a_schedule_is_paused_and_resumed_and_who_did_it_is_recorded(ask: Ask, stored: Stored) -> None:
    put(stored, "weekly")
    require_golden("schedules_pause_refused", transcript(ask("schedules", "pause", "weekly")))
    assert ask("schedules", "pause", "weekly", "--dry-run").code == 0
    assert shown(ask, "weekly")["schedule"]["paused_at"] is None
    require_golden("schedules_pause", transcript(ask("schedules", "pause", "weekly", "--yes")))
    assert shown(ask, "weekly")["schedule"]["paused_at"] is not None
    assert "weekly was paused already" in ask("schedules", "pause", "weekly", "--yes").out
    require_golden("schedules_resume", transcript(ask("schedules", "resume", "weekly", "--yes")))
    assert shown(ask, "weekly")["schedule"]["paused_at"] is None
    rows = json.loads(ask("activity", "--limit", "50", "--json").out)
    assert {"pause-schedule", "resume-schedule"} <= {each["act"] for each in rows if each["what"] == "schedule weekly"}


def test_instants_of_the_past_are_sent_once_more_and_only_once(ask: Ask, stored: Stored) -> None:
    put(stored, "filled", "0 7 * * *")
    when = ("--since", "2026-03-01T00:00:00Z", "--until", "2026-03-04T00:00:00Z")
    said = json.loads(ask("schedules", "backfill", "filled", *when, "--yes", "--json").out)
    assert len(set(said["messages"])) == 3
    again = json.loads(ask("schedules", "backfill", "filled", *when, "--yes", "--json").out)
    assert again["messages"] == said["messages"]
    for message in said["messages"]:
        stored.until_status(message, "done")
    too_many = ("--since", "2016-03-01T00:00:00Z", "--until", "2026-03-04T00:00:00Z")
    refused = ask("schedules", "backfill", "filled", *too_many, "--yes")
    assert (refused.code, "send 1000 at most at once" in refused.err) == (1, True)
    naive = ask("schedules", "backfill", "filled", "--since", "2026-03-01", "--until", "2026-03-04T00:00:00Z", "--yes")
    assert (naive.code, "naive datetime 2026-03-01 given to --since" in naive.err) == (2, True)


def test_what_became_of_the_last_instants(ask: Ask, stored: Stored) -> None:
    put(stored, "often", "* * * * * *")

    async def is_sent() -> bool:
        return bool(await stored.cluster.schedules.history("often"))

    stored.do(stored.until(is_sent))
    told = json.loads(ask("schedules", "history", "often", "--json").out)
    assert {each["count"] for each in told} == {1}
    assert all(each["message"] and not each["reason"] for each in told)
    assert "✓ sent" in ask("schedules", "history", "often", "--limit", "1").out.replace("+ sent", "✓ sent")
    ask("schedules", "remove", "often", "--yes")


def test_a_removed_schedule_is_gone_and_an_unknown_one_is_said_so(ask: Ask, stored: Stored) -> None:
    put(stored, "gone")
    require_golden("schedules_remove", transcript(ask("schedules", "remove", "gone", "--cancel", "--yes")))
    for verb in ("show", "preview", "history", "pause", "resume", "remove"):
        said = ask("schedules", verb, "gone", *(["--yes"] if verb in ("pause", "resume", "remove") else []))
        assert (said.code, said.out) == (1, ""), verb
        assert "schedule 'gone'" in said.err, verb
        assert "coterie schedules list" in said.err, verb
