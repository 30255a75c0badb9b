"""Versions of stored values and their migrations (S4, S5)."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import ConfigurationError, CoterieError, MalformedMessage, NewerVersion
from coterie.kernel.serialization.versions import MigrationFailed, Versioned


@dataclass
class V1:
    id: int


@dataclass
class V2:
    last_id: int


@dataclass
class V3:
    last_id: int
    seen: list[int] = field(default_factory=list)
    source: str = "main"


def to_2(old: dict[str, Any]) -> dict[str, Any]:
    return {"last_id": old["id"]}


def to_3(old: dict[str, Any]) -> dict[str, Any]:
    old["seen"] = [old["last_id"]]
    return old


MIGRATIONS = {1: to_2, 2: to_3}
NOW = Versioned(V3, 3, MIGRATIONS, what='state of "importer"')


def stored(version: Any, value: Any) -> bytes:
    return msgspec.msgpack.encode([version, value])


@given(st.integers(-(2**40), 2**40))
def test_every_earlier_version_is_migrated_step_by_step_s5(number: int) -> None:
    assert NOW.decode(Versioned(V1).encode(V1(number))) == V3(number, [number])
    assert NOW.decode(Versioned(V2, 2, {1: to_2}).encode(V2(number))) == V3(number, [number])
    assert NOW.decode(NOW.encode(V3(number))) == V3(number)


@given(st.integers(1, 6), st.integers(1, 6))
def test_migrations_run_in_order_and_each_once_s5(written: int, known: int) -> None:
    def step(version: int) -> Any:
        return lambda old: {"path": [*old["path"], version]}

    class State(msgspec.Struct):
        path: list[int]

    versioned = Versioned(State, known, {version: step(version) for version in range(1, known)})
    data = stored(written, {"path": []})
    if written > known:
        with pytest.raises(NewerVersion):
            versioned.decode(data)
    else:
        assert versioned.decode(data).path == list(range(written, known))


def test_models_of_pydantic_are_migrated_too() -> None:
    class Progress(pydantic.BaseModel):
        last_id: int = 0

    versioned = Versioned(Progress, 2, {1: to_2})
    assert versioned.decode(stored(1, {"id": 4})) == Progress(last_id=4)
    assert versioned.decode(versioned.encode(Progress(last_id=5))) == Progress(last_id=5)


def test_fields_of_the_same_version_are_best_effort_s4() -> None:
    assert NOW.decode(stored(3, {"last_id": 1, "later": 2})) == V3(1)


def test_a_newer_version_is_told_apart_from_what_cannot_be_read() -> None:
    with pytest.raises(NewerVersion) as caught:
        NOW.decode(stored(4, {"anything": 1}))
    assert (caught.value.found, caught.value.known) == (4, 3)
    assert caught.value.message == 'state of "importer" is version 4, this program knows up to 3'
    assert not isinstance(caught.value, MalformedMessage)


def test_a_migration_that_raises_is_reported_with_its_version() -> None:
    with pytest.raises(MigrationFailed) as caught:
        NOW.decode(stored(1, {"other": 1}))
    assert caught.value.message == ("state of \"importer\": migration from version 1 to 2 failed: KeyError: 'id'")
    assert isinstance(caught.value.__cause__, KeyError)
    assert not isinstance(caught.value, MalformedMessage), "a defect of ours must not reset anybody's state (S4)"


def test_a_migration_that_gives_no_map_is_reported_with_its_version() -> None:
    broken = Versioned(V3, 3, {1: to_2, 2: lambda old: [old]})  # type: ignore[dict-item,return-value] # the point
    with pytest.raises(MigrationFailed, match="from version 2 to 3 failed: it gave list, expected dict"):
        broken.decode(stored(1, {"id": 1}))


def test_what_a_migration_gives_is_checked_against_the_type() -> None:
    wrong = Versioned(V2, 2, {1: lambda old: {"last_id": "x"}}, what="state")
    with pytest.raises(MalformedMessage, match="state, migrated from version 1: last_id is"):
        wrong.decode(stored(1, {"id": 1}))


def test_what_is_no_map_cannot_be_migrated() -> None:
    with pytest.raises(MalformedMessage, match="migrations work on maps"):
        NOW.decode(stored(1, 5))


def test_a_value_that_does_not_fit_is_not_stored() -> None:
    with pytest.raises(MalformedMessage, match="last_id is"):
        NOW.encode(V3(last_id="x"))  # type: ignore[arg-type] # that is the point


NOT_STORED = [
    b"",
    b"\x80",
    b"\x90",
    b"\x91\x03",
    b"\x93\x03\x80\x80",
    b"\x92\x03" + b"\x91" * 100_000,
    *(stored(version, {}) for version in (0, -1, "3", True, None)),
    stored(3, []),
    stored(3, {"last_id": 1}) + b"\x00",
]


@pytest.mark.parametrize("data", NOT_STORED, ids=range(len(NOT_STORED)))
def test_bytes_that_no_version_wrote_are_malformed_s4(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        NOW.decode(data)


@given(st.binary(max_size=100))
def test_any_bytes_lead_to_one_of_the_four_outcomes(data: bytes) -> None:
    with contextlib.suppress(NewerVersion, MigrationFailed, MalformedMessage):
        NOW.decode(b"\x92" + data)


@pytest.mark.parametrize(
    ("version", "migrations", "said"),
    [
        (3, {2: to_3}, "V3 is version 3, but has no migration from 1"),
        (3, {1: to_2}, "V3 is version 3, but has no migration from 2"),
        (2, None, "V3 is version 2, but has no migration from 1"),
        (2, {1: to_2, 2: to_3}, "V3 is version 2, but has a migration from 2"),
        (1, {0: to_2}, "V3 is version 1, but has a migration from 0"),
        (0, None, "V3: version is 0, expected a whole number from 1 on"),
    ],
)
def test_gaps_in_the_migrations_are_refused_at_definition_s5(version: int, migrations: Any, said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Versioned(V3, version, migrations)
    assert caught.value.message == said


def test_the_outcomes_are_errors_of_ours() -> None:
    assert issubclass(NewerVersion, CoterieError)
    assert issubclass(MigrationFailed, CoterieError)
