"""`coterie workflows`: runs, their steps, what they wait for; W4 (interruption), W5 (the first value stays)."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import ReplayDiverged
from coterie.testing import replay
from tests.unit.cli.command_runner import coterie, require_golden, transcript
from tests.unit.cli.stored_cluster import CARRIERS, Stored, checkout, delivery

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from coterie import Workflow
    from tests.unit.cli.command_runner import Said

    Ask = Callable[..., Said]

CODE = re.compile(r"\b[0-9a-f]{12}\b")
"""The version of a workflow's code, which is another one for each Python."""
TOKEN = re.compile(r"[A-Za-z0-9_-]{60,}")


def started(stored: Stored, id: str, body: Any = checkout, status: str = "suspended", payload: str = "order") -> None:
    """A run that waits, in nobody's memory."""

    async def start() -> None:
        handle = await stored.cluster.start_workflow(body, payload, id=id)

        async def waits() -> bool:
            return await handle.status() == status

        await stored.until(waits)

    stored.do(start())


def ended(stored: Stored, id: str) -> str:
    async def wait() -> str:
        handle = stored.cluster.workflow_handle(checkout, id)

        async def is_over() -> bool:
            return await handle.status() not in ("running", "suspended")

        await stored.until(is_over)
        return await handle.status()

    return str(stored.do(wait()))


def shown(said: Said) -> str:
    text = CODE.sub("<code>", TOKEN.sub("<token>", transcript(said)))
    return re.sub(r"\((running|suspended)\)", "(<status>)", text)  # of children


def test_a_run_that_waits_tells_its_steps_and_how_to_go_on(ask: Ask, stored: Stored) -> None:
    started(stored, "order-1")
    require_golden("workflows_show", shown(ask("workflows", "show", "checkout/order-1")))
    told = json.loads(ask("workflows", "show", "order-1", "--json").out)
    assert (told["name"], told["id"], told["status"], told["payload"]) == ("checkout", "order-1", "suspended", "order")
    steps: list[dict[str, Any]] = told["steps"]
    assert [(each["name"], each["kind"], each["done"], each["result"]) for each in steps] == [
        ("charge", "step", True, "order is paid"),
        ("approval", "deferred", False, None),
    ]
    listed = json.loads(ask("workflows", "list", "--status", "suspended", "--json").out)
    assert "order-1" in {each["id"] for each in listed}


def test_a_list_names_runs_and_how_they_stand(ask: Ask, stored: Stored) -> None:
    started(stored, "order-0")
    said = ask("workflows", "list", "--name", "checkout", "--limit", "1")
    require_golden("workflows_list", transcript(said))
    assert json.loads(ask("workflows", "--name", "nobody", "--json").out) == []


def test_a_value_is_given_once(ask: Ask, stored: Stored) -> None:
    """W5."""
    started(stored, "order-2")
    token = json.loads(ask("workflows", "show", "checkout/order-2", "--json").out)["deferreds"]["approval"]
    require_golden("workflows_resolve_refused", transcript(ask("workflows", "resolve", token, '"yes"')))
    unfit = ask("workflows", "resolve", token, "7", "--yes")
    assert unfit.code == 1
    assert 'deferred "approval" of workflow:checkout/order-2 takes str: it is 7' in unfit.err
    require_golden("workflows_resolve_dry", transcript(ask("workflows", "resolve", token, '"yes"', "--dry-run")))
    require_golden("workflows_resolve", transcript(ask("workflows", "resolve", token, '"yes"', "--yes")))
    assert ended(stored, "order-2") == "done"
    assert ask("workflows", "resolve", token, '"no"', "--yes").code == 1
    require_golden("workflows_show_done", shown(ask("workflows", "show", "checkout/order-2")))
    assert json.loads(ask("workflows", "show", "checkout/order-2", "--json").out)["result"] == "order is paid yes"


def test_a_run_is_interrupted_once_that_is_confirmed(ask: Ask, stored: Stored) -> None:
    """W4."""
    started(stored, "order-3")
    require_golden("workflows_interrupt_refused", transcript(ask("workflows", "interrupt", "checkout/order-3")))
    require_golden("workflows_interrupt", transcript(ask("workflows", "interrupt", "checkout/order-3", "--yes")))
    assert ended(stored, "order-3") == "interrupted"
    require_golden("workflows_interrupt_over", transcript(ask("workflows", "interrupt", "checkout/order-3", "--yes")))


def test_a_run_that_is_resumed_looks_and_waits_again(ask: Ask, stored: Stored) -> None:
    started(stored, "order-4")
    before = stored.do(stored.cluster._acting().storage.units.get("workflow:checkout/order-4"))
    require_golden("workflows_resume_dry", transcript(ask("workflows", "resume", "order-4", "--dry-run")))
    require_golden("workflows_resume", transcript(ask("workflows", "resume", "order-4", "--yes")))

    async def has_looked() -> bool:
        row = await stored.cluster._acting().storage.units.get("workflow:checkout/order-4")
        return row is not None and row.status == "suspended" and row.changed_at > before.changed_at

    stored.do(stored.until(has_looked))


