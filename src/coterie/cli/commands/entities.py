"""`coterie entities`: where entities are active, one entity with its state, and freeing one that is stuck."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from coterie.cli.client import WRONG, acts, asks, confirmed, fields, page, refuse
from coterie.cli.noun import Noun
from coterie.cli.output import as_json, lasting, plain, safe, tell
from coterie.entities.calls.by_name_client import CallsByName
from coterie.entities.persisted.state import key_of
from coterie.errors import MalformedMessage
from coterie.kernel.ids import EntityAddress, Seat, ShardId, shard_number
from coterie.kernel.serialization.codec import PLAIN
from coterie.kernel.serialization.versions import split
from coterie.storage.contracts.messages import MessageFilter

if TYPE_CHECKING:
    from coterie.cli.client import ClientCommand
    from coterie.cli.output import Screen
    from coterie.entities.calls.by_name_client import ActiveEntity, EntityLocation
    from coterie.observe.view import EntityLine
    from coterie.storage.interface import ClusterSnapshot, StateRow

_COUNTED_MOST = 10_000


@click.group(cls=Noun)
def command() -> None:
    """What lives where, and one entity with its state.

    \b
    Example:
      coterie entities show Account/alice --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.argument("kind", metavar="[TYPE]", required=False)
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@asks
async def list_some(asking: ClientCommand, kind: str | None, *, limit: int) -> None:
    """The entities of a type that live anywhere just now, the busiest first; without one, all types.

    \b
    Example:
      coterie entities list Account --limit 20
    """
    if kind is None:
        lines, _ = await page(asking, "entities")
        asking.answer(lines, lambda: f"{asking.where}\n\n{_types(asking.screen, lines)}")
        return
    found = await CallsByName(asking.here).residents(kind, most=limit)
    _talk_of_silence(found)
    if found.group is None and not found.silent:
        hint = "is the program that defines it deployed? coterie entities list shows what lives"
        refuse(f"no runner knows an entity {kind}", hint=hint)
    busiest = sorted(found.lives, key=lambda each: (-each[1].waiting, -each[1].running, each[1].id))[:limit]
    asking.answer(
        [{"runner": runner, **plain(life)} for runner, life in busiest],
        lambda: f"{asking.where}\n\n{_lives(asking.screen, busiest)}",
    )
    if found.total > len(busiest):
        tell(f"{len(busiest):,} of {found.total:,} are shown: --limit shows more", err=True)


@command.command()
@click.argument("entity", metavar="TYPE/ID")
@asks
async def show(asking: ClientCommand, entity: str) -> None:
    """One entity: where it lives, its mailbox, its state, its messages.

    \b
    Example:
      coterie entities show Account/alice --json
    """
    address = address_of(entity)
    storage = asking.here.storage
    found = await CallsByName(asking.here).residents(address.type, address.id)
    _talk_of_silence(found)
    state = await storage.states.peek(key_of(address.type, address.id))
    counts = {
        status: await storage.messages.count(_of(address, status), most=_COUNTED_MOST) for status in ("pending", "dead")
    }
    if found.group is None and not found.silent and state is None and not any(counts.values()):
        hint = "no runner knows its type, and nothing of it is stored; coterie entities list shows what lives"
        refuse(f"there is no entity {address}", hint=hint)
    view = await storage.view()
    shard = _shard(address, found.group, view)
    owner, epoch = _owner(shard, view)
    runner, life = found.lives[0] if found.lives else (None, None)
    value = {
        "entity": str(address),
        "shard": None if shard is None else str(shard),
        "owner": owner,
        "epoch": epoch,
        "runner": runner,
        "life": None if life is None else plain(life),
        "state": _state(state),
        "messages": counts,
    }

    def text() -> str:
        held = "no runner knows its type" if shard is None else f"{shard} → {owner or 'no owner'}, epoch {epoch}"
        pairs = [
            ("shard", held),
            ("mailbox", "" if life is None else _mailbox(life)),
            ("state", _state_text(state)),
            ("messages", ", ".join(f"{counts[each]:,} {each}" for each in ("pending", "dead"))),
        ]
        dead = (
            f"\n\nrun dead ones again: coterie entities reset {safe(str(address), keep='')}" if counts["dead"] else ""
        )
        return f"{asking.where}\n\n{asking.screen.headed(str(address), _standing(life))}\n{fields(pairs)}{dead}"

    asking.answer(value, text)


