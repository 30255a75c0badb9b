"""`coterie entities`: where entities are active, one entity with its state, and freeing one that is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.cli.client import WRONG, ClientCommand, Noun, client_command, confirmable, confirmed, fields, page, refuse
from coterie.cli.output import Screen, as_json, echo, lasting, plain, plural, safe
from coterie.entities.calls.by_name_client import ActiveEntity, CallsByName
from coterie.kernel.ids import EntityAddress
from coterie.observe import details
from coterie.storage.contracts.messages import MessageFilter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.observe.view import EntityLine

_COUNTED_MOST = 10_000


@click.group(cls=Noun)
def command() -> None:
    """Where entities are active, and one entity with its state.

    \b
    Example:
      coterie entities show Account/alice --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.argument("kind", metavar="[TYPE]", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@client_command
async def list_some(ctx: ClientCommand, kind: str | None, *, limit: int) -> None:
    """The active entities of a type, busiest first; without a type, all types.

    \b
    Example:
      coterie entities list Account --limit 20
    """
    if kind is None:
        lines, _ = await page(ctx, "entities")
        ctx.show(lines, lambda: _types(ctx.screen, lines))
        return
    found = await CallsByName(ctx.here).residents(kind, most=limit)
    _warn_of_silent_runners(found.silent)
    if found.group is None and not found.silent:
        hint = "is the program that defines it deployed? coterie entities list shows what is active"
        refuse(f"no runner knows an entity {kind}", hint=hint)
    busiest = sorted(found.lives, key=lambda each: (-each[1].waiting, -each[1].running, each[1].id))[:limit]
    ctx.show(
        [{"runner": runner, **plain(life)} for runner, life in busiest],
        lambda: _lives(ctx.screen, busiest),
    )
    if found.total > len(busiest):
        echo(f"{len(busiest):,} of {found.total:,} are shown: --limit shows more", err=True)


@command.command()
@click.argument("entity", metavar="TYPE/ID")
@client_command
async def show(ctx: ClientCommand, entity: str) -> None:
    """One entity: where it is active, its mailbox, its state, its messages.

    \b
    Example:
      coterie entities show Account/alice --json
    """
    address = address_of(entity)
    found = await details.entity(ctx.here, address, texts=True)
    if found is None:
        hint = "no runner knows its type, and nothing of it is stored; coterie entities list shows what is active"
        refuse(f"there is no entity {address}", hint=hint)
    _warn_of_silent_runners(found["silent"])
    life, counts = (_life(found) if found["known"] else None), found["messages"]
    shard, owner, epoch = found["shard"], found["owner"], found["epoch"]
    value = {
        "entity": str(address),
        "shard": shard,
        "owner": owner,
        "epoch": epoch or 0,
        "runner": found["runner"],
        "life": None if life is None else plain(life),
        "state": found["state"],
        "messages": counts,
    }

    def text() -> str:
        held = "no runner knows its type" if shard is None else f"{shard} → {owner or 'no owner'}, epoch {epoch}"
        pairs = [
            ("shard", held),
            ("mailbox", "" if life is None else _mailbox(life)),
            ("state", _state_text(found["state"])),
            ("messages", ", ".join(f"{counts[each]:,} {each}" for each in ("pending", "dead"))),
        ]
        dead = (
            f"\n\nrun dead ones again: coterie entities reset {safe(str(address), keep='')}" if counts["dead"] else ""
        )
        return f"{ctx.where}\n\n{ctx.screen.headed(str(address), _standing(life))}\n{fields(pairs)}{dead}"

    ctx.answer(value, text)


@command.command()
@click.argument("entity", metavar="TYPE/ID")
@confirmable
@client_command
async def reset(ctx: ClientCommand, entity: str, *, yes: bool, dry_run: bool) -> None:
    """Retry an entity's stuck messages: dead ones, and those that wait for another attempt.

    Its state is not touched.

    \b
    Example:
      coterie entities reset Account/alice --yes
    """
    address = address_of(entity)
    dead = await ctx.here.storage.messages.count(_of(address, "dead"), most=_COUNTED_MOST)
    pending = await ctx.here.storage.messages.count(_of(address, "pending"), most=_COUNTED_MOST)
    if not dead and not pending:
        refuse(f"{address} has no messages that wait or are dead", hint="coterie messages list shows which have some")
    many = plural(dead, "dead message")
    what = f"{many} of {address} will run again, and what waits for another attempt will not wait; state stays"
    if not confirmed(what, "reset it?", yes=yes, dry_run=dry_run):
        return
    async with ctx.act("reset", f"entity {address}") as act:
        revived = await ctx.here.storage.messages.revive(entity_type=address.type, entity_id=address.id)
        act.result = f"{counted_of(revived)} again"
    hint = f'coterie messages list --filter "type:{address}"'
    text = f"reset {safe(str(address), keep='')}: {counted_of(revived)} again; this cannot be undone"
    ctx.answer({"entity": str(address), "revived": revived}, f"{text}\nto follow them: {hint}")


def counted_of(revived: int) -> str:
    """`1 dead message runs`, `2 dead messages run`."""
    return "1 dead message runs" if revived == 1 else f"{revived:,} dead messages run"


def address_of(text: str) -> EntityAddress:
    """Parse `Account/alice`."""
    try:
        return EntityAddress.parse(text)
    except ValueError:
        refuse(f'"{text}" is no entity', hint="write type and id, as in Account/alice", code=WRONG)


def _of(address: EntityAddress, status: Any) -> MessageFilter:
    return MessageFilter(status=status, entity_type=address.type, entity_id=address.id)


def _life(found: dict[str, Any]) -> ActiveEntity:
    """What is in memory of an entity."""
    given = {name: found[name] for name in ActiveEntity.__struct_fields__ if name in found}
    return ActiveEntity(**given)


def _warn_of_silent_runners(silent: Sequence[str]) -> None:
    if silent:
        echo(f"no answer from {', '.join(silent)}: what lives there is not shown", err=True)


def _types(screen: Screen, lines: list[EntityLine]) -> str:
    if not lines:
        return "no entity is active: an entity is activated by its first call"
    rows = [
        (
            each.type,
            f"{each.resident:,}" + ("" if each.is_complete else " or more"),
            ", ".join(f"{name} {count:,}" for name, count in sorted(each.runners.items())),
        )
        for each in lines
    ]
    return screen.table(("TYPE", "RESIDENT", "WHERE"), rows, right=("RESIDENT",))


def _lives(screen: Screen, lives: list[tuple[str, ActiveEntity]]) -> str:
    if not lives:
        return "none of them is active: an entity is activated by its first call"
    rows = [(each.id, runner, f"{each.waiting:,} of {each.mailbox:,}", _standing(each)) for runner, each in lives]
    return screen.table(("ENTITY", "RUNNER", "MAILBOX", "STATE"), rows, right=("MAILBOX",))


def _standing(life: ActiveEntity | None) -> str:
    if life is None:
        return "not active"
    if life.running:
        return f"running: {life.method or '?'} for {lasting(life.running_s or 0.0)}"
    return "never idles out" if life.leaves_s is None else f"idles out in {lasting(life.leaves_s)}"


def _mailbox(life: ActiveEntity) -> str:
    return f"{life.waiting:,} of {life.mailbox:,} waiting, {life.running:,} running"


def _state_text(state: dict[str, Any] | None) -> str:
    if state is None:
        return "none saved"
    facts = f"v{state['version']}, {state['bytes']:,} bytes, {plural(state['saves'], 'save')}, epoch {state['epoch']}"
    return f"{as_json(state['value'])}  ({facts})"
