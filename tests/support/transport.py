"""What tests of the transport share: frames as bytes, and the TLS contexts of both ends."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from coterie.transport.tls import checked_contexts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from coterie.settings import Settings


def framed(bodies: Iterable[bytes]) -> bytes:
    """Several bodies as one piece to write, each behind its length."""
    return b"".join(struct.pack(">I", len(body)) + body for body in bodies)


def server_context(settings: Settings) -> ssl.SSLContext | None:
    """The context of a listener; None without `tls_cert`."""
    return None if settings.tls_cert is None else checked_contexts(settings)[0]


def client_context(settings: Settings) -> ssl.SSLContext | None:
    """The context of an outgoing connection; None without `tls_cert`."""
    return None if settings.tls_cert is None else checked_contexts(settings)[1]
