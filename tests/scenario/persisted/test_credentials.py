"""A runner that the others would not let in does not join: its secrets, its TLS, its authority."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, ConfigurationError
from coterie.settings import Settings
from coterie.settings.secret import Secret
from coterie.transport.credentials import Credentials, credentials_of, differs
from tests.unit.transport.certificate_authority import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

OLD, NEW = "the-old-secret-of-ours", "the-new-secret-of-ours"
SALT = b"s" * 32


@asynccontextmanager
async def runner(url: str, name: str, **settings: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(url, runner_name=name, shards=3, http_listen=None, **settings)
    async with cluster:
        yield cluster


async def refusal(url: str, **settings: Any) -> str:
    with pytest.raises(ConfigurationError, match="runner bob cannot join runner anna: ") as caught:
        async with runner(url, "bob", **settings):
            pass
    text = str(caught.value)
    assert OLD not in text
    assert NEW not in text
    return text


async def test_another_secret_is_refused_and_rotation_is_not(url: str) -> None:
    """Both at once stand between the old one and the new one; what a runner left behind refuses nobody."""
    async with runner(url, "anna", secret=OLD) as anna:
        for others in ({"secret": NEW}, {}):
            assert "they have no secret in common" in await refusal(url, **others)
        assert [each.name for each in await anna.runners.list()] == ["anna"]
        async with runner(url, "bob", secret=(NEW, OLD)):
            pass
    async with runner(url, "carl", secret=NEW) as carl:
        (row,) = await carl._acting().runners()
        assert NEW not in row.credentials


async def test_no_tls_beside_tls_and_another_authority_are_refused(url: str, tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    async with runner(url, "anna", **vars(ours.sign())):
        assert "one uses TLS, and the other does not" in await refusal(url)
        assert "no authority in common (tls_ca)" in await refusal(url, **vars(theirs.sign()))
        async with runner(url, "bob", **vars(ours.sign())) as bob:
            await bob.ready()


def of(*secrets: str, **files: str) -> Credentials:
    settings = Settings.load({"secret": tuple(map(Secret, secrets)), **files}, environ={})
    return credentials_of(settings, salt=SALT)


def test_two_authorities_at_once_are_a_rotation(tmp_path: Path) -> None:
    first, second = Authority(tmp_path, "first"), Authority(tmp_path, "second")
    both = tmp_path / "both.pem"
    both.write_text(Path(first.file).read_text() + Path(second.file).read_text())
    before, after = of(**vars(first.sign())), of(**vars(second.sign()))
    between = of(**{**vars(second.sign()), "tls_ca": str(both)})
    assert len(between.authorities) == 2
    assert differs(before.encode(), after.encode())
    assert not differs(before.encode(), between.encode())
    assert not differs(between.encode(), after.encode())
    other = Authority(tmp_path, "other")
    third = of(**vars(other.sign()))
    assert differs(between.encode(), third.encode()) == "they have no authority in common (tls_ca)"
    assert differs(of(OLD, NEW).encode(), of("another-secret-of-theirs").encode()) == "they have no secret in common"


def test_who_shows_nothing_is_not_judged() -> None:
    """An older version, or a later one that shows something else: two versions run side by side during a deploy."""
    mine = of(OLD).encode()
    for theirs in ("", "{}", "[1]", "\ud800", '{"secrets": 7}', "another form"):
        assert not differs(mine, theirs)
        assert not differs(theirs, mine)
    later = mine.replace("}", ',"more":1}')
    assert not differs(mine, later)
    assert differs(of(NEW).encode(), later)


def test_who_stores_what_another_cannot_read_is_apart() -> None:
    """O6: also while a key is changed, step by step; an older version shows no keys, and reads none."""
    given = {name: {"payload_keys": {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}} for name in ("k1", "k2")}
    plain, first, second = (
        credentials_of(Settings.load(each, environ={}), salt=SALT).encode()
        for each in ({}, *({**keys, "payload_current": name} for name, keys in given.items()))
    )
    alone = {"payload_keys": {"k1": bytes(range(32, 64))}, "payload_current": "k1"}
    other = credentials_of(Settings.load(alone, environ={}), salt=SALT).encode()
    assert not differs(first, second)
    assert "with key 'k1', which the other does not have" in differs(first, plain)
    assert "with key 'k1', which the other does not have" in differs(first, other)
    assert differs(plain, second)
    assert "payload" not in plain


def test_a_fingerprint_is_the_same_for_all_and_of_one_cluster_only() -> None:
    assert of(OLD, NEW) == of(NEW, OLD)
    settings = Settings.load({"secret": OLD}, environ={})
    assert credentials_of(settings, salt=b"t" * 32).secrets != of(OLD).secrets
    assert of().secrets == ("database",)
    assert OLD not in of(OLD).encode()


async def test_a_dead_runner_with_another_secret_refuses_nobody(url: str) -> None:
    """Its row stays until somebody has noticed."""
    anna = Cluster(url, runner_name="anna", shards=3, http_listen=None, secret=OLD)
    await anna.start()
    life = anna._acting()._life  # type: ignore[attr-defined]
    await life.stop()  # without a farewell: the row is there, its session is not
    try:
        async with asyncio.timeout(120), runner(url, "bob", secret=NEW):
            pass
    finally:
        await anna.stop()
