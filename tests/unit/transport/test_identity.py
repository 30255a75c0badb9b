"""Identity, host id and addresses: what others are told about this process [M2]."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from coterie.errors import ConfigurationError
from coterie.kernel.random import Random
from coterie.settings import Settings
from coterie.transport.identity import (
    PROTOCOL,
    PROTOCOL_LEAST,
    Identity,
    Member,
    advertised_address,
    host_id,
    is_loopback,
    require_reachable,
    shared_secrets,
)

if TYPE_CHECKING:
    from pathlib import Path

    from coterie.storage.interface import Storage

HOST_ID = "from coterie.transport.identity import host_id; print(host_id())"


def load(**overrides: Any) -> Settings:
    return Settings.load(overrides, environ={})


def test_this_version_talks_to_the_one_before_it() -> None:
    assert PROTOCOL - 1 <= PROTOCOL_LEAST <= PROTOCOL or PROTOCOL_LEAST == 1
    assert Identity("shop", "a").protocol == PROTOCOL


def test_two_processes_of_one_host_have_one_host_id_m2() -> None:
    told = subprocess.run([sys.executable, "-c", HOST_ID], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == host_id()


def test_another_network_namespace_is_another_host_m2() -> None:
    command = ["unshare", "--user", "--net", sys.executable, "-c", HOST_ID]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    except FileNotFoundError:
        pytest.skip("unshare is not installed")
    if told.returncode:
        pytest.skip(f"namespaces cannot be made here: {told.stderr.strip()}")
    boot, _, namespace = told.stdout.strip().partition("/")
    assert boot == host_id().partition("/")[0]
    assert namespace != host_id().partition("/")[2]


def test_the_host_id_is_made_of_boot_id_and_namespace(tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "sys/kernel/random/boot_id").write_text("0b5c\n")
    (tmp_path / "self/ns").mkdir(parents=True)
    (tmp_path / "self/ns/net").touch()
    assert host_id(tmp_path) == f"0b5c/{(tmp_path / 'self/ns/net').stat().st_ino}"


def test_without_proc_the_host_id_is_the_hosts_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "laptop")
    assert host_id(tmp_path) == "laptop"


@pytest.mark.parametrize(
    ("bound", "advertise", "told"),
    [
        (("127.0.0.1", 41001), None, "127.0.0.1:41001"),
        (("::1", 41001), None, "[::1]:41001"),
        (("10.0.0.5", 7650), None, "10.0.0.5:7650"),
        (("0.0.0.0", 7650), "10.0.0.5:7650", "10.0.0.5:7650"),
        (("::", 7650), "[2001:db8::5]:30650", "[2001:db8::5]:30650"),
        (("127.0.0.1", 41001), "10.0.0.5:7650", "10.0.0.5:7650"),
    ],
)
def test_what_is_advertised_is_a_literal_address(bound: tuple[str, int], advertise: str | None, told: str) -> None:
    assert advertised_address(load(advertise=advertise), bound) == told


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_every_address_is_none_so_advertise_is_asked_for(host: str) -> None:
    with pytest.raises(ConfigurationError, match="every address of this machine") as caught:
        advertised_address(load(listen="0.0.0.0:7650"), (host, 7650))
    assert 'set advertise to the one at which they reach this runner, such as "10.0.0.5:7650"' in caught.value.hint


@pytest.mark.parametrize("name", ["localhost:7650", "web-1.internal:7650", "web:7650"])
def test_a_name_is_not_advertised_m2(name: str) -> None:
    with pytest.raises(ConfigurationError, match="a name: tomorrow it may lead to another runner"):
        advertised_address(load(advertise=name), ("10.0.0.5", 7650))


def test_every_address_is_not_advertised() -> None:
    with pytest.raises(ConfigurationError, match="no single address"):
        advertised_address(load(advertise="0.0.0.0:7650"), ("10.0.0.5", 7650))


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.0.0.1:80", "127.9.9.9", "::1", "[::1]:80", "localhost", "localhost:80", "::ffff:127.0.0.1"],
)
def test_loopback_is_known_in_all_its_forms(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "10.0.0.5:80", "::", "[2001:db8::1]:80", "localhost.evil.example", "127.0.0.1.nip.io", ""]
)
def test_what_others_may_reach_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)


HERE, THERE = "boot/1", "boot/2"


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        (("127.0.0.1:1", HERE), ("127.0.0.1:2", HERE)),
        (("127.0.0.1:1", HERE), ("10.0.0.5:2", HERE)),
        (("10.0.0.4:1", HERE), ("10.0.0.5:2", THERE)),
    ],
)
def test_runners_that_reach_each_other_may_join(mine: tuple[str, str], other: tuple[str, str]) -> None:
    require_reachable(Member("web-1", *mine), [Member("web-2", *other)])


@pytest.mark.parametrize(
    ("mine", "other", "who"),
    [
        (("127.0.0.1:1", HERE), ("10.0.0.5:2", THERE), "web-1 listens on loopback .*web-2 runs on another host"),
        (("10.0.0.4:1", HERE), ("127.0.0.1:2", THERE), "web-2 listens on loopback .*web-1 runs on another host"),
    ],
)
def test_a_loopback_address_does_not_join_another_host_m2(
    mine: tuple[str, str], other: tuple[str, str], who: str
) -> None:
    with pytest.raises(ConfigurationError, match=who):
        require_reachable(Member("web-1", *mine), [Member("web-2", *other)])


class _Kept:
    def __init__(self) -> None:
        self.asked = 0

    async def secret(self) -> bytes:
        self.asked += 1
        return Random(1).token(32)


async def test_the_setting_replaces_the_secret_of_the_database() -> None:
    kept: Any = _Kept()
    storage: Storage = kept
    assert await shared_secrets(load(secret=("new secret, long", "old secret, long")), storage) == (
        b"new secret, long",
        b"old secret, long",
    )
    assert kept.asked == 0
    assert await shared_secrets(load(), storage) == (Random(1).token(32),)
