"""`coterie messages`: what waits, runs, is due later, was given up; running it again, clearing it away."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

import pytest

from coterie.cli.client import ClientCommand
from coterie.cli.commands.messages import (
    Purge,
    parse,
    shown,
    shown_incoming,
    warn_of_incoming,
    warn_of_silent_runners,
)
from coterie.entities.persisted.api import FailedAttempt, MessageInfo
from coterie.kernel.ids import MessageId
from coterie.observe.incoming_call import IncomingCall
from coterie.observe.message_filter import ChosenMessages, MessageOptions
from coterie.storage.contracts.incoming_calls import COUNTED_MOST, WaitingIncoming
from coterie.storage.interface import ClusterSnapshot, RunnerRow, SeatRow
from tests.unit.cli.command_runner import require_golden, screen, transcript
from tests.unit.cli.stored_cluster import GATES, Stored
from tests.unit.observe.cluster_facts import NOW

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.unit.cli.command_runner import Said

    Ask = Callable[..., Said]

LISTED = {
    "id", "entity", "method", "status", "state", "shard", "key", "sent_at", "due_at", "completed_at", "attempts",
    "failure", "trace_id", "losses", "tags", "error",
}  # fmt: skip


def ids(said: Said) -> list[str]:
    return [each["id"] for each in json.loads(said.out)]


@pytest.fixture(scope="session")
def sent(stored: Stored) -> dict[str, str]:
    """Of mara's account one message in each state, by it."""
    found = {"dead": stored.dead("mara", "charge", "o-7", 500)}
    found["done"] = stored.send("mara", "deposit", "o-1", 5)
    stored.until_status(found["done"], "done")
    found["scheduled"] = stored.send("mara", "deposit", "o-2", 5, delay="1h")
    found["running"] = stored.send("mara", "hold", "mara")
    stored.do(stored.until(has_begun("mara")))
    found["waiting"] = stored.send("mara", "hold", "mara")
    return found


def has_begun(gate: str) -> Any:
    async def begun() -> bool:
        return gate in GATES

    return begun


def test_what_sql_has_sent_is_shown_while_no_runner_has_taken_it_in(capsys: pytest.CaptureFixture[str]) -> None:
    call = IncomingCall(
        id="m", kind="call", type="Report", entity="7", method="build", key="k-1", sent_at=NOW - timedelta(seconds=90)
    )
    said = shown_incoming(screen(), call, now=NOW).splitlines()
    assert said[0].split("  ")[0] == "Report/7.build"
    assert said[0].endswith("waits to be taken in")
    assert said[1].split() == ["key", "k-1"]
    assert "1m" in said[2]
    assert said[-1] == "it was sent from SQL: a runner whose program has entity Report takes it in within a second"
    run = IncomingCall(id="m", kind="workflow", type="order", entity="7", method="", key=None, sent_at=NOW)
    assert (run.what, run.awaited) == ("workflow order/7", "workflow order")
    waiting = [
        WaitingIncoming("call", "Report", "m1", 90.0, rows=3),
        WaitingIncoming("workflow", "order", "m2", 5.0, rows=COUNTED_MOST),
    ]
    for filter_ in ("", "type:Report", "state:dead"):
        warn_of_incoming(waiting, parse(filter_))
    first, second, again = capsys.readouterr().err.splitlines()
    assert (
        first
        == again
        == "3 calls from SQL to entity Report not taken in yet, the oldest for 1m 30s: coterie messages show m1"
    )
    assert second.startswith("1,000 or more starts from SQL of workflow order not taken in yet, the oldest for 5s: ")


def test_each_state_has_its_messages(ask: Ask, sent: dict[str, str]) -> None:
    for state, message in sent.items():
        said = ask("messages", "list", "--state", state, "--filter", "type:Account/mara", "--json")
        assert (said.code, ids(said)) == (0, [message]), state
        (only,) = json.loads(said.out)
        assert set(only) == LISTED
        assert (only["state"], only["entity"]) == (state, "Account/mara")


