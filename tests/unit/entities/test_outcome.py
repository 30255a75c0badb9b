"""Which error a sender gets, and in which words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from coterie.entities.calls.wire import FAILED, pack_failure
from coterie.entities.host.work import Work
from coterie.entities.persisted.outcome import (
    dead,
    read_reply,
    refuse_far_away,
    refuse_waiting_for_itself,
    require_same,
    require_small,
    too_late,
)
from coterie.errors import KeyConflict, MalformedMessage, ReentrantCall, RemoteError
from coterie.storage.contracts.messages import Attempt, Message, MessageRow, Receipt
from tests.unit.entities.account_entity import ACCOUNT, Overdrawn, account

NOW = datetime(2026, 3, 29, tzinfo=UTC)
CHARGE = ACCOUNT.rpcs["charge"]


def message(**given: Any) -> Message:
    facts = {"id": "1" * 32, "seat": "shard:default:1", "entity_type": "Account", "entity_id": "alice"}
    return Message(**facts | {"method": "charge", "payload": b"\x80"} | given)


def row(**given: Any) -> MessageRow:
    sent = message()
    facts: dict[str, Any] = {name: getattr(sent, name) for name in ("id", "seat", "entity_type", "entity_id", "method")}
    facts |= {"status": "dead", "key": None, "sent_at": NOW, "due_at": NOW, "completed_at": NOW, "attempts": 2}
    return MessageRow(**facts | {"errors": (), "payload": b"", "reply": None, "trace_id": None} | given)


def work(*addresses: str) -> Work:
    """A handler of the last address, which the others wait for."""
    kind, _, who = addresses[-1].partition("/")
    chain = tuple((each, f"m{number}") for number, each in enumerate(addresses[:-1]))
    return Work(kind, who, "charge", b"", 0.0, 0.0, "m", chain)


def test_a_reply_is_the_result_or_the_error_that_it_is() -> None:
    assert read_reply(CHARGE.encode_result(5), CHARGE) == 5
    with pytest.raises(Overdrawn) as caught:
        read_reply(FAILED + pack_failure(Overdrawn("order-7", 5), CHARGE.errors), CHARGE)
    assert caught.value.args == ("order-7", 5)
    with pytest.raises(RemoteError, match="ValueError"):
        read_reply(FAILED + pack_failure(ValueError("x"), CHARGE.errors), CHARGE)


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\xa1x", FAILED, FAILED + b"\xc1"])
def test_a_reply_that_cannot_be_read_is_a_typed_error(body: bytes) -> None:
    """Of another version, or broken: never anything else."""
    with pytest.raises((MalformedMessage, RemoteError)):
        read_reply(body, CHARGE)


def test_a_dead_message_names_its_target_its_attempts_and_the_first_line_of_its_last_error() -> None:
    errors = (Attempt(1, NOW, "KeyError: 'a'\n  File …"), Attempt(2, NOW, "KeyError: 'b'\n  File …"))
    told = str(dead(row(errors=errors)))
    assert told.startswith(
        f"message {'1' * 32} to Account/alice.charge is dead after 2 attempts: KeyError: 'b': coterie"
    )
    assert "nobody knows why" in str(dead(row()))


def test_whoever_waited_too_long_is_told_where_the_reply_will_be() -> None:
    told = str(too_late(message(), 2.5))
    assert told.startswith("no reply from Account/alice.charge within 2.5s: the message is stored and will run")
    assert f"cluster.result('{'1' * 32}')" in told


def test_m4_the_same_key_with_other_arguments_is_a_conflict() -> None:
    ref, _ = account()
    call: Any = ref.charge("order-7", 5)
    mine = message(key="s:order-7", digest=b"mine")
    found = Receipt("2" * 32, False, NOW, NOW, "done", b"mine")
    require_same(call, mine, found)
    with pytest.raises(KeyConflict, match=rf'key "order-7" of Account/alice.charge .*\(message {"2" * 32}\)'):
        require_same(call, mine, Receipt("2" * 32, False, NOW, NOW, "done", b"other"))
    call.close()


@pytest.mark.parametrize(
    ("chain", "waits"),
    [
        (["Account/alice"], True),
        (["Account/alice", "Shop/one"], True),
        (["Account/bob"], False),
        (["Shop/alice", "Shop/one"], False),
    ],
    ids=["itself", "through another", "another", "another type"],
)
def test_a_call_that_would_wait_for_itself_is_refused(chain: list[str], waits: bool) -> None:
    ref, _ = account()
    call: Any = ref.charge("order-7", 5)
    if waits:
        with pytest.raises(ReentrantCall, match=" → ".join([*chain, "Account/alice"])):
            refuse_waiting_for_itself(call, ACCOUNT, work(*chain))
    else:
        refuse_waiting_for_itself(call, ACCOUNT, work(*chain))
    call.close()


def test_what_is_too_large_is_refused_with_both_figures() -> None:
    require_small(b"x" * 100, what="it", most_bytes=100)
    with pytest.raises(MalformedMessage, match=r"it: 1,001 bytes, more than the 1,000 that are allowed: .*frame_limit"):
        require_small(b"x" * 1001, what="it", most_bytes=1000)


def test_an_instant_that_not_every_database_can_hold_is_refused() -> None:
    ref, _ = account()
    call: Any = ref.charge("order-7", 5)
    century_s = 36_525 * 86_400.0
    refuse_far_away(call, at=datetime(2199, 12, 31, tzinfo=UTC), delay_s=0)
    refuse_far_away(call, at=None, delay_s=century_s)
    with pytest.raises(
        ValueError, match=r"delay of Account/alice\.charge is 36,526 days: a message can wait for 36,525"
    ):
        refuse_far_away(call, at=None, delay_s=century_s + 86_400)
    with pytest.raises(ValueError, match="before the year 2200"):
        refuse_far_away(call, at=datetime.max.replace(tzinfo=UTC), delay_s=0)
    call.close()
