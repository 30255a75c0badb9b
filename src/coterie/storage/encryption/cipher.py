"""Encrypts and decrypts single values with AES-256-GCM, each bound to the place where it is stored.

    magic  version  length of the key's id  the key's id  salt      nonce     ciphertext and tag
    3      1        1                       1-64          16        12        the plain text's length + 16

The salt is drawn when the process starts, and the key that encrypts is derived from it and the key of the settings
(HKDF), so processes do not share one. The nonce is a keyed hash of the plain text and its place. So a write that is
tried again, because its outcome is unknown, has the same bytes: the engines recognise it by them. A nonce comes twice
only for the same text in the same place, also in a forked child or a restored machine, whatever a counter would do.

Version 2 is a text that was compressed (zlib) before it was encrypted. Every process reads both.
"""

from __future__ import annotations

import base64
import binascii
import sys
import zlib
from hashlib import blake2b
from typing import TYPE_CHECKING, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec.msgpack import encode

from coterie.errors import UnreadablePayload
from coterie.kernel.text import storable
from coterie.settings.payload_keys import fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.kernel.random import Random

MAGIC = b"\xc1cp\x01"
"""Begins each ciphertext, with the version of the format. No MessagePack begins with this byte."""
COMPRESSED_MAGIC = b"\xc1cp\x02"
"""The same for a value that was compressed before it was encrypted."""
TEXT_MAGIC = "encrypted:"
"""Begins each ciphertext that stands in a column of text; the key's id, a colon and Base64 follow."""

_MAGICS = (MAGIC, COMPRESSED_MAGIC)
_PLAIN = "switch payload_plain on until coterie payloads rotate has encrypted what was stored before there were keys"
_SALT_BYTES, _NONCE_BYTES, _TAG_BYTES = 16, 12, 16
_COMPRESSED_LEAST = 256
"""Bytes from which on a value is compressed: a shorter one takes as many blocks of a disk without."""
_COMPRESSION_LEVEL = 1
"""The fastest: 4 KB of JSON take 60 us on the loop and shrink to a third; level 6 saves a tenth of that more."""
_SUBKEYS_MOST = 4096
"""Derived keys that are remembered: one for each process that has written what is read."""

Place = tuple[str | int, ...]
"""What a value is bound to besides the cluster: table, field, key of the row, and the like."""


class _Subkey(NamedTuple):
    """The keys that are derived for one process."""

    cipher: AESGCM
    hash_key: bytes