def test_a_list_without_state_has_all_that_is_not_done(ask: Ask, sent: dict[str, str]) -> None:
    said = ask("messages", "--filter", "type:Account id:mara", "--json")
    assert ids(said) == sorted(set(sent.values()) - {sent["done"]})
    require_golden("messages_list", transcript(ask("messages", "list", "--filter", "type:Account/mara")))


def test_a_list_goes_on_behind_its_last_one(ask: Ask, sent: dict[str, str]) -> None:
    every = sorted(set(sent.values()) - {sent["done"]})
    first = ask("messages", "list", "--filter", "type:Account/mara", "--limit", "1", "--json")
    assert ids(first) == every[:1]
    assert first.err == f'more: coterie messages list --filter "type:Account id:mara" --after {every[0]}\n'
    rest = ask("messages", "list", "--filter", "type:Account/mara", "--after", every[0], "--json")
    assert ids(rest) == every[1:]


@pytest.mark.parametrize(
    ("text", "states"),
    [
        ("type:Account/mara error:refused", ["dead"]),
        ("type:Account/mara error:Timeout", []),
        ("type:Account/mara key:o-2", ["scheduled"]),
        ("type:Account/mara method:hold", ["running", "waiting"]),
        ("type:Account/mara state:done key:o-1", ["done"]),
        ("type:Account/mara older:1h", []),
        ("type:Acc id:mara", []),
    ],
)
def test_qualifiers_narrow_it(ask: Ask, sent: dict[str, str], text: str, states: list[str]) -> None:
    assert ids(ask("messages", "list", "--filter", text, "--json")) == sorted(sent[state] for state in states)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qualifier", "tpye:Account"),
        ("word", "Account"),
        ("state", "state:pending"),
        ("twice", "key:a key:b"),
        ("id", "id:alice"),
        ("quote", "key:'a"),
        ("older", "older:30"),
    ],
)
def test_a_filter_that_cannot_be_read_is_exit_2(ask: Ask, name: str, text: str) -> None:
    require_golden(f"messages_filter_{name}", transcript(ask("messages", "list", "--filter", text)))


def test_a_filter_reads_back_what_it_shows() -> None:
    read = parse('type:Account error:"connection refused" older:30d', state="dead")
    assert read == MessageOptions(type="Account", error="connection refused", older="30d", state="dead")
    assert parse(str(read)) == read


def test_one_message_is_shown_with_its_attempts(ask: Ask, sent: dict[str, str]) -> None:
    require_golden("messages_show", transcript(ask("messages", "show", sent["dead"])))
    require_golden("messages_show_done", transcript(ask("messages", "show", sent["done"])))
    told = json.loads(ask("messages", "show", sent["dead"], "--json").out)
    assert told["payload"] == {"order_id": "o-7", "cents": 500}
    assert (told["id"], told["attempts"], [each["number"] for each in told["errors"]]) == (sent["dead"], 2, [1, 2])
    assert ask("messages", "show", "nobody").code == 1


