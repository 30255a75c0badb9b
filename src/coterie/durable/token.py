"""Tokens of deferreds: each names a deferred and proves that this cluster made it. They cannot be guessed."""

from __future__ import annotations

import base64
import binascii
import hmac
from hashlib import blake2b
from typing import Any

import msgspec

from coterie.errors import WorkflowError

_MAC_BYTES = 16
_MARK = "t"
"""The first character of a token: a dash would be taken for an option on a command line."""


class MalformedToken(WorkflowError):
    """What was given as the token of a deferred is none of this cluster's."""

    text = "this is no token of a deferred of this cluster"
    advice = "give it as deferred.token said it, whole"


class TokenParts(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """The deferred that a token names. Fields are only ever added at the end."""

    unit: str
    name: str
    life: int = 0
    """The life of the unit; 0: the unit began before units had lives, and `takes` is not set either."""
    takes: Any = None
    """The type of its value (`kernel.schema`); None: any."""


_decoder = msgspec.msgpack.Decoder(TokenParts)


class Tokens:
    """Makes and reads the tokens of one cluster.

    Args:
        secret: The cluster's secret.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def make(self, unit: str, name: str, *, life: int = 0, takes: Any = None) -> str:
        """The token of a deferred. Constant in one life of its unit, so that it exists before its row does."""
        data = msgspec.msgpack.encode(TokenParts(unit, name, life, takes) if life else (unit, name))
        return _MARK + base64.urlsafe_b64encode(self._mac(data) + data).decode().rstrip("=")

    def read(self, token: Any) -> TokenParts:
        """Verify and decode a token.

        Raises:
            MalformedToken: It is not a token of this cluster.
        """
        if not isinstance(token, str) or not token.startswith(_MARK):
            raise MalformedToken
        text = token.removeprefix(_MARK)
        try:
            data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raise MalformedToken from None
        mac, data = data[:_MAC_BYTES], data[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(data)):
            raise MalformedToken
        return _decoder.decode(data)

    def _mac(self, data: bytes) -> bytes:
        return blake2b(data, key=self._secret, digest_size=_MAC_BYTES, person=b"deferred").digest()
