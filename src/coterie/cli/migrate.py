"""`coterie migrate`: what the schema lacks, and how it gets there."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from coterie.cli.options import common, settings_for
from coterie.kernel.addresses import new_incarnation
from coterie.kernel.chance import Chance
from coterie.kernel.clock import SystemClock
from coterie.storage.opening import open_storage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.settings import Settings
    from coterie.storage.interface import Storage
    from coterie.storage.migrations import Migration, Phase


@click.command()
@click.option("--plan", "act", flag_value="plan", default=True, help="Say what would be applied (the default).")
@click.option("--apply", "act", flag_value="apply", help="Apply it.")
@click.option("--sql", "act", flag_value="sql", help="Print the SQL, for whoever may run it.")
@click.option(
    "--phase",
    type=click.Choice(["pre", "post"]),
    help="pre: before the new version is deployed (the default); post: when no older one runs any more. "
    "An empty database gets both.",
)
@common
def command(act: str, phase: Phase | None, url: str | None, as_json: bool) -> None:
    """Bring the database's schema to this version.

    \b
    Example:
      coterie migrate --url postgresql://owner@db.internal/app --apply
    """
    asyncio.run(_migrate(settings_for(url), act, phase, as_json=as_json))


async def _migrate(settings: Settings, act: str, phase: Phase | None, *, as_json: bool) -> None:
    chance = Chance()
    storage = open_storage(
        settings, incarnation=new_incarnation(chance), clock=SystemClock(), chance=chance, check_schema=False
    )
    async with storage:
        applied = await storage.schema.applied()
        wanted = phase or ("pre" if applied else None)
        steps = await (storage.schema.apply(wanted) if act == "apply" else storage.schema.pending(wanted))
        if act == "sql":
            click.echo("\n".join(f"-- {step}\n{step.sql}" for step in steps))
        elif as_json:
            click.echo(_as_json(storage, applied, steps, act=act))
        else:
            click.echo(_as_text(storage, applied, steps, act=act))
            if act == "apply" and await storage.schema.pending("post"):
                click.echo("when no older version runs: coterie migrate --apply --phase post", err=True)


def _as_json(storage: Storage, applied: Sequence[Migration], steps: Sequence[Migration], *, act: str) -> str:
    word = "applied" if act == "apply" else "pending"
    before = max((step.number for step in applied), default=0)
    return json.dumps({"database": storage.address, "schema": before, word: [str(step) for step in steps]})


def _as_text(storage: Storage, applied: Sequence[Migration], steps: Sequence[Migration], *, act: str) -> str:
    before = max((step.number for step in applied), default=0)
    if not steps:
        return f"schema {before} of {storage.address} is current"
    after = max(step.number for step in steps)
    word = "migrated" if act == "apply" else "would migrate"
    lines = [f"  {step}" for step in steps]
    return "\n".join([f"{word}  {before} → {after}   {storage.address}", *lines])
