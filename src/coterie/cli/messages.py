"""`coterie messages`: stored calls: what waits, what was given up; running them again, clearing them away."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from coterie.cli.asking import NO, WRONG, acts, asks, confirmed, refuse
from coterie.cli.entities import counted_of
from coterie.cli.filters import EXAMPLE, STATES, parse, state_of
from coterie.cli.mailing import choose, outlined, shown, table, talk_of_silence
from coterie.cli.nouns import Noun
from coterie.cli.progress import Progress
from coterie.cli.purging import Purge
from coterie.cli.showing import plain, tell
from coterie.entities.calls.by_name_client import Untyped

if TYPE_CHECKING:
    from coterie.cli.asking import Asking
    from coterie.entities.persisted.api import MessageInfo

_RETRY_MOST = 10_000
"""Messages that one command runs again: they come at once, and those after them with the next."""
_filter = click.option("--filter", "text", default="", metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')


@click.group(cls=Noun)
def command() -> None:
    """Stored calls: what waits, what was given up.

    \b
    Example:
      coterie messages list --state dead --url postgresql://app@db.internal/app
    """


@command.command("list")
@click.option("--state", type=click.Choice(STATES), help="Only those (default: all that are not done).")
@_filter
@click.option("--limit", type=click.IntRange(1, 10_000), default=100, show_default=True, help="How many at most.")
@click.option("--after", metavar="ID", help="Only those behind this one: the last one of the list before.")
@asks
async def list_some(asking: Asking, *, state: str | None, text: str, limit: int, after: str | None) -> None:
    """Messages, the oldest first.

    \b
    Example:
      coterie messages list --state dead --filter "type:Account error:Timeout"
    """
    chosen = parse(text, state=state)
    found = await choose(asking, chosen, limit=limit, after=after)
    talk_of_silence(found)
    asking.answer(
        [outlined(each, found) for each in found.messages],
        lambda: f"{asking.where}\n\n{table(asking.screen, found)}",
    )
    if len(found.messages) == limit:
        which = f' --filter "{chosen}"' if str(chosen) else ""
        tell(f"more: coterie messages list{which} --after {found.messages[-1].id}", err=True)


@command.command()
@click.argument("id")
@asks
async def show(asking: Asking, id: str) -> None:
    """One message: its payload, and each attempt that failed.

    \b
    Example:
      coterie messages show 019a8f0e6c5b00001f2e3d4c5b6a7988 --json
    """
    message = await asking.cluster.messages.show(id)
    at_work = await Untyped(asking.here).running() if message.status == "pending" else None
    running = {} if at_work is None else at_work.messages
    now, view = await asking.here.storage.now(), await asking.here.storage.view()
    state = state_of(message, now=now, running=running)
    asking.answer(
        {**plain(message), "state": state},
        lambda: f"{asking.where}\n\n{shown(asking.screen, message, view, state=state, now=now)}",
    )


@command.command()
@click.argument("ids", nargs=-1, metavar="[ID]…")
@_filter
@acts
@asks
async def retry(asking: Asking, ids: tuple[str, ...], *, text: str, yes: bool, dry_run: bool) -> int | None:
    """Let dead messages run again, now and with all their attempts.

    \b
    Example:
      coterie messages retry --filter "type:Account error:Timeout" --yes
    """
    if bool(ids) == bool(text):
        refuse("which messages?", hint=f'give ids, or --filter "{EXAMPLE}"; not both', code=WRONG)
    dead = await _named(asking, ids) if ids else await _filtered(asking, text)
    if not dead:
        refuse("no dead message matches", hint="coterie messages list --state dead shows all of them")
    count = "1 dead message" if len(dead) == 1 else f"{len(dead):,} dead messages"
    what = f"{count} will run again now, with all attempts: {_summed(dead)}"
    if not confirmed(what, "run them again?", yes=yes, dry_run=dry_run):
        return None
    retried = 0
    with Progress("retrying", total=len(dead), json=asking.as_json) as progress:
        for number, each in enumerate(dead, 1):
            retried += await asking.cluster.messages.retry(each.id)
            progress.at(number)
    look = f"it: coterie messages show {dead[0].id}" if len(dead) == 1 else "them: coterie messages list --state dead"
    told = f"{counted_of(retried)} again; no command takes that back\nwhat becomes of {look}"
    asking.answer({"retried": retried, "matched": len(dead)}, told)
    return None if retried else NO


@command.command("purge")
@click.option("--filter", "text", required=True, metavar="FILTER", help=f'As in "{EXAMPLE}", also method, older.')
@acts
@asks
async def purge_some(asking: Asking, *, text: str, yes: bool, dry_run: bool) -> None:
    """Delete messages that are done or dead, in batches.

    Their keys are forgotten with them: a call with such a key that is sent again runs again.

    \b
    Example:
      coterie messages purge --filter "state:dead type:Account older:30d" --yes
    """
    chosen = parse(text)
    if chosen.state not in ("done", "dead"):
        hint = f'add state:dead or state:done, as in "{EXAMPLE}"'
        refuse("only messages that are done or dead can be purged", hint=hint, code=WRONG)
    purge = Purge(asking, chosen)
    found = await purge.count()
    if not found:
        asking.answer({"purged": 0, "filter": str(chosen)}, "no messages match: nothing to delete")
        return
    if not confirmed(f"{purge.counted} and would be deleted", "delete them?", yes=yes, dry_run=dry_run):
        return
    gone, took = await purge.run()
    many = f"{gone:,} {chosen.state} message{'' if gone == 1 else 's'}"
    told = f"purged   {many}   {took}. No command brings them back"
    asking.answer({"purged": gone, "filter": str(chosen)}, told)


async def _named(asking: Asking, ids: tuple[str, ...]) -> list[MessageInfo]:
    """Those of these messages that are dead; the others are told."""
    found = [await asking.cluster.messages.show(each) for each in dict.fromkeys(ids)]
    for each in found:
        if each.status != "dead":
            tell(f"message {each.id} is {each.status}: only dead ones are run again", err=True)
    return [each for each in found if each.status == "dead"]


async def _filtered(asking: Asking, text: str) -> list[MessageInfo]:
    chosen = parse(text if "state:" in text else f"{text} state:dead")
    if chosen.state != "dead":
        refuse(f"state is {chosen.state}, and only dead messages are run again", hint="write state:dead", code=WRONG)
    return list((await choose(asking, chosen, limit=_RETRY_MOST)).messages)


def _summed(messages: list[MessageInfo]) -> str:
    """`Account.charge 400, Report.build 2`."""
    counts: dict[str, int] = {}
    for each in messages:
        name = f"{each.entity.partition('/')[0]}.{each.method}"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(
        f"{name} {count:,}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    )
