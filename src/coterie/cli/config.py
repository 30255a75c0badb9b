"""`coterie config`: every setting, its value and where it came from."""

from __future__ import annotations

import json

import click

from coterie.cli.options import common, settings_for
from coterie.settings import help_rows


@click.command()
@common
def command(url: str | None, as_json: bool) -> None:
    """Every setting, its value and where it came from.

    \b
    Example:
      COTERIE_HEARTBEAT=10s coterie config
    """
    rows = help_rows(settings_for(url))
    if as_json:
        click.echo(json.dumps([{"name": r.name, "value": r.value, "origin": r.origin} for r in rows]))
        return
    wide = max(len(row.name) for row in rows)
    wider = min(40, max(len(row.value) for row in rows))
    click.echo(f"{'SETTING':<{wide}}  {'VALUE':<{wider}}  FROM")
    for row in rows:
        click.echo(f"{row.name:<{wide}}  {row.value:<{wider}}  {row.origin}")
