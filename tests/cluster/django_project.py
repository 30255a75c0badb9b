"""The project of docs/django.md, as a folder with a `manage.py`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

PAGE = Path(__file__).parents[2] / "docs" / "django.md"
FILE = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT_S = 240.0

MANAGE = """\
import os
import sys

from django.core.management import execute_from_command_line

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
execute_from_command_line(sys.argv)
"""


class DjangoProject:
    """A project.

    Args:
        folder: Where it is written.
        postgres_url: Its database; None: SQLite, as the page has it.
    """

    def __init__(self, folder: Path, postgres_url: str | None = None) -> None:
        self.folder = folder
        for name, text in FILE.findall(PAGE.read_text()):
            path = folder / name
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(text)
        (folder / "manage.py").write_text(MANAGE)
        if postgres_url is not None:
            self.add_settings(f"DATABASES = {{'default': {database(postgres_url)!r}}}")

    def add_settings(self, text: str) -> None:
        """Append to the settings."""
        with (self.folder / "mysite" / "settings.py").open("a") as settings:
            settings.write(f"\n{text}\n")

    def line(self, *arguments: str) -> list[str]:
        """A command line of `manage.py`."""
        return [sys.executable, str(self.folder / "manage.py"), *arguments]

    def manage(self, *arguments: str, code: int = 0, cwd: Path | None = None) -> str:
        """Run a command; its output."""
        done = subprocess.run(
            self.line(*arguments),
            cwd=cwd or self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def environment(self) -> dict[str, str]:
        """The variables of its processes."""
        return {key: value for key, value in os.environ.items() if not key.startswith("COTERIE_")}


def database(url: str) -> dict[str, object]:
    """The address of a database as Django has it."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.strip("/"),
        "USER": parts.username or "",
        "PASSWORD": parts.password or "",
        "HOST": parts.hostname or "",
        "PORT": str(parts.port or ""),
    }
