"""`coterie payloads`: which keys encrypt what is stored, and the change to another key."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import click
import msgspec

from coterie.cli.client import (
    NO,
    Noun,
    client_command,
    common,
    confirmable,
    confirmed,
    refuse,
    require_file,
    settings_for,
    storage_for,
)
from coterie.cli.output import Screen, as_json, echo, plural
from coterie.cli.progress import ProgressLine
from coterie.errors import ConfigurationError
from coterie.kernel.random import Random
from coterie.settings.payload_keys import KEY_BYTES
from coterie.settings.payload_keys import new_key as key_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cli.client import ClientCommand
    from coterie.settings import Settings
    from coterie.storage.encryption.rotation import KeyUse, Rotation

_PLAIN = "(none)"
_PAUSE_S = 0.2
"""Between two rounds: what others had locked is free by then."""
_IDLE_ROUNDS = 25
"""After so many rounds that change nothing it gives up on what others keep locked."""


@click.group(cls=Noun, alone="status")
def command() -> None:
    """Which keys encrypt what is stored, and the change to another key.

    \b
    Example:
      coterie payloads status --url postgresql://app@db.internal/app
    """


@command.command()
@common
def status(url: str | None, as_json: bool) -> None:
    """How many rows are encrypted with which key. Reads every row, and needs no key.

    \b
    Example:
      coterie payloads status --json
    """
    asyncio.run(_status(settings_for(url), is_json=as_json))


async def _status(settings: Settings, *, is_json: bool) -> None:
    from coterie.storage.encryption.rotation import key_uses

    require_file(settings)
    async with storage_for(settings.but(payload_keys=(), payload_current=None, payload_compress=False)) as storage:
        uses = await key_uses(storage.payloads)
    echo(as_json(list(map(msgspec.structs.asdict, uses))) if is_json else _table(uses))


@command.command()
@confirmable
@client_command
async def rotate(ctx: ClientCommand, *, yes: bool, dry_run: bool) -> int:
    """Encrypt with the current key what is stored under others, while the cluster works.

    The keys are those of COTERIE_PAYLOAD_KEYS and COTERIE_PAYLOAD_CURRENT. It may be stopped, and begun again.

    \b
    Example:
      coterie payloads rotate --yes
    """
    from coterie.storage.encryption.rotation import Rotation, key_uses

    storage, current = ctx.here.storage, ctx.cluster.settings.payload_current
    if storage.keyring is None:
        raise ConfigurationError(
            problem="there are no payload_keys here",
            hint="set COTERIE_PAYLOAD_KEYS to the old and the new key, COTERIE_PAYLOAD_CURRENT to the id of that one",
        )
    uses = [use for use in await key_uses(storage.payloads) if use.key != (current or "")]
    with_what = "be decrypted" if current is None else f"be encrypted with key {current}"
    if not confirmed(f"{_counted(uses)} will {with_what}", "do it?", yes=yes, dry_run=dry_run):
        return 0
    rotation = Rotation(storage.payloads, storage.keyring)
    async with ctx.act("rotate payloads", current or _PLAIN) as record:
        with ProgressLine("rotating", total=sum(use.rows for use in uses), about=True, json=ctx.as_json) as line:
            await _run(rotation, line)
        forgotten = await rotation.forget_unused_keys()
        record.result = f"{rotation.progress.changed} rows"
    done = rotation.progress
    answer = {
        "changed": done.changed,
        "left": done.left,
        "unreadable": dict(done.unreadable),
        "keys_no_longer_needed": forgotten,
    }
    ctx.answer(answer, lambda: _done(rotation, forgotten))
    if done.unreadable:
        refuse(f"{plural(done.unreadable.total(), 'row')} could not be read, the last one so: {done.problem}", code=NO)
    return NO if done.left else 0


@command.command("new-key")
def new_key() -> None:
    """Print a new key, for COTERIE_PAYLOAD_KEYS: 32 random bytes in Base64.

    \b
    Example:
      echo "k1=$(coterie payloads new-key)" > payload.keys
    """
    echo(key_text(Random().token(KEY_BYTES)))


async def _run(rotation: Rotation, line: ProgressLine) -> None:
    idle = 0
    while True:
        before = rotation.progress.changed
        async for progress in rotation.run():
            line.phase(progress.table)
            line.at(progress.changed)
        idle = 0 if rotation.progress.changed > before else idle + 1
        if not rotation.progress.left or idle >= _IDLE_ROUNDS:
            return
        await asyncio.sleep(_PAUSE_S)


def _done(rotation: Rotation, forgotten: Sequence[str]) -> str:
    done = rotation.progress
    lines = [f"{plural(done.changed, 'row')} rotated"]
    lines += [f"{plural(done.left, 'row')} stayed locked: run it again"] if done.left else []
    lines += [f"key {key} encrypts nothing any more: it can be taken away from all processes" for key in forgotten]
    return "\n".join(lines)


def _counted(uses: Sequence[KeyUse]) -> str:
    rows: Counter[str] = Counter()
    for use in uses:
        rows[use.key] += use.rows
    each = [
        f"{plural(count, 'row')} {f'of key {key}' if key else 'without encryption'}"
        for key, count in sorted(rows.items())
    ]
    return ", ".join(each) or "no rows"


def _table(uses: Sequence[KeyUse]) -> str:
    if not uses:
        return "nothing is stored"
    rows = [(use.key or _PLAIN, use.table, f"{use.rows:,}") for use in sorted(uses, key=lambda use: use.key)]
    return Screen(colour=None).table(("KEY", "TABLE", "ROWS"), rows)
