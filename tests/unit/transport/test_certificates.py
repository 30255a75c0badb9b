"""Certificates: replaced without a restart, and told of before they end."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from coterie.cli.commands.doctor import certificates
from coterie.errors import ConfigurationError
from coterie.kernel import metrics
from coterie.settings import Settings
from coterie.transport.tcp import TcpWire
from coterie.transport.tls import Certificates, near_end
from tests.support.manual_clock import ManualClock
from tests.unit.transport.certificate_authority import Authority

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.transport.certificate_authority import Files

DAY = timedelta(days=1)


class Installed:
    """Files whose names stay while they are replaced, as a manager of certificates does."""

    def __init__(self, folder: Path) -> None:
        self.names = {name: str(folder / f"installed-{name}") for name in ("tls_cert", "tls_key", "tls_ca")}
        self.settings = Settings.load({}, environ={})

    def put(self, files: Files, **others: str) -> None:
        for name, file in {**vars(files), **others}.items():
            shutil.copy(file, self.names[name] + ".new")
            shutil.move(self.names[name] + ".new", self.names[name])
        self.settings = Settings.load(self.names, environ={})


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def installed(tmp_path: Path, authority: Authority) -> Installed:
    made = Installed(tmp_path)
    made.put(authority.sign(ends=DAY / 4))
    return made


def test_new_files_are_used_from_then_on(installed: Installed, authority: Authority) -> None:
    found = Certificates(installed.settings)
    before, ended = (found.server, found.client), found.ends_at
    found.refresh()
    assert (found.server, found.client) == before, "nothing has changed"
    installed.put(authority.sign(ends=DAY / 2))
    found.refresh()
    assert found.server is not before[0]
    assert found.client is not before[1]
    assert found.ends_at > ended
    assert metrics.TLS_EXPIRES.of().value == found.ends_at.timestamp()


def test_new_files_that_do_not_fit_are_told_of_and_the_old_ones_stay(
    installed: Installed, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    found = Certificates(installed.settings)
    before = found.server
    installed.put(authority.sign(), tls_key=authority.sign().tls_key)
    for _ in range(3):
        found.refresh()
    assert found.server is before
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the old ones stay: tls_key is" in said
    installed.put(authority.sign())
    found.refresh()
    assert found.server is not before


def test_an_end_that_is_near_is_told_once_a_day(installed: Installed, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(datetime.now(UTC))
    found = Certificates(installed.settings, clock=clock)
    for _ in range(3):
        found.warn()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ends in 0 days" in caplog.text
    clock.advance(DAY)
    found.warn()
    assert "ends already" in caplog.text


def test_thirty_days_before_the_end() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert not near_end(now + timedelta(days=30, seconds=1), now)
    assert "ends in 30 days (2026-01-31 00:00 UTC): replace the files, no restart" in near_end(now + 30 * DAY, now)
    assert "ends already" in near_end(now, now)


def test_doctor_tells_of_it(installed: Installed, authority: Authority) -> None:
    now = datetime.now(UTC)
    assert [each.how for each in certificates(installed.settings, now)] == ["warn"]
    assert [each.how for each in certificates(installed.settings, now - 40 * DAY)] == ["good"]
    assert [*certificates(Settings.load({}, environ={}), now)] == []
    installed.put(authority.sign(), tls_key=authority.sign().tls_key)
    assert [each.how for each in certificates(installed.settings, now)] == ["bad"]


async def test_connections_show_the_certificate_that_is_there(installed: Installed, authority: Authority) -> None:
    """A listener and a client that have run since before the old one was replaced."""
    import asyncio

    class Quiet(asyncio.Protocol):
        def connection_made(self, transport: Any) -> None:
            made.append(transport)

    made: list[Any] = []
    wire = TcpWire(installed.settings)
    address = await wire.listen(Quiet)
    try:
        async with asyncio.timeout(120):
            serials = []
            for _ in range(2):
                made.clear()
                await wire.connect(address, Quiet)
                while len(made) < 2:
                    await asyncio.sleep(0.001)
                serials.append({each.get_extra_info("ssl_object").getpeercert()["serialNumber"] for each in made})
                for each in made:
                    each.abort()
                installed.put(authority.sign())
    finally:
        await wire.close()
    first, second = serials
    assert len(first) == len(second) == 1, "both ends show the same one"
    assert first != second


def test_what_does_not_fit_at_the_start_is_refused(installed: Installed, authority: Authority) -> None:
    installed.put(authority.sign(), tls_key=authority.sign().tls_key)
    with pytest.raises(ConfigurationError):
        Certificates(installed.settings)
