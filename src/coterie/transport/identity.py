"""The identity of a process towards others: its incarnation, its protocol versions, its host, its address."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coterie.errors import ConfigurationError, quoted
from coterie.settings.parsers import split_address

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.settings import Settings
    from coterie.storage.interface import Storage

PROTOCOL = 1
"""The version that this program speaks. Raised with each change that the version before does not understand."""

PROTOCOL_LEAST = 1
"""The oldest that this program still speaks: PROTOCOL - 1 once there is one, for rolling deploys (L3)."""

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process proves in the handshake.

    Args:
        cluster: The cluster's name.
        incarnation: Drawn anew at each start: 32 hexadecimal digits (at most 32 ASCII characters).
        protocol: The newest protocol that it speaks.
        protocol_least: The oldest one.
    """

    cluster: str
    incarnation: str
    protocol: int = PROTOCOL
    protocol_least: int = PROTOCOL_LEAST


class Member(NamedTuple):
    """What another runner states about itself in its row."""

    name: str
    address: str
    host_id: str


async def shared_secrets(settings: Settings, storage: Storage) -> tuple[bytes, ...]:
    """The secrets that the runners of this cluster prove to each other: the setting, else the stored one."""
    if settings.secret:
        return tuple(secret.reveal().encode() for secret in settings.secret)
    return (await storage.secret(),)


def host_id(proc: Path = _PROC) -> str:
    """Identifies the host for loopback: equal for two processes that reach each other at 127.0.0.1 [M2].

    The boot id distinguishes machines and virtual machines, the network namespace the containers on one.
    Without `/proc` it is the host's name, which is right as long as there are no containers.
    """
    try:
        boot = (proc / "sys/kernel/random/boot_id").read_text("ascii").strip()
        return f"{boot}/{(proc / 'self/ns/net').stat().st_ino}"
    except (OSError, UnicodeDecodeError):
        return socket.gethostname()


def process_id(proc: Path = _PROC) -> str:
    """Identifies this process permanently: its number alone is reused [C3]. Empty where the system has no /proc."""
    try:
        after_name = (proc / "self/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        return f"{os.getpid()}:{after_name[19]}"  # the start time is field 22 of the line, the name is field 2
    except (OSError, IndexError):
        return ""


def advertised_address(settings: Settings, bound: tuple[str, int]) -> str:
    """The literal `ip:port` at which others reach this runner.

    Args:
        settings: `advertise` is used if it is set.
        bound: What the listener has bound: the first two parts of its socket's name.

    Raises:
        ConfigurationError: `advertise` is a name or not a single address, or it is needed and missing.
    """
    if settings.advertise is not None:
        return _literal(settings.advertise)
    host, port = bound
    if ipaddress.ip_address(host).is_unspecified:
        shown = format_address(host, port)
        raise ConfigurationError(
            problem=f"listen is {quoted(shown)}, every address of this machine, and other runners need one of them",
            hint=f'set advertise to the one at which they reach this runner, such as "10.0.0.5:{port}"',
        )
    return format_address(host, port)


def format_address(host: str, port: int) -> str:
    """`ip:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether an address (with or without port) stays on this host. A name other than localhost does not count."""
    try:
        host = split_address(address)[0]
    except ValueError:
        host = address.strip("[]")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    mapped = getattr(ip, "ipv4_mapped", None)
    return bool((mapped or ip).is_loopback)


def is_apart(mine: Member, other: Member) -> bool:
    """Whether one of the two could not reach the other: it listens on loopback, which leads elsewhere there [M2]."""
    return other.host_id != mine.host_id and (is_loopback(mine.address) or is_loopback(other.address))


def require_reachable(mine: Member, others: Iterable[Member]) -> None:
    """Refuse to join runners that cannot reach us, or that we cannot reach: loopback leads elsewhere there [M2]."""
    for other in others:
        if other.host_id == mine.host_id:
            continue
        for loopback in (mine, other):
            if is_loopback(loopback.address):
                raise ConfigurationError(
                    problem=f"{loopback.name} listens on loopback ({loopback.address}), "
                    f"and {(other if loopback is mine else mine).name} runs on another host",
                    hint=f'start {loopback.name} with listen="0.0.0.0:7651" and advertise= the address of its host',
                )


def _literal(advertise: str) -> str:
    host, port = split_address(advertise)
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigurationError(
            problem=f"advertise is {quoted(advertise)}, a name: tomorrow it may lead to another runner",
            hint=f'give the address itself, such as "10.0.0.5:{port}" (in Kubernetes the pod\'s, status.podIP)',
        ) from None
    if ip.is_unspecified:
        raise ConfigurationError(
            problem=f"advertise is {quoted(advertise)}, which is no single address",
            hint=f'give the one at which other runners reach this one, such as "10.0.0.5:{port}"',
        )
    return format_address(host, port)
