"""A private authority for tests: signs certificates that are good, foreign, expired or for one purpose only."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from coterie.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Files:
    """What the settings name."""

    tls_cert: str
    tls_key: str
    tls_ca: str

    def settings(self) -> Settings:
        return Settings.load(vars(self), environ={})


class Authority:
    """Signs certificates and writes them, with their keys, into a folder."""

    def __init__(self, folder: Path, name: str = "coterie") -> None:
        self.name = name
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._count = 0
        subject = _named(f"{name} authority")
        signed = (
            _builder(subject, subject, self._key, begins=-DAY, ends=DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self._subject = subject
        self.file = self._write(f"{name}-ca.pem", signed.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        *,
        begins: timedelta = -DAY,
        ends: timedelta = DAY,
        purposes: tuple[x509.ObjectIdentifier, ...] = (SERVER, CLIENT),
        password: bytes | None = None,
    ) -> Files:
        """A certificate of this authority."""
        self._count += 1
        stem = f"{self.name}-{self._count}"
        key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _builder(_named(stem), self._subject, key, begins=begins, ends=ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        return Files(
            tls_cert=self._write(f"{stem}.pem", signed.public_bytes(serialization.Encoding.PEM)),
            tls_key=self._write(f"{stem}.key", key.private_bytes(serialization.Encoding.PEM, form, hidden)),
            tls_ca=self.file,
        )

    def _write(self, name: str, content: bytes) -> str:
        (self._folder / name).write_bytes(content)
        return str(self._folder / name)


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, begins: timedelta, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )
