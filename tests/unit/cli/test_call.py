"""`coterie call`: by a client without the class; F1 (payloads are checked), D8 (nothing runs twice), M4 (keys)."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from coterie import Cluster
from tests.unit.cli.command_runner import coterie, require_golden, transcript
from tests.unit.cli.stored_cluster import Account, Stored

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.unit.cli.command_runner import Said

    Ask = Callable[..., Said]

DEPOSIT = '{"order_id": "o-1", "cents": 5}'


def test_a_call_by_name_prints_its_result_as_json(ask: Ask) -> None:
    assert ask("call", "Account/anna", "deposit", DEPOSIT) == (0, "5\n", "")
    assert ask("call", "Account/anna", "balance") == (0, "5\n", "")


def test_a_repeated_call_with_a_key_is_the_same_call(ask: Ask, stored: Stored) -> None:
    """M4: the key, and what it is compared by, are made as by a caller that has the class."""
    for _ in range(2):
        assert ask("call", "Account/berta", "deposit", DEPOSIT).out == "5\n"

    async def again() -> int:
        return await stored.cluster.ref(Account, "berta").deposit("o-1", 5)

    assert stored.do(again()) == 5
    said = ask("call", "Account/berta", "deposit", '{"order_id": "o-1", "cents": 6}')
    assert said.code == 1
    assert 'key "o-1" of Account/berta.deposit was used before with another payload' in said.err


def test_a_key_of_ones_own_beats_that_of_the_method(ask: Ask) -> None:
    said = [
        ask("call", "Account/hanna", "deposit", f'{{"order_id": "{order}", "cents": 5}}', "--key", "mine")
        for order in ("o-1", "o-1", "o-2")
    ]
    assert [each.out for each in said] == ["5\n", "5\n", ""]
    assert 'key "mine" of Account/hanna.deposit was used before with another payload' in said[2].err


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("type", ("deposit", '{"order_id": "o-1", "cents": "5"}')),
        ("missing", ("deposit", '{"order_id": "o-1"}')),
        ("unknown", ("deposit", '{"order_id": "o-1", "cent": 5}')),
        ("method", ("deposits", DEPOSIT)),
        ("stream", ("history",)),
        ("key", ("balance", "--key", "k")),
        ("later", ("balance", "--in", "10m")),
        ("declared", ("charge", '{"order_id": "o-1", "cents": 2000}')),
        ("dead", ("charge", '{"order_id": "o-1", "cents": 20}')),
    ],
)
def test_what_does_not_work_is_told_in_two_lines(ask: Ask, name: str, args: tuple[str, ...]) -> None:
    """F1: refused by the receiver's own types. A declared error is a result, by its name."""
    require_golden(f"call_refused_{name}", transcript(ask("call", "Account/clara", *args)))


def test_what_was_refused_did_not_run(ask: Ask) -> None:
    ask("call", "Account/dora", "deposit", '{"order_id": "o-1", "cents": 5, "cent": 5}')
    ask("call", "Account/dora", "deposit", '{"order_id": "o-1", "cents": 5.5}')
    assert ask("call", "Account/dora", "balance").out == "0\n"


def test_without_waiting_it_is_stored_and_named(ask: Ask, stored: Stored) -> None:
    said = ask("call", "Account/emma", "deposit", DEPOSIT, "--no-wait")
    assert said.code == 0
    assert said.err == f"stored; to follow it: coterie messages show {said.out}"
    stored.until_status(said.out.strip(), "done")
    assert ask("call", "Account/emma", "balance").out == "5\n"


def test_what_is_not_persisted_says_so(ask: Ask) -> None:
    said = ask("call", "Account/emma", "balance", "--no-wait", "--json")
    assert (said.code, json.loads(said.out)["persisted"]) == (0, False)
    assert said.err == "accepted by a runner; it is not persisted, and is lost if that runner is\n"


def test_later_is_by_the_databases_clock(ask: Ask, stored: Stored) -> None:
    ids = [
        json.loads(ask("call", "Account/frida", "deposit", DEPOSIT, "--json", *when).out)["message"]
        for when in (("--in", "10m"), ("--at", "2100-03-29T02:30:00+02:00", "--key", "far"))
    ]
    soon, far = (stored.do(stored.cluster.messages.show(each)) for each in ids)
    assert soon.due_at - soon.sent_at == timedelta(minutes=10)
    assert far.due_at == datetime(2100, 3, 29, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("json", ("Account/anna", "deposit", "{cents: 5}")),
        ("map", ("Account/anna", "deposit", "[5]")),
        ("entity", ("Account", "deposit", DEPOSIT)),
        ("naive", ("Account/anna", "deposit", DEPOSIT, "--at", "2026-03-29T02:30:00")),
        ("instant", ("Account/anna", "deposit", DEPOSIT, "--at", "tomorrow")),
        ("both", ("Account/anna", "deposit", DEPOSIT, "--at", "2026-03-29T02:30:00Z", "--in", "1s")),
        ("duration", ("Account/anna", "deposit", DEPOSIT, "--in", "30")),
    ],
)
def test_a_wrong_question_is_exit_2(ask: Ask, name: str, args: tuple[str, ...]) -> None:
    require_golden(f"call_wrong_{name}", transcript(ask("call", *args)))


def test_no_answer_in_time_is_exit_3(ask: Ask) -> None:
    said = ask("call", "Account/gerda", "wait", "--timeout", "300ms")
    assert (said.code, said.out) == (3, "")
    assert said.err.startswith("error: no reply from Account/gerda.wait")


def test_what_was_stored_and_is_late_says_that_it_will_run(ask: Ask) -> None:
    """Its own error arrives, not the silence of the runner that was asked."""
    said = ask("call", "Account/gerda", "hold", '{"gate": "gerda"}', "--timeout", "1s")
    assert said.code == 3
    assert "the message is stored and will run" in said.err


def test_no_runner_is_exit_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/empty.db"
    assert coterie(capsys, "migrate", "--apply", "--url", url).code == 0
    require_golden("call_nobody", transcript(coterie(capsys, "call", "Account/anna", "balance", "--url", url)))


def test_a_runner_that_does_not_know_the_type_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs differ by group: whoever has the class makes the call; `--group` says whom to ask."""

    def program(url: str, name: str) -> Cluster:
        group = "gpu" if name == "gpu-1" else "default"
        cluster = Cluster(url, runner_name=name, groups=[group], shards=4, http_listen=None)
        if name == "gpu-1":
            cluster.entity(group="gpu")(Account)
        return cluster

    running = Stored(f"sqlite:///{tmp_path}/groups.db", program)
    try:
        running.start("cpu-1", "gpu-1")
        args = ("call", "Account/anna", "deposit", DEPOSIT, "--url", running.url)
        assert coterie(capsys, *args) == (0, "5\n", "")
        assert coterie(capsys, *args, "--group", "gpu") == (0, "5\n", "")
        said = coterie(capsys, *args, "--group", "default")
        assert (said.code, said.err.splitlines()[0]) == (1, "error: no runner knows Account/anna.deposit")
        assert coterie(capsys, *args, "--group", "nobody").code == 3
    finally:
        running.close()