def until(stored: Stored, id: str, status: str) -> None:
    """Wait until a delivery stands so."""

    async def stands() -> bool:
        return await stored.cluster.workflow_handle(delivery, id).status() == status

    stored.do(stored.until(stands))


def test_a_run_is_sent_a_message_fails_goes_on_and_is_forked(ask: Ask, stored: Stored) -> None:
    """W6, W7, W9."""
    run = "delivery/parcel"
    require_golden("workflows_send_refused", transcript(ask("workflows", "send", run, "dispatch", '"ada"')))
    said = ask("workflows", "send", run, "dispatch", '"ada"', "--key", "1", "--yes")  # it begins later
    require_golden("workflows_send", transcript(said))
    assert ask("workflows", "send", run, "dispatch", '"eve"', "--key", "1", "--yes").code == 1
    started(stored, "parcel", delivery, "failed", "parcel")
    assert ask("workflows", "send", run, "note", '"late"', "--yes").code == 1
    require_golden("workflows_show_failed", shown(ask("workflows", "show", run)))
    told = json.loads(ask("workflows", "show", run, "--json").out)
    assert [(each["name"], each["value"], each["number"]) for each in told["published"]] == [("status", "packed", 1)]
    assert [(each["name"], each["id"]) for each in told["children"]] == [("checkout", "of parcel")]

    require_golden("workflows_retry_dry", transcript(ask("workflows", "retry", run, "--dry-run")))
    CARRIERS.add("parcel")
    require_golden("workflows_retry", transcript(ask("workflows", "retry", run, "--yes")))
    until(stored, "parcel", "done")
    assert ask("workflows", "retry", run, "--yes").code == 1
    require_golden("workflows_published", transcript(ask("workflows", "published", run, "status")))
    assert [each["value"] for each in json.loads(ask("workflows", "published", run, "status", "--json").out)] == [
        "packed",
        "gone",
    ]
    assert len(json.loads(ask("workflows", "published", run, "status", "--limit", "1", "--json").out)) == 1
    require_golden("workflows_published_nothing", transcript(ask("workflows", "published", run, "place")))

    fork = ("workflows", "fork", run, "--before", "book", "--id", "parcel 2")
    require_golden("workflows_fork_dry", transcript(ask(*fork, "--dry-run")))
    require_golden("workflows_fork", transcript(ask(*fork, "--yes")))
    until(stored, "parcel 2", "done")
    assert ask(*fork, "--yes").code == 1  # there is one
    unknown = ask("workflows", "fork", run, "--before", "pay", "--id", "parcel 3", "--yes")
    require_golden("workflows_fork_unknown", transcript(unknown))
    acts = ask("activity", "--json").out
    assert {"retry-workflow", "fork-workflow", "send-to-workflow"} <= {each["act"] for each in json.loads(acts)}


def test_messages_that_wait_are_shown(ask: Ask, stored: Stored) -> None:
    started(stored, "letter", delivery, payload="letter")
    for _ in range(2):
        assert ask("workflows", "send", "letter", "note", "1", "--yes").code == 0
    (waiting,) = json.loads(ask("workflows", "show", "letter", "--json").out)["messages"]
    assert (waiting["name"], waiting["count"]) == ("note", 2)
    assert "waiting    2 messages 'note' since" in ask("workflows", "show", "letter").out


def test_a_history_is_exported_and_replayed(ask: Ask, stored: Stored) -> None:
    started(stored, "exported", delivery, payload="letter")
    history = ask("workflows", "export", "delivery/exported").out
    replay(delivery, history)

    async def other(workflow: Workflow, order: str) -> str:
        return await workflow.receive("dispatch", str)

    with pytest.raises(ReplayDiverged):
        replay(other, history)


def test_an_encrypted_history_is_exported_with_its_key_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    key = base64.b64encode(bytes(range(32))).decode()
    monkeypatch.setenv("COTERIE_PAYLOAD_KEYS", f"k1={key}")
    monkeypatch.setenv("COTERIE_PAYLOAD_CURRENT", "k1")
    stored = Stored(f"sqlite:///{tmp_path}/encrypted.db")
    export = ("workflows", "export", "delivery/sealed", "--url", stored.url)
    try:
        stored.start("web-1")
        started(stored, "sealed", delivery, payload="letter")
        history = coterie(capsys, *export).out
    finally:
        stored.close()
    replay(delivery, history)
    assert json.loads(history)["payload"] == "letter"
    monkeypatch.delenv("COTERIE_PAYLOAD_KEYS")
    monkeypatch.delenv("COTERIE_PAYLOAD_CURRENT")
    said = coterie(capsys, *export)
    assert (said.code, said.out) == (2, "")
    assert "encrypted with key 'k1', which this process does not have" in said.err


@pytest.mark.parametrize(
    ("name", "args", "code"),
    [
        ("run", ("show", "checkout/nobody"), 1),
        ("token", ("resolve", "nonsense", "1", "--yes"), 1),
        ("json", ("resolve", "nonsense", "yes", "--yes"), 2),
    ],
)
def test_what_is_not_there_is_told(ask: Ask, name: str, args: tuple[str, ...], code: int) -> None:
    said = ask("workflows", *args)
    assert said.code == code
    require_golden(f"workflows_unknown_{name}", transcript(said))