def test_it_is_laid_out_for_people() -> None:
    """Columns stand under each other; on a terminal times are relative."""
    now = datetime(2026, 3, 27, 20, 48, tzinfo=UTC)
    said = "ConnectionRefusedError: [Errno 111] payments.internal:443\nTraceback …"
    message = MessageInfo(
        id=MessageId("019a8f0e6c5b00001f2e3d4c5b6a7988"),
        entity="Account/alice",
        method="charge",
        status="dead",
        shard="default:42",
        key="order-7",
        sent_at=now - timedelta(minutes=12),
        due_at=now,
        completed_at=now - timedelta(minutes=2),
        attempts=2,
        errors=tuple(FailedAttempt(each, now - timedelta(minutes=12 // each), said) for each in (1, 2)),
        payload={"cents": 500, "order_id": "order-7"},
        reply=None,
        failure=None,
        trace_id="4bf92f3577b34da6a3ce929d0e0e4736",
    )
    runner = RunnerRow(id="r", name="web-2", address="", host_id="", groups=("default",), started_at=now)
    seat = SeatRow("shard:default:42", "default", "r", 17, "", now, clean=True)
    view = ClusterSnapshot((runner,), (seat,), "")
    text = shown(screen(), message, view, state="dead", now=now)
    require_golden("messages_show_layout", f"{text}\n")
    plain = shown(screen(is_utf8=False), message, view, state="dead", now=now)
    assert plain.splitlines()[0].endswith("x dead after 2 attempts")


def test_dead_ones_run_again_once_that_is_confirmed(ask: Ask, stored: Stored) -> None:
    dead = stored.dead("nora", "charge", "o-1", 5)
    require_golden("messages_retry_refused", transcript(ask("messages", "retry", dead)))
    require_golden("messages_retry_dry", transcript(ask("messages", "retry", dead, "--dry-run")))
    assert stored.do(stored.cluster.messages.show(dead)).status == "dead"
    GATES["payments"] = asyncio.Event()
    try:
        require_golden("messages_retry", transcript(ask("messages", "retry", dead, "--yes")))
        stored.until_status(dead, "done")
    finally:
        del GATES["payments"]
    said = ask("messages", "retry", dead, "--yes")
    assert said.code == 1
    assert said.err.splitlines() == [
        f"message {dead} is done: only dead ones are run again",
        "error: no dead message matches",
        "hint:  coterie messages list --state dead shows all of them",
    ]


def test_a_filter_chooses_whom_to_run_again(ask: Ask, stored: Stored) -> None:
    refused, late = stored.dead("olga", "charge", "o-1", 5), stored.dead("olga", "slow")
    said = ask("messages", "retry", "--filter", "type:Account/olga error:Timeout", "--dry-run")
    assert said.err.splitlines()[0] == "1 dead message will run again now, with all attempts: Account.slow 1"
    said = ask("messages", "retry", "--filter", "type:Account/olga error:refused", "--yes", "--json")
    assert json.loads(said.out) == {"retried": 1, "matched": 1}
    attempts = {each: stored.do(stored.cluster.messages.show(each)) for each in (refused, late)}
    assert len(attempts[late].errors) == 2
    stored.do(stored.until(lambda: has_failed(stored, refused, 4)))


async def has_failed(stored: Stored, message: str, times: int) -> bool:
    return len((await stored.cluster.messages.show(message)).errors) == times


@pytest.mark.parametrize("args", [(), ("some-id", "--filter", "state:dead"), ("--filter", "state:done")])
def test_whom_to_run_again_has_to_be_said(ask: Ask, args: Sequence[str]) -> None:
    assert ask("messages", "retry", *args, "--yes").code == 2


def test_a_purge_says_how_many_and_asks(ask: Ask, stored: Stored) -> None:
    stored.dead("paula", "slow")
    which = ("messages", "purge", "--filter", "state:dead type:Account/paula")
    require_golden("messages_purge_refused", transcript(ask(*which)))
    require_golden("messages_purge_dry", transcript(ask(*which, "--dry-run")))
    require_golden("messages_purge", transcript(ask(*which, "--yes")))
    require_golden("messages_purge_nothing", transcript(ask(*which)))


def test_a_purge_takes_those_that_match_and_no_others(ask: Ask, stored: Stored) -> None:
    refused, late = stored.dead("quinn", "charge", "o-1", 5), stored.dead("quinn", "slow")
    done = stored.send("quinn", "deposit", "o-1", 5)
    stored.until_status(done, "done")
    said = ask("messages", "purge", "--filter", "state:dead type:Account/quinn error:Timeout", "--yes", "--json")
    assert json.loads(said.out)["purged"] == 1
    assert ask("messages", "show", late).code == 1
    assert ask("messages", "purge", "--filter", "state:dead type:Account/quinn older:1h", "--yes").code == 0
    assert {ask("messages", "show", each).code for each in (refused, done)} == {0}
    assert ask("messages", "purge", "--filter", "state:done type:Account/quinn", "--yes").code == 0
    assert (ask("messages", "show", refused).code, ask("messages", "show", done).code) == (0, 1)


@pytest.mark.parametrize("text", ["type:Account", "state:waiting", "state:running"])
def test_what_has_not_ended_cannot_be_purged(ask: Ask, text: str) -> None:
    said = ask("messages", "purge", "--filter", text, "--yes")
    assert (said.code, said.err.splitlines()[0]) == (2, "error: only messages that are done or dead can be purged")


def test_a_purge_that_is_interrupted_says_what_remains(capsys: pytest.CaptureFixture[str]) -> None:
    """Ctrl-C leaves a consistent state and says what remains to do."""

    class Mail:
        async def purge(self, *, progress: Callable[[int], object], **_: object) -> int:
            progress(2_000)
            raise asyncio.CancelledError

    class Cluster:
        messages = Mail()

    purge = Purge(ClientCommand(cast("Any", Cluster()), screen(), as_json=False), parse("state:dead older:30d"))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(purge.run())
    rest = 'coterie messages purge --filter "state:dead older:30d"'
    assert capsys.readouterr().err == f"interrupted: at least 2,000 messages are deleted; the others: {rest}\n"


def test_a_runner_that_is_silent_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_silent_runners(ChosenMessages([], datetime(2026, 3, 27, tzinfo=UTC), {}, ["web-2"]))
    assert capsys.readouterr().err == "no answer from web-2: messages that run there are shown as waiting\n"


def test_messages_are_found_by_tag_whatever_their_state(ask: Ask, stored: Stored) -> None:
    """T10: by the option, and by the filter that the page shares."""
    done = stored.send("tara", "deposit", "o-1", 5, tags={"order": "a b", "tenant": "x"})
    later = stored.send("tara", "deposit", "o-2", 5, tags={"order": "a b"}, delay="1h")
    stored.send("tara", "deposit", "o-3", 5, tags={"order": "other"})
    stored.until_status(done, "done")
    assert ids(ask("messages", "list", "--tag", "order=a b", "--json")) == [done, later]
    assert ids(ask("messages", "list", "--filter", 'tag:"order=a b" state:scheduled', "--json")) == [later]
    assert ids(ask("messages", "list", "--tag", "order=none", "--json")) == []
    assert "tags        order=a b, tenant=x" in ask("messages", "show", done).out.splitlines()
    said = ask("messages", "list", "--tag", "order")
    assert said.code == 2
    assert said.err.splitlines() == [
        'error: tag is "order": write a name and a value, as in order=7',
        "hint:  write tag:order=7, or --tag order=7",
    ]
    assert ask("messages", "list", "--tag", "a=b", "--filter", "tag:a=c").code == 2


def test_a_dead_message_is_sent_with_other_arguments(ask: Ask, stored: Stored) -> None:
    dead = stored.dead("uma", "charge", "o-1", 5)
    asked = ("messages", "edit", dead, "--args")
    assert ask(*asked, '{"order_id": "o-2", "cents": 6}', "--dry-run").code == 0
    assert len(ids(ask("messages", "list", "--filter", "type:Account/uma", "--json"))) == 1
    said = ask(*asked, '{"order_id": "o-2", "cents": 6}', "--yes", "--json")
    sent = json.loads(said.out)["sent"]
    assert json.loads(said.out)["dead"] == dead
    assert stored.do(stored.cluster.messages.show(sent)).payload == {"order_id": "o-2", "cents": 6}
    assert stored.do(stored.cluster.messages.show(dead)).status == "dead"
    refused = {
        '{"order_id": "o-2", "cents": "six"}': (1, "cents"),
        '{"order_id": "o-3", "cents": 6}': (1, "used before with another payload"),
        "[6]": (2, "expected a map"),
    }
    for arguments, (code, words) in refused.items():
        said = ask(*asked, arguments, "--yes")
        assert (said.code, words in said.err) == (code, True), said.err
    waiting = stored.send("uma", "deposit", "o-2", 5, delay="1h")
    said = ask("messages", "edit", waiting, "--args", "{}", "--yes")
    assert said.code == 1
    assert "only dead messages are sent again with other arguments" in said.err
