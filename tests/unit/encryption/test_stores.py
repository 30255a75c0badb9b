"""No method of a storage contract goes past the encryption unseen (O6)."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

from coterie.storage import interface
from coterie.storage.contracts import (
    activity,
    executions,
    incoming_calls,
    jobs,
    messages,
    run_messages,
    schedules,
    ticks,
    units,
    user_writes,
)
from coterie.storage.contracts.payloads import TABLES
from coterie.storage.encryption.rotation import PLACES
from coterie.storage.encryption.stores import STORES, EncryptedTransaction

CONTRACTS: dict[str, type] = {
    "kv": interface.Kv,
    "states": interface.StateStore,
    "executions": executions.Executions,
    "ticks": ticks.TickStore,
    "units": units.UnitStore,
    "messages": messages.MessageStore,
    "jobs": jobs.JobStore,
    "incoming": incoming_calls.IncomingStore,
    "schedules": schedules.ScheduleStore,
    "run_messages": run_messages.RunMessageStore,
    "user_writes": user_writes.UserWrites,
    "activity": activity.Activity,
}
WITHOUT = {"machines", "inspection", "pauses", "payloads", "schema"}
"""Stores through which no payload goes as it is: ids, marks and counts, names, ciphertexts, migrations."""


def methods(kind: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(kind, inspect.isfunction) if not name.startswith("_")}


@pytest.mark.parametrize("store", CONTRACTS)
def test_each_method_is_encrypted_or_said_to_carry_no_payload(store: str) -> None:
    kind = STORES[store]
    assert methods(kind) | kind.passes == methods(CONTRACTS[store])
    assert not methods(kind) & kind.passes


def test_each_method_of_a_transaction_is_there() -> None:
    assert methods(EncryptedTransaction) == methods(messages.Transaction)


def test_each_store_is_encrypted_or_said_to_have_no_payloads() -> None:
    stores = {name for name in interface.Storage.__annotations__ if name not in ("keyring", "on_unreachable")}
    assert stores == set(CONTRACTS) | WITHOUT
    assert STORES.keys() == CONTRACTS.keys()


def test_each_kind_of_write_is_known_here() -> None:
    """A new one may carry a payload."""
    known = {"KvPut", "KvSwap", "KvRemove", "StateSave", "Stamp", "Insert", "Commit", "Setback"}
    known |= {"JobInsert", "JobEnd", "JobSetback"}
    assert {kind.__name__ for kind in get_args(interface.Write)} == known | {
        "TickClaim",
        "TickNote",
        "StepWrite",
        "UnitEnd",
    }


@pytest.mark.parametrize(
    ("struct", "fields"),
    [
        (messages.Message, {"payload", "digest"}),
        (messages.Receipt, {"digest", "reply"}),
        (messages.Commit, {"reply"}),
        (messages.StateChange, {"value"}),
        (messages.Delivery, {"payload"}),
        (messages.MessageRow, {"payload", "reply"}),
        (jobs.NewJob, {"payload", "digest"}),
        (jobs.JobInsert, set()),
        (jobs.JobReceipt, {"digest", "reply"}),
        (jobs.JobHead, set()),
        (jobs.JobDelivery, {"payload"}),
        (jobs.JobEnd, {"reply", "cancelled_reply"}),
        (jobs.JobSetback, {"cancelled_reply"}),
        (jobs.JobRow, {"payload", "reply"}),
        (schedules.NewSchedule, {"payload"}),
        (schedules.ScheduleRow, {"payload"}),
        (run_messages.RunMessage, {"value", "digest"}),
        (run_messages.RunMessageSent, {"digest"}),
        (run_messages.Receive, {"late"}),
        (run_messages.Publish, {"value"}),
        (run_messages.RaceEnd, {"value"}),
        (run_messages.PublishedRow, {"value"}),
        (user_writes.UnitStarted, {"digest"}),
        (incoming_calls.MovedCall, {"known"}),
        (incoming_calls.MovedStart, {"known"}),
        (incoming_calls.Move, {"digest"}),
        (units.StepRow, {"digest", "value", "error"}),
        (units.StepRecord, {"digest", "value", "error"}),
        (units.StepWrite, {"digest", "value", "error"}),
        (units.UnitEnd, {"value", "error", "outcome"}),
        (units.UnitRow, {"payload", "digest", "value", "error", "stuck"}),
        (units.Stuck, {"reason"}),
        (units.UnitStart, {"payload", "digest"}),
        (units.DeferredRow, {"value"}),
        (interface.Entry, {"value"}),
        (interface.KvPut, {"value"}),
        (interface.KvSwap, {"value"}),
        (interface.StateSave, {"value"}),
        (interface.StateLoaded, {"value"}),
        (interface.StateRow, {"value"}),
    ],
)
def test_the_bytes_that_a_struct_carries_are_known_here(struct: type, fields: set[str]) -> None:
    """Whoever adds another one adds it to the encryption, and then here."""
    names = vars(units) | vars(interface) | vars(messages) | vars(jobs) | vars(run_messages)
    hints: dict[str, Any] = get_type_hints(struct, localns=names)
    assert {name for name, hint in hints.items() if hint is bytes or bytes in get_args(hint)} == fields


def test_each_table_has_the_places_of_its_values() -> None:
    assert PLACES.keys() == {table.name for table in TABLES}
