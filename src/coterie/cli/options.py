"""Options that every command takes, and the settings that follow from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable


def common(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add `--url` and `--json`."""
    command = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")(command)
    return click.option("--url", metavar="URL", help="The database (default: COTERIE_URL, else ./coterie.db).")(command)


def settings_for(url: str | None) -> Settings:
    """Settings as the command's process sees them."""
    return Settings.load({} if url is None else {"url": url})
