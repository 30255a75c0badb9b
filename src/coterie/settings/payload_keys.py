"""The keys that encrypt what users' code gives to storage: `Encrypted` of a program, or `id=key` of a variable."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.settings.parsers import Parser, fetched
from coterie.settings.secret import Secret

if TYPE_CHECKING:
    from collections.abc import Callable

KEY_BYTES = 32
"""AES-256."""

_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_APART = re.compile(r"[,\s]+")


@dataclass(frozen=True, kw_only=True)
class Encrypted:
    """What the program gives is encrypted before it is stored, and decrypted when it is read.

    Args:
        keys: The keys by id: 32 random bytes each, as bytes or in Base64 (`coterie payloads new-key` prints one).
        current: The id of the key that new values are encrypted with. None: new values are not encrypted yet, the first
            step of switching it on without a stop.
        plain: Whether values that are not encrypted are read: while what was stored before is not encrypted yet.
        compress: Whether values of 256 bytes and more are compressed before they are encrypted. Then their lengths tell
            something of what is in them.

    Example:
        ```python
        cluster = Cluster(payloads=Encrypted(keys={"k1": os.environ["ORDERS_KEY"]}, current="k1"))
        ```
    """

    keys: Mapping[str, str | bytes | Secret] | Callable[[], str]
    current: str | None
    plain: bool = False
    compress: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """The same as settings."""
        return {
            "payload_keys": self.keys,
            "payload_current": self.current,
            "payload_plain": self.plain,
            "payload_compress": self.compress,
        }

    def __repr__(self) -> str:
        return f"Encrypted(current={self.current!r})"


def payload_keys() -> Parser:
    """Keys by id: a mapping, `k1=…,k2=…`, `file:` and a path, or a function that returns them."""

    def parse(value: Any, what: str) -> tuple[tuple[str, Secret], ...]:
        value = fetched(value, what)
        if value is None or value in ("off", ()):
            return ()
        pairs = _pairs(value)
        if len({name for name, _ in pairs}) < len(pairs) or not all(_ID.fullmatch(str(name)) for name, _ in pairs):
            raise ValueError
        return tuple((name, _key(key)) for name, key in pairs)

    one = f"an id and {KEY_BYTES} random bytes in Base64"
    accepts = f'keys apart by commas as in "k1=…,k2=…", each {one}, or "file:" and the path of a file with that'
    return Parser(parse, accepts, lambda keys: ",".join(f"{name}={key}" for name, key in keys) or "off", hidden=True)


def key_bytes(key: Secret) -> bytes:
    """The key itself. Keep it out of logs and errors."""
    return base64.b64decode(key.reveal())


def fingerprint(key: bytes) -> str:
    """What is stored to recognise a key: it has 256 random bits, so nothing follows from a hash of it."""
    return hashlib.sha256(b"coterie payload key" + key).hexdigest()[:32]


def new_key(random: bytes) -> str:
    """A key as it stands in a variable."""
    return base64.b64encode(random).decode()


def _pairs(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, str):
        return [(name, key) for name, _, key in (each.partition("=") for each in _APART.split(value.strip(" ,\n")))]
    return list(value.items()) if isinstance(value, Mapping) else list(value)


def _key(value: Any) -> Secret:
    text = value.reveal() if isinstance(value, Secret) else value
    if not isinstance(text, str | bytes):
        raise ValueError  # noqa: TRY004 the parser's word for a wrong value
    try:
        key = text if isinstance(text, bytes) else base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError from None
    if len(key) != KEY_BYTES or len(set(key)) < KEY_BYTES // 4:  # a passphrase, or a placeholder
        raise ValueError
    return Secret(new_key(key))
