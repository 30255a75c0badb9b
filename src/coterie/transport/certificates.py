"""The certificates of this process: read again when their files have changed, and told of before they end."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError
from coterie.kernel import metrics
from coterie.kernel.clock import SystemClock, to_datetime
from coterie.transport.tls import checked_contexts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.kernel.clock import Clock
    from coterie.settings import Settings

log = logging.getLogger("coterie")

WARNED = timedelta(days=30)
"""How long before their end certificates are warned of."""
_LOOKED_EVERY_S = 60.0
_TOLD_EVERY = timedelta(days=1)


class Certificates:
    """What TLS of this process uses: `tls_cert`, `tls_key` and `tls_ca`. Make one only if they are set.

    Args:
        settings: They name the files.
        clock: By which certificates end.

    Promise:
        Files that were replaced are used for connections from then on, within a minute and without a restart. Those
        that do not fit together, or cannot be read, are told of, and what was read before stays.

    Raises:
        ConfigurationError: A file is missing or unreadable, or the three do not fit together, or are out of date.
    """

    server: ssl.SSLContext
    """What a listener uses: it *requires* a certificate of the client."""
    client: ssl.SSLContext
    """What a connection uses: it shows a certificate and checks the server's."""
    ends_at: datetime
    """When the certificate, or every authority, is over."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._told_at: datetime | None = None
        self._seen = self._state()
        self._read()

    def refresh(self) -> None:
        """Read the files again if they have changed."""
        if (state := self._state()) == self._seen:
            return
        self._seen = state
        try:
            self._read()
        except ConfigurationError as error:
            log.warning("new certificates are not used, the old ones stay: %s", error)
        else:
            log.info("certificates were read again: they end at %s", self.ends_at.isoformat())
            self._told_at = None

    async def watch(self) -> None:
        """Refresh, and tell of the end, for as long as this runs."""
        while True:
            self.refresh()
            self.tell()
            await asyncio.sleep(_LOOKED_EVERY_S)

    def tell(self) -> None:
        """Warn once a day of an end that is near."""
        now = self._now()
        if (warning := near_end(self.ends_at, now)) and (self._told_at is None or now - self._told_at >= _TOLD_EVERY):
            self._told_at = now
            log.warning("%s", warning)

    def _read(self) -> None:
        self.server, self.client, ends_s = checked_contexts(self._settings)
        self.ends_at = to_datetime(int(ends_s * 1e9))
        metrics.TLS_EXPIRES.of().value = ends_s

    def _state(self) -> Sequence[object]:
        files = (self._settings.tls_cert, self._settings.tls_key, self._settings.tls_ca)
        return [_state(Path(each)) for each in files if each is not None]

    def _now(self) -> datetime:
        return to_datetime(self._clock.wall_ns())


def near_end(ends_at: datetime, now: datetime) -> str:
    """What to say about certificates that end soon, or have ended; empty: there is time."""
    left = ends_at - now
    if left > WARNED:
        return ""
    when = f"in {left.days} days" if left > timedelta(0) else "already"
    return (
        f"tls_cert or its authority ends {when} ({ends_at:%Y-%m-%d %H:%M} UTC): replace the files, no restart is needed"
    )


def _state(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_ino, found.st_mtime_ns, found.st_size
