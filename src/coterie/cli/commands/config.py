"""`coterie config`: every setting, its value and where it came from."""

from __future__ import annotations

import click

from coterie.cli.client import common, settings_for
from coterie.settings import help_rows


@click.command()
@common
def command(url: str | None, as_json: bool) -> None:
    """Every setting, its value and where it came from.

    Secrets and passwords are not shown. With --json also what each is for, its default and its variable.

    \b
    Example:
      COTERIE_HEARTBEAT=10s coterie config --json
    """
    from coterie.cli import output

    rows = help_rows(settings_for(url))
    if as_json:
        names = ("name", "value", "origin", "variable", "default", "about", "scope")
        output.echo(output.as_json([{name: getattr(row, name) for name in names} for row in rows]))
    else:
        table = output.Screen(colour=False).table(
            ("SETTING", "VALUE", "FROM"), [(row.name, row.value, row.origin) for row in rows]
        )
        output.echo(table)
