"""`coterie workflows`: runs, their steps, what they wait for; W4 (interruption), W5 (the first value stays)."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.unit.cli.command_runner import require_golden, transcript
from tests.unit.cli.stored_cluster import checkout

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.cli.command_runner import Said
    from tests.unit.cli.stored_cluster import Stored

    Ask = Callable[..., Said]

CODE = re.compile(r"\b[0-9a-f]{12}\b")
"""The version of a workflow's code, which is another one for each Python."""
TOKEN = re.compile(r"[A-Za-z0-9_-]{60,}")


def started(stored: Stored, id: str) -> None:
    """A run that waits for its approval, in nobody's memory."""

    async def start() -> None:
        handle = await stored.cluster.start_workflow(checkout, "order", id=id)

        async def waits() -> bool:
            return await handle.status() == "suspended"

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
    return CODE.sub("<code>", TOKEN.sub("<token>", transcript(said)))


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
