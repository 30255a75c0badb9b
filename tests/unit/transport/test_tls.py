"""TLS: both ends show a certificate of one private authority, or nothing is said (incident 41, CVE-2025-61778)."""

from __future__ import annotations

import asyncio
import re
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.errors import ConfigurationError
from coterie.settings import Settings
from tests.support.transport import client_context, server_context
from tests.unit.transport.certificate_authority import CLIENT, SERVER, Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cryptography import x509

    from tests.unit.transport.certificate_authority import Files

DOCS = Path(__file__).parents[3] / "docs" / "transport.md"
MINUTE = timedelta(minutes=1)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def unchecked(files: Files | None, *, ca: str, protocol: int = ssl.PROTOCOL_TLS_CLIENT) -> ssl.SSLContext:
    """What a stranger would use: none of our checks."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.load_verify_locations(ca)
    if files is not None:
        context.load_cert_chain(files.tls_cert, files.tls_key)
    return context


class PendingSocket:
    """A server that notes who got in, and answers them."""

    def __init__(self) -> None:
        self.port = 0
        self.let_in = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.let_in += 1
        writer.write(await reader.readexactly(5))
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(context: ssl.SSLContext | None) -> AsyncIterator[PendingSocket]:
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: None)  # refused handshakes are told of
    listener = PendingSocket()
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=context)
    listener.port = server.sockets[0].getsockname()[1]
    async with server:
        yield listener


async def greet(port: int, context: ssl.SSLContext | None) -> bytes:
    """What comes back for a greeting. In TLS 1.3 a client learns only then that it was refused."""
    async with asyncio.timeout(120):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            writer.write(b"hello")
            return await reader.readexactly(5)
        finally:
            writer.transport.abort()


REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)


async def test_two_runners_of_one_authority_talk(authority: Authority) -> None:
    ours, theirs = authority.sign(), authority.sign()
    async with listening(server_context(ours.settings())) as listener:
        assert await greet(listener.port, client_context(theirs.settings())) == b"hello"


async def test_a_client_without_certificate_is_refused_incident_41(authority: Authority) -> None:
    async with listening(server_context(authority.sign().settings())) as listener:
        with pytest.raises(REFUSED):
            await greet(listener.port, unchecked(None, ca=authority.file))
        assert listener.let_in == 0


async def test_a_client_of_a_foreign_authority_is_refused_incident_41(authority: Authority, tmp_path: Path) -> None:
    foreign = Authority(tmp_path, "foreign").sign()
    async with listening(server_context(authority.sign().settings())) as listener:
        with pytest.raises(REFUSED):
            await greet(listener.port, unchecked(foreign, ca=authority.file))
        assert listener.let_in == 0


async def test_a_client_whose_certificate_has_expired_is_refused_incident_41(authority: Authority) -> None:
    expired = authority.sign(ends=-MINUTE)
    async with listening(server_context(authority.sign().settings())) as listener:
        with pytest.raises(REFUSED):
            await greet(listener.port, unchecked(expired, ca=authority.file))
        assert listener.let_in == 0


async def test_a_client_without_tls_is_refused(authority: Authority) -> None:
    async with listening(server_context(authority.sign().settings())) as listener:
        with pytest.raises(REFUSED):
            await greet(listener.port, None)
        assert listener.let_in == 0


@pytest.mark.parametrize("which", ["foreign", "expired"])
async def test_a_false_server_is_refused_by_the_client(authority: Authority, tmp_path: Path, which: str) -> None:
    shown = Authority(tmp_path, "foreign").sign() if which == "foreign" else authority.sign(ends=-MINUTE)
    async with listening(unchecked(shown, ca=authority.file, protocol=ssl.PROTOCOL_TLS_SERVER)) as listener:
        with pytest.raises(ssl.SSLCertVerificationError):
            await greet(listener.port, client_context(authority.sign().settings()))


async def test_an_older_tls_is_refused(authority: Authority) -> None:
    files = authority.sign()
    old = unchecked(files, ca=authority.file)
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(server_context(files.settings())) as listener:
        with pytest.raises(REFUSED):
            await greet(listener.port, old)
        assert listener.let_in == 0


def test_only_the_private_authority_is_trusted_and_both_ends_must_show_a_certificate(authority: Authority) -> None:
    settings = authority.sign().settings()
    for context in (server_context(settings), client_context(settings)):
        assert context is not None
        assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 1}
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.minimum_version is ssl.TLSVersion.TLSv1_3


def test_the_commands_of_the_docs_make_files_that_are_taken(tmp_path: Path) -> None:
    commands = re.search(r"^```sh\n(.*?)^```$", DOCS.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert commands is not None
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    subprocess.run(["sh", "-e"], input=commands[1], text=True, cwd=tmp_path, capture_output=True, check=True)
    names = {"tls_cert": "web-1.pem", "tls_key": "web-1.key", "tls_ca": "ca.pem"}
    settings = Settings.load({setting: tmp_path / name for setting, name in names.items()}, environ={})
    assert server_context(settings) is not None


def test_without_certificate_there_is_no_tls() -> None:
    settings = Settings.load({}, environ={})
    assert server_context(settings) is client_context(settings) is None


def refusal(files: Files) -> str:
    with pytest.raises(ConfigurationError) as caught:
        server_context(files.settings())
    with pytest.raises(ConfigurationError) as again:
        client_context(files.settings())
    assert str(caught.value) == str(again.value)
    return str(caught.value)


def test_an_authority_is_needed(authority: Authority) -> None:
    files = authority.sign()
    settings = Settings.load({"tls_cert": files.tls_cert, "tls_key": files.tls_key}, environ={})
    with pytest.raises(ConfigurationError, match="tls_ca is missing"):
        server_context(settings)


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_ca"])
def test_a_missing_file_is_named(authority: Authority, setting: str) -> None:
    told = refusal(replace(authority.sign(), **{setting: "/does/not/exist.pem"}))
    assert told.startswith(f'{setting} is "/does/not/exist.pem", which cannot be read: no such file or directory')


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_ca"])
def test_a_file_without_what_it_should_hold_is_named(authority: Authority, tmp_path: Path, setting: str) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    held = "private key" if setting == "tls_key" else "certificate"
    told = refusal(replace(authority.sign(), **{setting: str(junk)}))
    assert told.startswith(f'{setting} is "{junk}", which holds no {held} in PEM form')


@pytest.mark.parametrize("setting", ["tls_cert", "tls_key", "tls_ca"])
def test_a_damaged_file_is_named(authority: Authority, tmp_path: Path, setting: str) -> None:
    files = authority.sign()
    kind = "PRIVATE KEY" if setting == "tls_key" else "CERTIFICATE"
    (tmp_path / "damaged.pem").write_text(f"-----BEGIN {kind}-----\nbm90aGluZw==\n-----END {kind}-----\n")
    told = refusal(replace(files, **{setting: str(tmp_path / "damaged.pem")}))
    assert setting in told
    assert "which cannot be used: " in told


def test_a_key_of_another_certificate_is_told(authority: Authority) -> None:
    told = refusal(replace(authority.sign(), tls_key=authority.sign().tls_key))
    assert "which is not the key of tls_cert" in told


def test_a_key_with_a_password_is_told_and_nobody_is_asked_for_it(authority: Authority) -> None:
    assert "which needs a password" in refusal(authority.sign(password=b"hunter2"))


def test_a_certificate_that_others_would_refuse_is_told_at_start(authority: Authority, tmp_path: Path) -> None:
    assert "which has expired" in refusal(authority.sign(ends=-MINUTE))
    assert "which is not valid yet" in refusal(authority.sign(begins=MINUTE))
    foreign = replace(Authority(tmp_path, "foreign").sign(), tls_ca=authority.file)
    assert "which other runners would refuse: unable to get local issuer certificate" in refusal(foreign)


@pytest.mark.parametrize("purpose", [SERVER, CLIENT])
def test_a_certificate_for_one_purpose_is_told(authority: Authority, purpose: x509.ObjectIdentifier) -> None:
    told = refusal(authority.sign(purposes=(purpose,)))
    assert "which may not be used by both a server and a client" in told
