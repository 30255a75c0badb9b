"""`coterie migrate`: shows pending migrations of the schema, and applies them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import click

from coterie.cli.client import WRONG, common, refuse, settings_for, storage_for
from coterie.cli.output import echo, lasting, plural
from coterie.cli.progress import ProgressLine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.settings import Settings
    from coterie.storage.interface import Storage
    from coterie.storage.migrations import Migration, Phase


@click.command()
@click.option("--plan", "act", flag_value="plan", default=True, help="Show what would be applied (the default).")
@click.option("--apply", "act", flag_value="apply", help="Apply it.")
@click.option("--sql", "act", flag_value="sql", help="Print the SQL, to be run by a role that may.")
@click.option(
    "--phase",
    type=click.Choice(["pre", "post"]),
    help="pre: before the new version is deployed (the default); post: when no older one runs any more. "
    "An empty database gets both.",
)
@click.option(
    "--grant-send",
    "sender",
    metavar="ROLE",
    help="Let a role of the database call coterie.send and coterie.start_workflow from SQL, and nothing else.",
)
@common
def command(act: str, phase: Phase | None, sender: str | None, url: str | None, as_json: bool) -> None:
    """Migrate the database to this version's schema.

    \b
    Example:
      coterie migrate --url postgresql://owner@db.internal/app --apply
    """
    settings = settings_for(url)
    if sender is None:
        asyncio.run(_migrate(settings, act, phase, as_json=as_json))
    elif act != "plan" or phase is not None:
        refuse("--grant-send is given with what migrates", hint="run two commands, --apply first", code=WRONG)
    else:
        asyncio.run(_grant_send(settings, sender, as_json=as_json))


async def _grant_send(settings: Settings, role: str, *, as_json: bool) -> None:
    async with storage_for(settings) as storage:
        await storage.schema.grant_send(role)
        document = json.dumps({"database": storage.address, "granted": role})
        echo(document if as_json else f"role {role} may send from SQL   {storage.address}")


async def _migrate(settings: Settings, act: str, phase: Phase | None, *, as_json: bool) -> None:
    async with storage_for(settings) as storage:
        applied = await storage.schema.applied()
        wanted = phase or ("pre" if applied else None)
        pending = await storage.schema.pending(wanted)
        steps, took_s = (
            await _apply(storage, applied, pending, wanted, as_json=as_json) if act == "apply" else (pending, 0.0)
        )
        if act == "sql":
            echo("\n".join(f"-- {step}\n{step.sql}" for step in steps))
        elif as_json:
            echo(_as_json(storage, applied, steps, act=act))
        else:
            echo(_as_text(storage, applied, steps, act=act, took_s=took_s))
            if act == "apply" and await storage.schema.pending("post"):
                echo("when no older version runs: coterie migrate --apply --phase post", err=True)


async def _apply(
    storage: Storage, applied: Sequence[Migration], pending: Sequence[Migration], phase: Phase | None, *, as_json: bool
) -> tuple[Sequence[Migration], float]:
    """Apply what is pending; returns what was applied here, and how long it took."""
    before, after = _number(applied), _number([*applied, *pending])
    what, note = f"migrating  {before} → {after}", f"{len(pending)} steps"
    with ProgressLine(what, note=note, json=as_json) as progress:
        progress.phase(f"phase {phase}" if phase else "both phases")
        async with progress.ticking():
            steps = await storage.schema.apply(phase)
        return steps, progress.took_s


def _number(steps: Sequence[Migration]) -> int:
    return max((step.number for step in steps), default=0)


def _as_json(storage: Storage, applied: Sequence[Migration], steps: Sequence[Migration], *, act: str) -> str:
    word = "applied" if act == "apply" else "pending"
    before = _number(applied)
    return json.dumps({"database": storage.address, "schema": before, word: [str(step) for step in steps]})


def _as_text(
    storage: Storage, applied: Sequence[Migration], steps: Sequence[Migration], *, act: str, took_s: float
) -> str:
    before = _number(applied)
    if not steps:
        return f"schema {before} of {storage.address} is current"
    word = "migrated" if act == "apply" else "would migrate"
    count = plural(len(steps), "step") + (f", {lasting(took_s)}" if act == "apply" else "")
    lines = [f"  {step}" for step in steps]
    return "\n".join([f"{word}  {before} → {_number(steps)}   {count}   {storage.address}", *lines])
