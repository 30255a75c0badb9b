"""The fingerprints of its secrets, TLS and payload keys that a runner shows in its row: a mismatch is found on joining.

The fingerprint of a secret is derived slowly, and salted with the cluster's own secret, which is in another table. So
a reader of the row alone learns nothing, a reader of both tables guesses no faster than the derivation allows, and two
clusters with the same secret look different. Authorities are public, and keys of payloads have 256 random bits: a plain
fingerprint is enough.
"""

from __future__ import annotations

import functools
import hashlib
import re
import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from coterie.errors import ConfigurationError
from coterie.settings.payload_keys import fingerprint, key_bytes
from coterie.transport.tls import require_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coterie.settings import Settings

_STORED = "database"
"""Shown for the secret that the database keeps: a reader of the row has that, too."""
_ROUNDS = 100_000
"""Rounds of PBKDF2: tens of milliseconds, once per process and secret."""
_SHOWN_BYTES = 16
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


class Credentials(msgspec.Struct, frozen=True, omit_defaults=True):
    """The credentials of a runner, as fingerprints."""

    secrets: tuple[str, ...]
    """One, or two during rotation."""
    authorities: tuple[str, ...] = ()
    """The certificates in `tls_ca`; none: it does not use TLS."""
    payload_keys: dict[str, str] = {}
    """The keys that it can decrypt payloads with, by id."""
    payload_current: str = ""
    """The id of the one that it encrypts with; empty: it stores payloads as they are."""
    payload_plain: bool = True
    """Whether it reads payloads that are not encrypted."""

    def encode(self) -> str:
        """Their stored form."""
        return msgspec.json.encode(self).decode()


class Holder(msgspec.Struct, frozen=True):
    """A runner, and the fingerprints that it shows."""

    name: str
    credentials: str


def credentials_of(settings: Settings, *, salt: bytes) -> Credentials:
    """The credentials that this process shows.

    Args:
        settings: Its secrets and its authority.
        salt: The cluster's own secret.

    Raises:
        ConfigurationError: `tls_ca` cannot be read.
    """
    secrets = sorted(_fingerprint(each.reveal().encode(), salt) for each in settings.secret) or [_STORED]
    return Credentials(
        tuple(secrets),
        authorities=() if settings.tls_cert is None else _authorities(settings),
        payload_keys={key_id: fingerprint(key_bytes(key)) for key_id, key in settings.payload_keys},
        payload_current=settings.payload_current or "",
        payload_plain=settings.payload_plain or not settings.payload_keys,
    )


def differs(mine: str, theirs: str) -> str:
    """Why two runners would refuse each other; empty: they would not, or one of them shows nothing comparable.

    They need one secret, and one authority, in common: during rotation there are two.
    """
    try:
        ours, others = (msgspec.json.decode(each.encode(), type=Credentials) for each in (mine, theirs))
    except (msgspec.DecodeError, UnicodeError):
        return ""  # of an older version, or of a later one with another format
    if bool(ours.authorities) != bool(others.authorities):
        return "one uses TLS, and the other does not"
    if ours.authorities and not set(ours.authorities) & set(others.authorities):
        return "they have no authority in common (tls_ca)"
    if not set(ours.secrets) & set(others.secrets):
        return "they have no secret in common"
    return _unreadable_payloads(ours, others) or _unreadable_payloads(others, ours)


def _unreadable_payloads(writer: Credentials, reader: Credentials) -> str:
    """Why one of two runners could not read the payloads that the other one stores."""
    current = writer.payload_current
    if not current:
        return "" if reader.payload_plain else "one encrypts payloads, and the other does not"
    if reader.payload_keys.get(current) != writer.payload_keys.get(current):
        return f"one encrypts payloads with key {current!r}, which the other does not have"
    return ""


def require_common(mine: Holder, others: Iterable[Holder]) -> None:
    """Refuse to join runners that would refuse our connections, or whose connections we would refuse."""
    for other in others:
        if why := differs(mine.credentials, other.credentials):
            raise ConfigurationError(
                problem=f"runner {mine.name} cannot join runner {other.name}: {why}",
                hint="give all runners of a cluster the same secret, tls_ca and payload_keys, and TLS to all or none; "
                "to change one without a stop, give both the old and the new one first",
            )


@functools.lru_cache(maxsize=8)
def _fingerprint(secret: bytes, salt: bytes) -> str:
    return hashlib.pbkdf2_hmac("sha256", secret, b"coterie runner secret" + salt, _ROUNDS, _SHOWN_BYTES).hex()


def _authorities(settings: Settings) -> tuple[str, ...]:
    assert settings.tls_ca is not None, "the settings refuse TLS without it"
    require_file("tls_ca", settings.tls_ca, "CERTIFICATE")
    found = _CERTIFICATE.findall(Path(settings.tls_ca).read_text("utf-8", "replace"))
    whole = {hashlib.sha256(ssl.PEM_cert_to_DER_cert(each)).hexdigest() for each in found}
    return tuple(sorted(each[: 2 * _SHOWN_BYTES] for each in whole))