@command.command()
@click.argument("entity", metavar="TYPE/ID")
@acts
@asks
async def reset(asking: ClientCommand, entity: str, *, yes: bool, dry_run: bool) -> None:
    """Let an entity's stuck messages run again: dead ones, and those that wait for another attempt.

    Its state is not touched.

    \b
    Example:
      coterie entities reset Account/alice --yes
    """
    address = address_of(entity)
    dead = await asking.here.storage.messages.count(_of(address, "dead"), most=_COUNTED_MOST)
    pending = await asking.here.storage.messages.count(_of(address, "pending"), most=_COUNTED_MOST)
    if not dead and not pending:
        refuse(f"{address} has no messages that wait or are dead", hint="coterie messages list shows which have some")
    many = f"{dead:,} dead message{'' if dead == 1 else 's'}"
    what = f"{many} of {address} will run again, and what waits for another attempt will not wait; state stays"
    if not confirmed(what, "reset it?", yes=yes, dry_run=dry_run):
        return
    revived = await asking.here.storage.messages.revive(entity_type=address.type, entity_id=address.id)
    look = f'coterie messages list --filter "type:{address}"'
    told = f"reset {safe(str(address), keep='')}: {counted_of(revived)} again; no command takes that back"
    asking.answer({"entity": str(address), "revived": revived}, f"{told}\nwhat becomes of them: {look}")


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


def _shard(address: EntityAddress, group: str | None, view: ClusterSnapshot) -> ShardId | None:
    """The shard of an entity; None if unknown. The number of shards is that of the cluster, not of our settings."""
    shards = sum(each.name.startswith("shard:") and each.group == group for each in view.seats)
    return ShardId(group, shard_number(address.type, address.id, shards)) if group is not None and shards else None


def _owner(shard: ShardId | None, view: ClusterSnapshot) -> tuple[str | None, int]:
    wanted = None if shard is None else Seat.shard(shard)
    seat = next((each for each in view.seats if each.name == wanted), None)
    names: dict[str | None, str] = {each.id: each.name for each in view.runners}
    return (None, 0) if seat is None else (names.get(seat.holder), seat.epoch)


def _talk_of_silence(found: EntityLocation) -> None:
    if found.silent:
        tell(f"no answer from {', '.join(found.silent)}: what lives there is not shown", err=True)


def _types(screen: Screen, lines: list[EntityLine]) -> str:
    if not lines:
        return "no entity lives just now: they come to life with their first call"
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
        return "none of them lives just now: they come to life with their first call"
    rows = [(each.id, runner, f"{each.waiting:,} of {each.mailbox:,}", _standing(each)) for runner, each in lives]
    return screen.table(("ENTITY", "RUNNER", "MAILBOX", "STATE"), rows, right=("MAILBOX",))


def _standing(life: ActiveEntity | None) -> str:
    if life is None:
        return "lives nowhere just now"
    if life.running:
        return f"at work: {life.method or '?'} for {lasting(life.running_s or 0.0)}"
    return "stays" if life.leaves_s is None else f"idle out in {lasting(life.leaves_s)}"


def _mailbox(life: ActiveEntity) -> str:
    return f"{life.waiting:,} of {life.mailbox:,} waiting, {life.running:,} running"


def _state(state: StateRow | None) -> dict[str, Any] | None:
    """A stored state, as JSON."""
    if state is None:
        return None
    version, value = _value(state)
    return {
        "value": plain(value),
        "version": version,
        "bytes": len(state.value),
        "saves": state.version,
        "epoch": state.epoch,
    }


def _state_text(state: StateRow | None) -> str:
    if state is None:
        return "none saved"
    version, value = _value(state)
    shown = as_json(value)
    saves = f"{state.version:,} save{'' if state.version == 1 else 's'}"
    return f"{shown}  (v{version}, {len(state.value):,} bytes, {saves}, epoch {state.epoch})"


def _value(state: StateRow) -> tuple[int, Any]:
    try:
        version, data = split(state.value, what="state")
        return version, PLAIN.decode(data)
    except MalformedMessage:
        return 0, state.value