class Keyring:
    """The keys of one process.

    Args:
        keys: 32 random bytes each, by id.
        current: The id of the key to encrypt with; None: what is written is not encrypted.
        reads_plain: Whether values that are not encrypted are read.
        cluster: The name of the cluster: what another one has stored is not decrypted.
        chance: Draws the salt.
        compresses: Whether values are compressed before they are encrypted, where that makes them shorter.
    """

    def __init__(
        self,
        keys: Mapping[str, bytes],
        *,
        current: str | None,
        reads_plain: bool,
        cluster: str,
        chance: Random,
        compresses: bool = False,
    ) -> None:
        self.current = current
        self.reads_plain = reads_plain
        self._keys = keys
        self._cluster = cluster
        self._subkeys: dict[tuple[str, bytes], _Subkey] = {}
        self._compressed_least = _COMPRESSED_LEAST if compresses else sys.maxsize
        self._head = self._compressed_head = b""
        if current is not None:
            salt = chance.token(_SALT_BYTES)
            self._head = _head(current) + salt
            self._compressed_head = _head(current, COMPRESSED_MAGIC) + salt
            self._mine = self._subkey(current, salt)

    def fingerprints(self) -> Mapping[str, str]:
        """What other processes compare to know whether they have the same keys, by id."""
        return {name: fingerprint(key) for name, key in self._keys.items()}

    def seal(self, data: bytes, place: Place) -> bytes:
        """Encrypt a value. An empty one stays empty."""
        if not self._head or not data:
            return data
        if len(data) >= self._compressed_least:
            shorter = zlib.compress(data, _COMPRESSION_LEVEL)
            if len(shorter) < len(data):
                return self._encrypt(shorter, place, self._compressed_head, COMPRESSED_MAGIC)
        return self._encrypt(data, place, self._head)

    def open(self, data: bytes, place: Place) -> bytes:
        """Decrypt a value.

        Raises:
            UnreadablePayload: It is of a key that this process does not have, or it was changed or moved.
        """
        if not data.startswith(_MAGICS):
            if data and not self.reads_plain:
                raise _unreadable(place, "", "it is not encrypted, and payload_plain is off", hint=_PLAIN)
            return data
        key_id, at = _key_id(data, place)
        if key_id not in self._keys:
            raise _unreadable(place, key_id, f"it is encrypted with key {key_id!r}, which this process does not have")
        head, nonce = data[: at + _SALT_BYTES], data[at + _SALT_BYTES : at + _SALT_BYTES + _NONCE_BYTES]
        cipher = self._subkey(key_id, head[at:]).cipher
        try:
            plain = cipher.decrypt(nonce, data[len(head) + _NONCE_BYTES :], head + self._bound(place))
        except (InvalidTag, ValueError):
            problem = f"it does not decrypt with key {key_id!r}: that is another key here, or it was changed or moved"
            raise _unreadable(place, key_id, problem) from None
        return zlib.decompress(plain) if data.startswith(COMPRESSED_MAGIC) else plain

    def seal_text(self, text: str, place: Place) -> str:
        """Encrypt a text for a column of text. An empty one stays empty."""
        if not self._head or not text:
            return text
        sealed = self.seal(storable(text).encode(), place)
        return f"{TEXT_MAGIC}{self.current}:{base64.b64encode(sealed).decode()}"

    def open_text(self, text: str, place: Place) -> str:
        """Decrypt a text. coterie writes texts of its own beside, which are not encrypted.

        Raises:
            UnreadablePayload: As `open`.
        """
        if not text.startswith(TEXT_MAGIC):
            return text
        key_id, _, coded = text.removeprefix(TEXT_MAGIC).partition(":")
        try:
            sealed = base64.b64decode(coded, validate=True)
        except binascii.Error:
            sealed = b""
        if not sealed.startswith(_MAGICS):
            raise _unreadable(place, key_id, "it was changed")
        return self.open(sealed, place).decode()

    def shown_text(self, text: str, place: Place) -> str:
        """Decrypt a text for people: what cannot be read says so, instead of hiding what stands beside it."""
        try:
            return self.open_text(text, place)
        except UnreadablePayload as error:
            return f"({error.problem})"

    def _encrypt(self, data: bytes, place: Place, head: bytes, kind: bytes = b"") -> bytes:
        """Encrypt bytes; `kind` keeps a compressed value and a plain one of the same bytes from sharing a nonce."""
        bound = self._bound(place)
        cipher, hash_key = self._mine
        hashed = blake2b(bound, key=hash_key, digest_size=_NONCE_BYTES, person=kind)
        hashed.update(data)
        nonce = hashed.digest()
        return head + nonce + cipher.encrypt(nonce, data, head + bound)

    def _bound(self, place: Place) -> bytes:
        try:
            return encode((self._cluster, place))
        except UnicodeEncodeError:  # no database takes such a name, and the engine's error says so
            return repr(place).encode("ascii", "backslashreplace")

    def _subkey(self, key_id: str, salt: bytes) -> _Subkey:
        found = self._subkeys.get((key_id, salt))
        if found is None:
            if len(self._subkeys) >= _SUBKEYS_MOST:
                self._subkeys.clear()
            derived = HKDF(SHA256(), length=64, salt=salt, info=b"coterie payload").derive(self._keys[key_id])
            found = self._subkeys[key_id, salt] = _Subkey(AESGCM(derived[:32]), derived[32:])
        return found


def head_of(key_id: str) -> bytes:
    """How each ciphertext of a key begins that was not compressed."""
    return _head(key_id)


def text_head_of(key_id: str) -> str:
    """How each ciphertext of a key begins in a column of text."""
    return f"{TEXT_MAGIC}{key_id}:"


def key_of(value: bytes | str) -> str:
    """The id of the key that a value is encrypted with; empty: none. The first hundred characters are enough."""
    if isinstance(value, str):
        return value.removeprefix(TEXT_MAGIC).partition(":")[0] if value.startswith(TEXT_MAGIC) else ""
    return _key_id(value, ())[0] if value.startswith(_MAGICS) else ""


def _head(key_id: str, magic: bytes = MAGIC) -> bytes:
    coded = key_id.encode()
    return magic + bytes([len(coded)]) + coded


def _key_id(data: bytes, place: Place) -> tuple[str, int]:
    """The id of the key, and where the salt begins."""
    begin = len(MAGIC) + 1
    end = begin + data[begin - 1] if len(data) >= begin else begin
    if place and len(data) < end + _SALT_BYTES + _NONCE_BYTES + _TAG_BYTES:
        raise _unreadable(place, "", "it was cut off")
    return data[begin:end].decode(errors="replace"), end


def _unreadable(place: Place, key: str, problem: str, *, hint: str = "") -> UnreadablePayload:
    table, field, *row = place
    doing = f"read {field} of {'/'.join(map(str, row))} in {table}"
    return UnreadablePayload(doing=doing, problem=problem, key=key, hint=hint)
