"""Replays of histories: what a change of a workflow's code does to runs that have begun (W2)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie import Cluster, Retry, Workflow
from coterie.errors import ReplayDiverged, StepDiverged
from coterie.testing import replay, run_simulation, simulate
from coterie.workflows.run_history import export

if TYPE_CHECKING:
    from pathlib import Path


def history_of(body: Any, payload: Any, *others: Any, status: str = "done", meanwhile: Any = None) -> bytes:
    """The history of a run that has come to a status, in a simulated cluster."""

    async def main() -> bytes:
        cluster = Cluster("sqlite://")
        for each in (body, *others):
            cluster.workflow(retry=Retry(attempts=3, base="10ms"))(each)
        async with simulate(cluster, runners=1) as sim:
            handle = await cluster.start_workflow(body, payload, id="one")
            if meanwhile is not None:
                await meanwhile(cluster, handle)

            async def is_there() -> bool:
                return await handle.status() == status

            await sim.wait_until(is_there)
            found = await export(cluster._acting().storage, f"workflow:{body.__name__}/one")
            assert found is not None
            return msgspec.json.encode(found[1])

    return run_simulation(main, seed=3)


async def charge(cents: int) -> str:
    return f"paid {cents}"


async def ship(receipt: str) -> str:
    return f"shipped, {receipt}"


async def tell(receipt: str) -> None: ...


async def checkout(workflow: Workflow, cents: int) -> str:
    receipt = await workflow.step("charge", charge, cents)
    return await workflow.step("ship", ship, receipt)


def test_the_same_code_replays() -> None:
    replay(checkout, history_of(checkout, 5))


def test_a_step_that_comes_before_another_diverges_there() -> None:
    async def told_first(workflow: Workflow, cents: int) -> str:
        receipt = await workflow.step("charge", charge, cents)
        await workflow.step("tell", tell, receipt)
        return await workflow.step("ship", ship, receipt)

    with pytest.raises(ReplayDiverged) as caught:
        replay(told_first, history_of(checkout, 5))
    error = caught.value
    assert isinstance(error, StepDiverged)
    assert (error.found, error.stored, error.place) == ("tell", "ship", "place 1")
    assert 'workflow:checkout/one: "tell" was reached at place 1, where "ship" is stored' in str(error)


def test_a_change_that_is_guarded_by_patched_replays() -> None:
    async def guarded(workflow: Workflow, cents: int) -> str:
        receipt = await workflow.step("charge", charge, cents)
        if workflow.patched("tell"):
            await workflow.step("tell", tell, receipt)
        return await workflow.step("ship", ship, receipt)

    async def no_longer_guarded(workflow: Workflow, cents: int) -> str:
        receipt = await workflow.step("charge", charge, cents)
        return await workflow.step("ship", ship, receipt)

    replay(guarded, history_of(checkout, 5))
    after = history_of(guarded, 5)
    replay(guarded, after)
    with pytest.raises(ReplayDiverged, match='"ship" was reached at place 1, where "patch tell" is stored'):
        replay(no_longer_guarded, after)


def test_other_arguments_steps_that_are_left_out_and_steps_after_the_end_diverge() -> None:
    async def dearer(workflow: Workflow, cents: int) -> str:
        return await workflow.step("ship", ship, await workflow.step("charge", charge, cents + 1))

    async def shorter(workflow: Workflow, cents: int) -> str:
        return await workflow.step("charge", charge, cents)

    async def longer(workflow: Workflow, cents: int) -> str:
        receipt = await checkout(workflow, cents)
        await workflow.step("tell", tell, receipt)
        return receipt

    history = history_of(checkout, 5)
    for changed, words in [
        (dearer, '"charge with other arguments" was reached at place 0, where "charge" is stored'),
        (shorter, '"the end" was reached at place 1, where "step ship" is stored'),
        (longer, '"step tell" was reached at place 2, where "the end" is stored'),
    ]:
        with pytest.raises(ReplayDiverged, match=words):
            replay(changed, history)


def test_a_run_that_was_tried_again_and_one_that_failed_replay() -> None:
    tries: list[int] = []

    async def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return len(tries)

    async def patient(workflow: Workflow, _: None) -> int:
        return await workflow.step("flaky", flaky)

    async def broken() -> None:
        raise ValueError("no such account")

    async def undo() -> None: ...

    async def hopeless(workflow: Workflow, _: None) -> None:
        workflow.compensate("undo", undo)
        await workflow.step("broken", broken)

    async def forgetful(workflow: Workflow, _: None) -> None:
        await workflow.step("broken", broken)

    async def other_error(workflow: Workflow, _: None) -> None:
        workflow.compensate("undo", undo)
        try:
            await workflow.step("broken", broken)
        except ValueError:
            raise KeyError("account") from None

    history = history_of(patient, None)
    assert len(tries) == 3
    replay(patient, history)
    assert len(tries) == 3  # no step runs in a replay

    failed = history_of(hopeless, None, status="failed")
    replay(hopeless, failed)
    with pytest.raises(ReplayDiverged, match='"no compensation" was reached'):
        replay(forgetful, failed)
    with pytest.raises(KeyError):
        replay(other_error, failed)


async def double(number: int) -> int:
    return 2 * number


def test_maps_races_and_messages_replay_and_diverge() -> None:
    async def one(workflow: Workflow) -> str:
        return await workflow.receive("approve", str)

    async def fan_out(workflow: Workflow, count: int) -> int:
        numbers = await workflow.map(double, range(count), limit=2)
        which, _ = await workflow.first(one(workflow), workflow.sleep("1h", name="too late"))
        await workflow.publish("state", "approved")
        return which + sum(numbers)

    async def more_items(workflow: Workflow, count: int) -> int:
        return sum(await workflow.map(double, range(count + 1), limit=2))

    async def other_race(workflow: Workflow, count: int) -> int:
        await workflow.map(double, range(count), limit=2)
        which, _ = await workflow.first(workflow.sleep("1h", name="too late"), one(workflow))
        return which

    async def approve(_: Cluster, handle: Any) -> None:
        await handle.send("approve", "yes")

    done = history_of(fan_out, 5, meanwhile=approve)
    waits = history_of(fan_out, 5, status="suspended")
    for history in (done, waits):
        replay(fan_out, history)
        with pytest.raises(ReplayDiverged, match='"map double with other arguments" was reached at place 0'):
            replay(more_items, history)
        with pytest.raises(ReplayDiverged, match=r"place 0 of branch @2\.[01]"):
            replay(other_race, history)


def test_deferreds_whose_tokens_are_arguments_replay() -> None:
    async def ask(token: str) -> None: ...

    async def approval(workflow: Workflow, _: None) -> str:
        deferred = workflow.deferred("approval", str)
        await workflow.step("ask", ask, deferred.token)
        return await deferred.wait()

    async def resolve(cluster: Cluster, _: Any) -> None:
        row = await cluster._acting().storage.units.get("workflow:approval/one")
        assert row is not None
        token = cluster._acting().tokens.make(row.unit, "approval", life=row.life)
        await cluster.resolve(token, "yes")

    replay(approval, history_of(approval, None, status="suspended"))
    replay(approval, history_of(approval, None, meanwhile=resolve))


async def child(workflow: Workflow, cents: int) -> str:
    return await workflow.step("charge", charge, cents)


def test_children_replay_and_diverge() -> None:
    async def parent(workflow: Workflow, cents: int) -> str:
        started = await workflow.start(child, cents, id="started")
        return started.id + await workflow.child(child, cents, id="waited for")

    async def other_child(workflow: Workflow, cents: int) -> str:
        started = await workflow.start(child, cents, id="another")
        return started.id

    history = history_of(parent, 7, child)
    replay(parent, history)
    with pytest.raises(ReplayDiverged, match='"start child/another" was reached at place 0'):
        replay(other_child, history)


def test_a_child_has_the_name_that_its_cluster_gives_it() -> None:
    cluster = Cluster("sqlite://")
    named = cluster.workflow(name="payments")(child)

    @cluster.workflow
    async def parent(workflow: Workflow, cents: int) -> str:
        return await workflow.child(named, cents, id="a")

    history = (
        b'{"format":1,"workflow":"parent","id":"one","status":"running","version":"","payload":7,'
        b'"steps":[{"position":0,"kind":"child","name":"payments/a","done":false}]}'
    )
    replay(parent, history, cluster=cluster)
    with pytest.raises(ReplayDiverged):
        replay(parent, history)
    with pytest.raises(ValueError, match="history of a run of parent, and the workflow is payments"):
        replay(named, history, cluster=cluster)


def test_the_history_of_a_life_that_another_follows_is_its_own() -> None:
    async def monthly(workflow: Workflow, month: int) -> int:
        await workflow.step("charge", charge, month)
        if month == 3:
            await workflow.receive("stop", bool)
            return month
        return workflow.again(month + 1)

    history = history_of(monthly, 1, status="suspended")
    assert b'"payload":3' in history
    replay(monthly, history)

    async def stop(_: Cluster, handle: Any) -> None:
        await handle.send("stop", True)

    done = history_of(monthly, 1, meanwhile=stop)
    replay(monthly, done)

    async def for_ever(workflow: Workflow, month: int) -> int:
        await workflow.step("charge", charge, month)
        await workflow.receive("stop", bool)
        return workflow.again(month + 1)

    with pytest.raises(ReplayDiverged, match='"another life" was reached at the end'):
        replay(for_ever, done)


def test_branches_are_at_their_places() -> None:
    async def both(workflow: Workflow, cents: int) -> list[str]:
        return list(
            await asyncio.gather(workflow.step("charge", charge, cents), workflow.step("ship", ship, "a receipt"))
        )

    async def swapped(workflow: Workflow, cents: int) -> list[str]:
        return list(
            await asyncio.gather(workflow.step("ship", ship, "a receipt"), workflow.step("charge", charge, cents))
        )

    history = history_of(both, 5)
    replay(both, history)
    with pytest.raises(ReplayDiverged, match='"ship" was reached at place 0, where "charge" is stored'):
        replay(swapped, history)


def test_errors_of_the_code_between_steps_are_raised_as_they_are() -> None:
    async def mistyped(workflow: Workflow, cents: int) -> str:
        receipt = await workflow.step("charge", charge, cents)
        return receipt.upper_case()  # type: ignore[attr-defined, no-any-return]

    async def waits_for_nobody(workflow: Workflow, cents: int) -> str:
        await workflow.step("charge", charge, cents)
        await asyncio.Event().wait()
        return ""

    async def asks_the_cluster(workflow: Workflow, cents: int) -> str:
        await workflow.cluster.kv.get("price")
        return await checkout(workflow, cents)

    running = history_of(checkout, 5).replace(b'"status":"done"', b'"status":"running"')
    with pytest.raises(AttributeError, match="upper_case"):
        replay(mistyped, running)
    with pytest.raises(RuntimeError, match="waits for something that is no step"):
        replay(waits_for_nobody, running)
    with pytest.raises(RuntimeError, match=r"use cluster\.kv inside of steps"):
        replay(asks_the_cluster, running)


def test_values_that_json_does_not_hold_are_exact(tmp_path: Path) -> None:
    def odd() -> bytes:
        return b"\x00\xff"

    async def exact(workflow: Workflow, numbers: dict[int, str]) -> str:
        data = await workflow.step("odd", odd)
        assert data == b"\x00\xff"
        assert numbers == {1: "one"}
        return "done"

    file = tmp_path / "history.json"
    file.write_bytes(history_of(exact, {1: "one"}))
    replay(exact, file)


def test_what_is_no_history_is_refused() -> None:
    with pytest.raises(ValueError, match="no history of a run"):
        replay(checkout, "{}")
    with pytest.raises(ValueError, match="format 2"):
        replay(checkout, history_of(checkout, 5).replace(b'"format":1', b'"format":2'))
