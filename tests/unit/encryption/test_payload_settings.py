"""The keys as settings (O6): what is accepted, and that they are never shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, ConfigurationError, Encrypted
from coterie.settings import Settings, help_rows
from coterie.settings.payload_keys import key_bytes, new_key

if TYPE_CHECKING:
    from pathlib import Path

KEY, OTHER = bytes(range(32)), bytes(range(100, 132))
TEXT = new_key(KEY)


def load(keys: Any, current: str | None = "k1", **more: Any) -> Settings:
    return Settings.load({"payload_keys": keys, "payload_current": current, **more}, environ={})


def test_keys_are_given_as_bytes_as_text_by_a_file_or_by_a_function(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"k1={TEXT}\nk2={new_key(OTHER)}\n")
    many = {"k1": KEY, "k2": OTHER}
    for given in (many, f"k1={TEXT},k2={new_key(OTHER)}", f"file:{file}", lambda: file.read_text()):
        assert {name: key_bytes(key) for name, key in load(given).payload_keys} == many


@pytest.mark.parametrize(
    "keys",
    [
        {"k1": "correct horse battery staple"},
        {"k1": b"short"},
        {"k1": b"a" * 32},
        {"k1": 7},
        {"with space": KEY},
        f"k1={TEXT},k1={TEXT}",
        TEXT,
    ],
)
def test_what_is_no_key_is_refused_and_not_shown(keys: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"payload_keys is \(hidden\)") as told:
        load(keys)
    assert TEXT not in str(told.value)
    assert "horse" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"current": "k2"}, "payload_current is 'k2', and payload_keys has k1"),
        ({"current": None}, "without payload_current: nothing would be encrypted"),
    ],
)
def test_keys_that_would_not_encrypt_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        load({"k1": KEY}, **given)


def test_nothing_is_compressed_unless_it_is_asked_for_and_encrypted() -> None:
    assert not load({"k1": KEY}).payload_compress
    asked = Encrypted(keys={"k1": KEY}, current="k1", compress=True)
    assert Cluster("sqlite://", payloads=asked).settings.payload_compress
    with pytest.raises(ConfigurationError, match="only what is encrypted is compressed"):
        load({}, None, payload_compress=True)


def test_keys_are_hidden_wherever_settings_are_shown() -> None:
    payloads = Encrypted(keys={"k1": TEXT}, current="k1")
    settings = Cluster("sqlite://", payloads=payloads).settings
    shown = [repr(settings), repr(payloads), str(settings.payload_keys), str(help_rows(settings))]
    assert not any(TEXT in each for each in shown)
    assert settings.payload_current == "k1"
