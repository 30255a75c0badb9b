"""Packages of Debian that tests need, installed where they are missing and may be."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOADED_WITHIN_S = 240.0
"""For waiting until others have installed it, the lists of packages, and loading it."""
UNPACKED_WITHIN_S = 240.0
"""Apart from the time for loading: who ends dpkg while it unpacks leaves a machine that has to be repaired."""

INSTALL = ("install", "--yes", "--no-install-recommends")


def install(package: str) -> str:
    """Install a package, one process of this machine at a time.

    Returns:
        Why that could not be; an empty text if it is installed, perhaps by somebody else meanwhile.
    """
    if shutil.which("apt-get") is None:
        return "there is no apt-get to install it"
    if os.geteuid() != 0:
        return "only root may install it"
    until_s = time.monotonic() + LOADED_WITHIN_S
    try:
        with _alone(until_s):
            if _has(package):
                return ""
            problem = _apt(*INSTALL, "--download-only", package, until_s=until_s)
            if problem:  # the lists of packages are missing, or of yesterday
                problem = _apt("update", until_s=until_s)
                problem = _apt(*INSTALL, "--download-only", package, until_s=until_s) or problem
            return problem or _apt(*INSTALL, "--no-download", package, until_s=time.monotonic() + UNPACKED_WITHIN_S)
    except (subprocess.TimeoutExpired, TimeoutError):
        return "apt-get did not install it in time"


def _has(package: str) -> bool:
    asked = subprocess.run(["dpkg-query", "--show", "--showformat=${db:Status-Status}", package], capture_output=True)
    return asked.returncode == 0 and asked.stdout == b"installed"


def _apt(*arguments: str, until_s: float) -> str:
    """Run apt-get; returns what it complained of."""
    done = subprocess.run(
        ["apt-get", "-o", "DPkg::Lock::Timeout=60", "-o", "Acquire::Retries=2", *arguments],
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=max(1.0, until_s - time.monotonic()),
    )
    said = [line for line in done.stderr.splitlines() if line.startswith("E:")]
    return "" if done.returncode == 0 else f"apt-get {arguments[0]} says {said[-1] if said else done.returncode}"


@contextmanager
def _alone(until_s: float) -> Iterator[None]:
    """Hold the lock of all test processes of this machine."""
    with Path(tempfile.gettempdir(), "coterie-tests-install.lock").open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until_s:
                    raise TimeoutError from None
                time.sleep(0.1)
            else:
                break
        yield
