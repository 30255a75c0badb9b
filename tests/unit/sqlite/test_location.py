"""From URL to file, and places that are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coterie.errors import ConfigurationError
from coterie.storage.sqlite.file import location

if TYPE_CHECKING:
    from tests.unit.sqlite.conftest import Opener

MOUNTS = r"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /mnt/share rw - nfs4 server:/export rw
31 22 0:41 / /mnt/with\040space rw - cifs //server/share rw
32 30 0:42 / /mnt/share/local rw shared:7 master:1 - ext4 /dev/vdb rw
33 22 0:43 / /mnt/twice rw - ext4 /dev/vdc rw
34 33 0:44 / /mnt/twice rw - fuse.sshfs me@host: rw
nonsense
"""


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite://", None),
        ("sqlite:///coterie.db", Path("coterie.db")),
        ("sqlite:///data/a b%20.db", Path("data/a b%20.db")),
        ("sqlite:////var/lib/coterie.db", Path("/var/lib/coterie.db")),
    ],
)
def test_a_url_names_a_file_or_memory(url: str, path: Path | None) -> None:
    assert location.path_of(url) == path


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///",
        "sqlite:////",
        "sqlite:///:memory:",
        "sqlite://host/a.db",
        "sqlite:a.db",
        "sqlite:///a.db?x=1",
    ],
)
def test_a_url_that_names_no_file_is_refused_with_the_forms_that_would_do(url: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        location.path_of(url)
    assert url in caught.value.message
    assert "sqlite:///file.db" in caught.value.hint


@pytest.mark.parametrize(
    "kind",
    [
        "nfs",
        "nfs4",
        "NFS4",
        "cifs",
        "smb3",
        "smbfs",
        "9p",
        "ceph",
        "glusterfs",
        "afs",
        "lustre",
        "fuse.sshfs",
    ],
)
def test_network_file_systems_are_known_by_name(kind: str) -> None:
    assert location.is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "fuse.mergerfs", "apfs", ""])
def test_local_file_systems_are_let_pass(kind: str) -> None:
    assert not location.is_network(kind)


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/a.db", "ext4"),
        ("/mnt/share/a.db", "nfs4"),
        ("/mnt/shared/a.db", "ext4"),
        ("/mnt/share/local/a.db", "ext4"),
        ("/mnt/with space/a.db", "cifs"),
        ("/mnt/twice/deep/a.db", "fuse.sshfs"),
    ],
)
def test_the_innermost_and_latest_mount_holds_a_path(path: str, kind: str) -> None:
    assert location.kind_of(Path(path), MOUNTS) == kind


def test_a_machine_without_mountinfo_refuses_nothing() -> None:
    location.require_local(Path("/mnt/share/a.db"), mounts="")


async def test_a_file_on_a_network_file_system_is_refused_at_start(
    new: Opener, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """C3: locks do not hold there."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 0:40 / / rw,relatime shared:1 - nfs4 server:/export rw\n")
    monkeypatch.setattr(location, "_MOUNTINFO", mounts)
    with pytest.raises(ConfigurationError, match=r"network file system \(nfs4\)") as caught:
        await new().start()
    assert "PostgreSQL" in caught.value.hint


async def test_a_missing_folder_is_refused_and_named(new: Opener, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist") as caught:
        await new(url=f"sqlite:///{tmp_path}/no/such/coterie.db").start()
    assert f"mkdir -p {tmp_path}/no/such" in caught.value.hint


async def test_a_folder_is_no_file(new: Opener, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        await new(url=f"sqlite:///{tmp_path}").start()


def test_a_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite makes beside it would lock that user out of it."""
    path = tmp_path / "cluster.db"
    location.require_owned(path)  # it is not there yet
    path.touch(0o600)
    location.require_owned(path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 54_321)
    with pytest.raises(ConfigurationError, match=r"cluster.db belongs to user .*, and this process runs as \d+"):
        location.require_owned(path)


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, True), (0o604, True), (0o666, True)])
def test_a_file_that_others_can_read_is_warned_of(
    mode: int, warned: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cluster.db"
    path.touch()
    path.chmod(mode)
    location.require_owned(path)
    assert (f"(mode {mode:04o}), and holds the cluster's secret: chmod 600 it" in caplog.text) is warned
