"""`coterie call`: calls an entity by name. A runner that has its class checks the arguments and makes the call."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING

import click
import msgspec

from coterie.cli.client import UNANSWERED, WRONG, ClientCommand, client_command, read_json, refuse
from coterie.cli.commands.entities import address_of
from coterie.cli.output import as_json, echo
from coterie.entities.calls.by_name_client import CallsByName
from coterie.errors import EntityNotAssigned, RunnerUnavailable, SendTimeout
from coterie.kernel.durations import to_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator


@click.command()
@click.argument("entity", metavar="TYPE/ID")
@click.argument("method")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--key", metavar="KEY", help="Idempotency key: calls with the same key run once; for persisted rpcs.")
@click.option("--no-wait", "no_wait", is_flag=True, help="Return when it is stored, or accepted by a runner.")
@click.option("--in", "delay", metavar="DURATION", help="Run it after this delay; for persisted rpcs.")
@click.option(
    "--at", metavar="INSTANT", help="Run it at this instant, as in 2026-03-29T02:30:00+02:00; for persisted rpcs."
)
@click.option("--group", metavar="GROUP", help="Ask only runners of this group (default: any that knows the type).")
@click.option("--timeout", metavar="DURATION", help="How long to wait (default: the setting call_timeout).")
@client_command
async def command(
    ctx: ClientCommand,
    entity: str,
    method: str,
    arguments: str,
    *,
    key: str | None,
    no_wait: bool,
    delay: str | None,
    at: str | None,
    group: str | None,
    timeout: str | None,
) -> None:
    """Call a method of an entity, and print its result as JSON.

    The arguments are a JSON map by the names of its parameters. Exit code 1 if it is refused or raises, 3 if no
    runner answers.

    \b
    Example:
      coterie call Account/alice deposit '{"order_id": "o-1", "cents": 5}' --key o-1
    """
    address, payload = address_of(entity), payload_of(arguments)
    due, delay_s = _when(at, delay)
    default_s = ctx.cluster.settings.call_timeout.total_seconds()
    within_s = default_s if timeout is None else to_seconds(timeout, what="--timeout")
    untyped = CallsByName(ctx.here)
    with _answered(method=f"{address}.{method}"):
        if not no_wait and due is None and delay is None:
            result = await untyped.call(address, method, payload, within_s=within_s, key=key, group=group)
            echo(as_json(result))  # the same for people: it is data
            return
        sent = await untyped.send(
            address, method, payload, within_s=within_s, key=key, at=due, delay_s=delay_s, group=group
        )
    if sent.persisted:
        echo(f"stored; to follow it: coterie messages show {sent.message_id}", err=True)
    else:
        echo("accepted by a runner; it is not persisted, and is lost if that runner is", err=True)
    ctx.answer({"message": sent.message_id, "persisted": sent.persisted}, sent.message_id)


@contextmanager
def _answered(*, method: str) -> Iterator[None]:
    """Distinguish "no runner answered" from "no" in the exit code."""
    try:
        yield
    except (RunnerUnavailable, SendTimeout, EntityNotAssigned) as error:
        problem = error.message
        if isinstance(error, RunnerUnavailable) and not error.runner:  # there was no runner to call
            problem = f"no runner answers {method}: {error.problem}"
        refuse(problem, hint=error.hint, code=UNANSWERED)


def payload_of(text: str) -> bytes:
    hint = """write them by name, quoted for the shell: '{"cents": 5}'"""
    found = read_json(text, what="the argument", hint=hint)
    if not isinstance(found, dict):
        refuse(f"the arguments are {text}, expected a map", hint=hint, code=WRONG)
    return msgspec.json.encode(found)


def _when(at: str | None, delay: str | None) -> tuple[datetime | None, float]:
    if at is not None and delay is not None:
        refuse("--at and --in are both given", hint="give one of them", code=WRONG)
    if at is None:
        return None, 0.0 if delay is None else to_seconds(delay, what="--in", allow_zero=True)
    return instant_of(at, option="--at"), 0.0


def instant_of(text: str, *, option: str) -> datetime:
    """Parse an instant with its zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        refuse(f'{option} is "{text}", which is no instant', hint="write 2026-03-29T02:30:00+02:00", code=WRONG)
    if at.tzinfo is None:
        hint = f"add a zone: {at.isoformat()}+00:00, or Z for UTC"
        refuse(f"naive datetime {text} given to {option}", hint=hint, code=WRONG)
    return at
