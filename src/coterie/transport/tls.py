"""TLS between runners: version 1.3, a private authority, and a certificate from both ends.

The server requires the client's certificate; forgetting that is what left clusters open for years (incident 41).
System authorities are never loaded: anyone can get a certificate from those.

Policy: a certificate that `tls_ca` signed makes its holder a machine of ours, whatever name it contains: runners are
reached at addresses that change, so names are not compared. Which runner it is, by incarnation, and that it belongs to
this cluster, is proved by the handshake, which runs inside TLS as it does without. So the authority must sign nothing
but the certificates of this cluster.

Certificates are reloaded when their files have changed, and a warning is logged before they expire.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coterie.errors import ConfigurationError, quoted
from coterie.kernel import metrics
from coterie.kernel.clock import Clock, SystemClock, to_datetime

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from coterie.settings import Settings


_NOT_YET, _EXPIRED = 9, 10  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID and …_HAS_EXPIRED
_PURPOSE = 26  # X509_V_ERR_INVALID_PURPOSE


def checked_contexts(settings: Settings) -> tuple[ssl.SSLContext, ssl.SSLContext, float]:
    """Both contexts, and when the certificate, or every authority, expires: seconds since 1970.

    The listener's *requires* a certificate of the client; the client's shows one and checks the server's.

    Raises:
        ConfigurationError: A file is missing or unreadable, or the three do not fit together, or are out of date.
    """
    server = _context(settings, ssl.PROTOCOL_TLS_SERVER)
    server.options |= ssl.OP_NO_TICKET
    server.num_tickets = 0  # a resumed session would not check the certificate again
    client = _context(settings, ssl.PROTOCOL_TLS_CLIENT)
    # Better to find out now, from ourselves, what others would say of this certificate.
    shown = _meet(settings, server, client)
    authorities = [_end_s(each) for each in client.get_ca_certs()]
    return server, client, min(_end_s(shown), max(authorities, default=_end_s(shown)))


def _end_s(certificate: dict[str, Any]) -> float:
    return float(ssl.cert_time_to_seconds(certificate["notAfter"]))


def _context(settings: Settings, protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # see the policy above
    context.verify_mode = ssl.CERT_REQUIRED
    _trust(context, settings)
    _show(context, settings)
    return context


def _trust(context: ssl.SSLContext, settings: Settings) -> None:
    if settings.tls_ca is None:
        raise ConfigurationError(
            problem="tls_ca is missing: without it there is nothing to check the certificates of other runners by",
            hint="set tls_ca to the file of the authority that signed tls_cert",
        )
    require_file("tls_ca", settings.tls_ca, "CERTIFICATE")
    try:
        context.load_verify_locations(settings.tls_ca)
    except ssl.SSLError as error:
        raise _broken("tls_ca", settings.tls_ca, error) from error


def _show(context: ssl.SSLContext, settings: Settings) -> None:
    assert settings.tls_cert is not None
    assert settings.tls_key is not None, "the settings refuse one without the other"
    require_file("tls_cert", settings.tls_cert, "CERTIFICATE")
    require_file("tls_key", settings.tls_key, "PRIVATE KEY")
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password=_no_password)
    except _Encrypted as error:
        raise ConfigurationError(
            problem=f"tls_key is {quoted(settings.tls_key)}, which needs a password",
            hint="write the key without one, readable by this user alone: openssl pkey -in … -out …",
        ) from error
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigurationError(
                problem=f"tls_key is {quoted(settings.tls_key)}, "
                f"which is not the key of tls_cert, {quoted(settings.tls_cert)}",
                hint="give the key that the certificate was made for",
            ) from error
        raise _broken("tls_cert, with its tls_key,", settings.tls_cert, error) from error


def _meet(settings: Settings, server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """Perform a handshake between our own server and client, in memory. Returns: the certificate that was shown."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_side=False),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(2):  # hello and answer; then the client's certificate is checked
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                raise _unfit(settings, error) from error
    return dict(ends[0].getpeercert() or {})


def _unfit(settings: Settings, error: ssl.SSLCertVerificationError) -> ConfigurationError:
    shown = f"tls_cert is {quoted(str(settings.tls_cert))}"
    said = {
        _EXPIRED: (", which has expired", "renew it, sign it with tls_ca, and start again"),
        _NOT_YET: (", which is not valid yet", "is the clock of this machine right?"),
        _PURPOSE: (
            ", which may not be used by both a server and a client",
            "sign it with extendedKeyUsage = serverAuth, clientAuth",
        ),
    }
    if error.verify_code in said:
        problem, hint = said[error.verify_code]
        return ConfigurationError(problem=shown + problem, hint=hint)
    return ConfigurationError(
        problem=f"{shown}, which other runners would refuse: {error.verify_message}",
        hint=f"sign it with the authority in tls_ca, {quoted(str(settings.tls_ca))}",
    )


def require_file(setting: str, path: str, kind: str) -> None:
    """Raise unless a setting names a file with such a PEM section."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            problem=f"{setting} is {quoted(path)}, which cannot be read: {(error.strerror or str(error)).lower()}",
            hint="give the path of a file that this process may read",
        ) from error
    if f"{kind}-----".encode() not in content:  # also "EC PRIVATE KEY" and the like
        raise ConfigurationError(
            problem=f"{setting} is {quoted(path)}, which holds no {kind.lower()} in PEM form",
            hint=f'such a file has a line "-----BEGIN {kind}-----"',
        )


def _broken(setting: str, path: str, error: ssl.SSLError) -> ConfigurationError:
    why = (error.reason or "unknown").replace("_", " ").lower()
    return ConfigurationError(
        problem=f"{setting} is {quoted(path)}, which cannot be used: {why}",
        hint="openssl x509 -text -noout -in shows what a certificate holds",
    )


class _Encrypted(Exception):
    """The key requires a password."""


def _no_password(*_: Any) -> str:
    raise _Encrypted


log = logging.getLogger("coterie")

WARNED = timedelta(days=30)
"""How long before they expire certificates are warned of."""
_LOOKED_EVERY_S = 60.0
_TOLD_EVERY = timedelta(days=1)


class Certificates:
    """The TLS contexts of this process: `tls_cert`, `tls_key` and `tls_ca`. Create one only if they are set.

    Args:
        settings: Name the files.
        clock: The clock for expiry.

    Promise:
        Replaced files are used for new connections within a minute and without a restart. Files that do not fit
        together, or cannot be read, are logged, and the contexts read before stay in use.

    Raises:
        ConfigurationError: A file is missing or unreadable, or the three do not fit together, or are out of date.
    """

    server: ssl.SSLContext
    """The context of a listener: it *requires* a certificate of the client."""
    client: ssl.SSLContext
    """The context of an outgoing connection: it shows a certificate and checks the server's."""
    ends_at: datetime
    """When the certificate, or every authority, expires."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock = clock or SystemClock()
        self._told_at: datetime | None = None
        self._seen = self._state()
        self._read()

    def refresh(self) -> None:
        """Reload the files if they have changed."""
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
        """Refresh, and warn of the expiry, for as long as this runs."""
        while True:
            self.refresh()
            self.warn()
            await asyncio.sleep(_LOOKED_EVERY_S)

    def warn(self) -> None:
        """Warn once a day of an expiry that is near."""
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
    """The warning for certificates that expire soon, or have expired; empty: there is time."""
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
