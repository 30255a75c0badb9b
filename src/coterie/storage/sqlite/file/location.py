"""The location of the file: from the URL to a path, and which places are refused. Pure except for the last ones."""

from __future__ import annotations

import logging
import os
import pwd
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from coterie.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("coterie")

_FORMS = "write sqlite:///file.db (relative), sqlite:////folder/file.db (absolute) or sqlite:// (in memory)"

# Their locks and shared memory do not reach other machines, or not reliably; WAL needs both.
_NETWORK = re.compile(
    r"(fuse\.)?(9p|acfs|afpfs|afs|beegfs|ceph|ceph-fuse|cifs|coda|davfs2?|gcsfuse|gfs2|glusterfs|goofys|gpfs|lustre"
    r"|ncpfs|nfs[34]?|ocfs2|orangefs|pvfs2|rclone|s3fs|smb[23]|smbfs|sshfs|webdav)"
)

_MOUNTINFO = Path("/proc/self/mountinfo")


def path_of(url: str) -> Path | None:
    """The file that a URL names, as written, or None for memory."""
    scheme, separator, rest = url.partition("://")
    if scheme != "sqlite" or not separator:
        raise _bad_url(url, "is not a SQLite address")
    if not rest:
        return None
    if not rest.startswith("/"):
        raise _bad_url(url, f"names a host, {rest.partition('/')[0]!r}, but a SQLite file is local")
    name = rest[1:]
    if name in ("", "/", ":memory:") or "\0" in name:
        raise _bad_url(url, "names no file")
    if "?" in name:
        raise _bad_url(url, "has parameters after '?', which SQLite addresses do not take")
    return Path(name)


def _bad_url(url: str, problem: str) -> ConfigurationError:
    return ConfigurationError(problem=f"url {url!r} {problem}", hint=_FORMS)


def is_network(kind: str) -> bool:
    """Whether a file system of this type name is shared over a network."""
    return _NETWORK.fullmatch(kind.lower()) is not None


def kind_of(path: Path, mounts: str) -> str:
    """The type of the file system that holds an absolute path, given the text of mountinfo; "" if unknown."""
    best, kind = -1, ""
    for line in mounts.splitlines():
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        point = Path(_unescaped(fields[4]))
        # Later lines win: a mount over a mount point hides what was there.
        if path.is_relative_to(point) and len(point.parts) >= best:
            best, kind = len(point.parts), after.split(" ")[0]
    return kind


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def require_local(path: Path, *, mounts: str | None = None) -> None:
    """Raise if the file is on a network file system [C3]."""
    kind = kind_of(path, _mounts() if mounts is None else mounts)
    if is_network(kind):
        raise ConfigurationError(
            problem=f"{path} lies on a network file system ({kind}), where SQLite's locks do not hold",
            hint="use a local disk, or PostgreSQL to share one database between machines",
        )


def _mounts() -> str:
    try:
        return _MOUNTINFO.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""  # not Linux, or no /proc: the unknown is not refused


def require_folder(path: Path) -> None:
    """Raise unless the file's folder exists and the path is not a folder itself."""
    if path.is_dir():
        raise ConfigurationError(problem=f"{path} is a folder, not a file", hint=_FORMS)
    if not path.parent.is_dir():
        raise ConfigurationError(
            problem=f"cannot create {path.name}: the folder {path.parent} does not exist",
            hint=f"create it (mkdir -p {path.parent}) or give another url",
        )


def require_owned(path: Path) -> None:
    """Raise if an existing file is another user's: SQLite's files beside it would lock that user out.

    Warns of a file that other users can read: it holds the cluster's secret [X4].
    """
    try:
        found = path.stat()
    except OSError:
        return  # it does not exist yet, or SQLite reports what is wrong
    if found.st_uid != os.geteuid():
        raise ConfigurationError(
            problem=f"{path} belongs to user {_user(found.st_uid)}, and this process runs as {_user(os.geteuid())}",
            hint="run it as the user to whom the file belongs, or give the file to this one",
        )
    if found.st_mode & 0o077:
        log.warning(
            "%s can be used by other users (mode %04o), and holds the cluster's secret: chmod 600 it",
            path,
            stat.S_IMODE(found.st_mode),
        )


def _user(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return str(number)


def beside(path: Path, endings: Sequence[str]) -> list[Path]:
    """The paths made of this one and an ending each."""
    return [path.with_name(path.name + ending) for ending in endings]
