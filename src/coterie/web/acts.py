"""The routes that change something: each says first what it will do to how many, and leaves a record of who did it.

Every act is a POST of JSON, from the page itself: a request needs the access `act`, the same origin, and the token that
`/api/session` gives to the page, so that no page of another site can send one. With `?preview=1` nothing is done.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from coterie.cron.api import Crons
from coterie.entities.persisted.api import Messages
from coterie.entities.persisted.edit import send_edited
from coterie.errors import CoterieError
from coterie.kernel.ids import EntityAddress
from coterie.kernel.text import require_text, visible
from coterie.observe import message_filter
from coterie.singletons.api import Singletons
from coterie.storage.contracts.activity import Act
from coterie.storage.contracts.messages import MessageFilter
from coterie.web import job_acts, run_acts
from coterie.web.access import access_of, is_same_origin, require_read
from coterie.web.act_plan import ActBody, Done, Plan, counted
from coterie.web.details import address_of, filter_of, limit_of
from coterie.web.responses import HttpRefusal, status_of
from coterie.workflows.api import settle
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from starlette.requests import Request

    from coterie.client import Client
    from coterie.entities.persisted.api import MessageInfo
    from coterie.storage.contracts.units import UnitRow
    from coterie.web.cluster_view import WebView

log = logging.getLogger("coterie")

BODY_MOST_BYTES = 256 * 1024
WITHIN_S = 30.0
"""Time limit of one act."""
MESSAGES_MOST = 1_000
"""Messages that one act retries or deletes; another one does the rest."""


class CronBody(ActBody):
    """A cron by its name."""

    cron: str


class MessagesBody(ActBody):
    """Messages by their ids, or by a filter as `coterie messages` takes it."""

    ids: list[str] | UnsetType = UNSET
    filter: dict[str, Any] | UnsetType = UNSET


class EditBody(ActBody):
    """A dead message, and the arguments that it should have had."""

    id: str
    arguments: dict[str, Any]


class SingletonBody(ActBody):
    """A singleton by its name."""

    singleton: str


class RunnerBody(ActBody):
    """A runner by its id or name."""

    runner: str


class WorkflowBody(ActBody):
    """A run of a workflow."""

    workflow: str
    id: str


class ResolveBody(ActBody):
    """A deferred by its token, and its value."""

    token: str
    value: Any


class EntityBody(ActBody):
    """An entity."""

    type: str
    id: str


class Acts:
    """The handlers.

    Args:
        web_view: What they act on.
        token: The token that each request has in its header `x-coterie-act`.
    """

    def __init__(self, web_view: WebView, *, token: str) -> None:
        self._web_view = web_view
        self._token = token
        self.plans: Mapping[str, tuple[type[ActBody], Callable[[Client, Any], Awaitable[Plan]]]] = {
            "trigger": (CronBody, trigger),
            "pause": (CronBody, pause),
            "resume": (CronBody, resume),
            "retry": (MessagesBody, self._retry),
            "purge": (MessagesBody, self._purge),
            "edit": (EditBody, self._edit),
            "resign": (SingletonBody, resign),
            "drain": (RunnerBody, drain),
            "interrupt": (WorkflowBody, interrupt),
            "resume-workflow": (WorkflowBody, resume_workflow),
            "resolve": (ResolveBody, resolve),
            "reset": (EntityBody, reset),
            **run_acts.plans(),
            **job_acts.plans(web_view),
        }

    def routes(self) -> list[Route]:
        """The routes of all acts, and of their record."""
        return [
            Route("/api/acts/{act}", self.act, methods=["POST"]),
            Route("/api/activity", self.activity),
        ]

    async def act(self, request: Request) -> Response:
        """Do something, or say what it would do."""
        name: str = request.path_params["act"]
        _require_act(request, self._token)
        if name not in self.plans:
            raise HttpRefusal(404, f"there is no act {name[:40]!r}", f"there are {', '.join(self.plans)}")
        kind, plan = self.plans[name]
        body = _decoded(kind, await _body(request))
        here = self._web_view.here()
        async with asyncio.timeout(WITHIN_S):
            planned = await _found(plan(here, body))
        if request.query_params.get("preview"):
            return JSONResponse({"will": planned.will, "count": planned.count})
        result = ""
        try:
            async with asyncio.timeout(WITHIN_S):
                done = await _found(planned.do())
            result = done.text
        except HttpRefusal as error:
            result = f"refused: {error.detail}"
            raise
        except TimeoutError:
            result = f"not over after {WITHIN_S:g}s: a part may be done"
            raise HttpRefusal(503, f"{name} is {result}", "look what has changed, then repeat it") from None
        finally:
            if result:
                await self._record(here, request, name, planned.what, result)
        return JSONResponse({"done": done.text, "count": done.count})

    async def activity(self, request: Request) -> Response:
        """The record of acts, the newest first."""
        require_read(request)
        before, most = _whole(request, "before"), limit_of(request)
        rows = await self._web_view.here().storage.activity.list(before=before, most=most + 1)
        told = [
            {
                "id": str(row.id),
                "at": row.at,
                "who": row.who,
                "from": row.origin,
                "act": row.act,
                "what": row.what,
                "result": row.result,
            }
            for row in rows[:most]
        ]
        found = {"rows": told, "more": len(rows) > most}
        return Response(msgspec.json.encode(found), media_type="application/json")

    async def _record(self, here: Client, request: Request, name: str, what: str, result: str) -> None:
        """Record an act, in the log and in the database."""
        who, origin = _who(request), "unknown" if request.client is None else request.client.host
        log.warning("%s by %s from %s: %s: %s", name, visible(who), origin, visible(what), visible(result))
        await here.record(Act(who=who, origin=origin, act=name, what=what, result=result))

    # Messages

    async def _retry(self, here: Client, body: MessagesBody) -> Plan:
        """Let dead messages run again, with all their attempts."""
        found = await self._chosen(here, body, ended=("dead",))
        told = counted(len(found), "dead message")

        async def do() -> Done:
            messages = _messages(here)
            retried = sum([await messages.retry(each.id) for each in found])
            return Done(f"{counted(retried, 'dead message')} of {_summed(found)} run again", retried)

        will = f"retries {told} of {_summed(found)}" if found else "retries nothing: no dead message matches"
        return Plan(_subject(found), will + _rest(found), len(found), do)

    async def _purge(self, here: Client, body: MessagesBody) -> Plan:
        """Delete messages that have ended."""
        found = await self._chosen(here, body, ended=("dead", "done"))

        async def do() -> Done:
            gone = 0
            for status in ("dead", "done"):
                ids = [str(each.id) for each in found if each.status == status]
                gone += await here.storage.messages.discard(ids, status) if ids else 0
            return Done(f"{counted(gone, 'message')} of {_summed(found)} deleted", gone)

        told = counted(len(found), "message")
        will = f"deletes {told} of {_summed(found)} for good" if found else "deletes nothing: no message matches"
        return Plan(_subject(found), will + _rest(found), len(found), do)

    async def _chosen(self, here: Client, body: MessagesBody, *, ended: Sequence[str]) -> list[MessageInfo]:
        if isinstance(body.ids, UnsetType) is isinstance(body.filter, UnsetType):
            raise HttpRefusal(400, "which messages?", 'give "ids" or a "filter", not both')
        if not isinstance(body.ids, UnsetType):
            ids = dict.fromkeys(body.ids)
            if len(ids) > MESSAGES_MOST:
                raise HttpRefusal(400, f"{len(ids)} ids are too many", f"give {MESSAGES_MOST} at most")
            rows = [await _messages(here).show(each) for each in ids]
            return [each for each in rows if each.status in ended]
        assert not isinstance(body.filter, UnsetType), "one of the two is given"
        given = {"state": "dead", **body.filter}
        if given["state"] not in ended:
            raise HttpRefusal(400, f"state is {given['state']!r}", f"only messages that are {' or '.join(ended)}")
        chosen = filter_of(given, texts=not self._web_view.redacted)
        return list((await message_filter.choose(here, chosen, limit=MESSAGES_MOST)).messages)

    async def _edit(self, here: Client, body: EditBody) -> Plan:
        """Send a dead message's call again with other arguments, as a new message. The dead one stays."""
        if self._web_view.redacted:
            raise HttpRefusal(403, "arguments are hidden by the setting redact", "retry sends them as they are")
        dead = await _messages(here).show(body.id)
        if dead.status != "dead":
            raise HttpRefusal(409, f"message {dead.id} is {dead.status}", "only dead messages are sent anew")
        what = f"{dead.entity}.{dead.method}"

        async def do() -> Done:
            arguments = msgspec.json.encode(body.arguments)
            sent = await send_edited(here, dead, arguments, within_s=WITHIN_S / 2)
            return Done(f"{what} is sent as message {sent}; message {dead.id} stays dead until it is purged")

        will = f"sends {what} with these arguments as a new message; the dead one stays until it is purged"
        return Plan(f"message {dead.id}", will, 1, do)


# ── crons ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def trigger(here: Client, body: CronBody) -> Plan:
    """Run a cron once more, now."""
    await _crons(here).get(body.cron)

    async def do() -> Done:
        tick = await _crons(here).trigger(body.cron)
        return Done(f"{body.cron} runs once, as the tick {tick.scheduled_at:%Y-%m-%dT%H:%M:%SZ}")

    return Plan(f"cron {body.cron}", f"runs {body.cron} once now, outside its schedule", 1, do)


async def pause(here: Client, body: CronBody) -> Plan:
    """Start no more ticks of a cron."""
    info = await _crons(here).get(body.cron)

    async def do() -> Done:
        changed = await _crons(here).pause(body.cron)
        return Done(f"{body.cron} is paused" if changed else f"{body.cron} was paused already", int(changed))

    is_new = info.paused_at is None
    will = f"starts no ticks of {body.cron} until it is resumed" if is_new else f"nothing: {body.cron} is paused"
    return Plan(f"cron {body.cron}", will, int(is_new), do)


async def resume(here: Client, body: CronBody) -> Plan:
    """Let a cron run again."""
    info = await _crons(here).get(body.cron)

    async def do() -> Done:
        changed = await _crons(here).resume(body.cron)
        return Done(f"{body.cron} runs again" if changed else f"{body.cron} was not paused", int(changed))

    is_new = info.paused_at is not None
    will = f"lets {body.cron} run again from its next tick on" if is_new else f"nothing: {body.cron} is not paused"
    return Plan(f"cron {body.cron}", will, int(is_new), do)


def _crons(here: Client) -> Crons:
    return Crons(lambda: here, dict)


# ── singletons and runners ──────────────────────────────────────────────────────────────────────────────────────


async def resign(here: Client, body: SingletonBody) -> Plan:
    """Have the leader of a singleton give it up."""
    settings, name = here.settings, body.singleton
    singletons = Singletons(
        lambda: here, {}, heartbeat_s=settings.heartbeat.total_seconds(), staleness=settings.staleness
    )
    info = await singletons.get(name)

    async def do() -> Done:
        try:
            leader = await singletons.resign(name)
        except TimeoutError:
            hint = "it was given up all the same"
            raise HttpRefusal(503, f"no runner has taken over {name} within 10s", hint) from None
        return Done(f"{leader} leads {name} now, {info.leader or 'nobody'} did")

    holder = "nobody leads it now" if info.leader is None else f"{info.leader}, epoch {info.epoch}, gives it up"
    return Plan(f"singleton {name}", f"{name} will be led anew, by another runner if there is one: {holder}", 1, do)


async def drain(here: Client, body: RunnerBody) -> Plan:
    """Have a runner give up all its seats."""
    view = await here.storage.view()
    found = [row for row in view.runners if body.runner in (row.id, row.name)]
    if len(found) != 1:
        names = ", ".join(sorted(row.name for row in view.runners))
        problem = f"several runners are called {body.runner}" if found else f"there is no runner {body.runner}"
        raise HttpRefusal(409 if found else 404, problem, "give its id" if found else f"there are {names or 'none'}")
    (row,) = found
    seats = sum(seat.holder == row.id for seat in view.seats)
    others = sum(each.id != row.id and not each.leaving for each in view.runners)

    async def do() -> Done:
        await here.drain(row.id)
        return Done(f"{row.name} gives up {counted(seats, 'seat')}, and takes nothing until it is started again", seats)

    to = f"to {counted(others, 'other runner')}" if others else "with no other runner to take over"
    return Plan(f"runner {row.name}", f"{row.name} will give up {counted(seats, 'seat')} {to}", seats, do)


# ── workflows ───────────────────────────────────────────────────────────────────────────────────────────────────


async def interrupt(here: Client, body: WorkflowBody) -> Plan:
    """Have a run end, and undo what it has done."""
    row = await _going_on(here, body)

    async def do() -> Done:
        await _hint(here, await here.storage.units.interrupt(row.unit))
        return Done(f"{row.name}/{row.id} is asked to end")

    done = f"{row.status}, {counted(row.steps, 'step')} done"
    will = f"{row.name}/{row.id} ({done}) will be interrupted, and undo what it has done"
    return Plan(f"workflow {row.name}/{row.id}", will, 1, do)


async def resume_workflow(here: Client, body: WorkflowBody) -> Plan:
    """Have a suspended run look whether it can go on."""
    row = await _going_on(here, body)

    async def do() -> Done:
        await _hint(here, await here.storage.units.resume(row.unit))
        return Done(f"{row.name}/{row.id} looks whether it can go on")

    will = f"{row.name}/{row.id} ({row.status}) will look now whether it can go on"
    return Plan(f"workflow {row.name}/{row.id}", will, 1, do)


async def resolve(here: Client, body: ResolveBody) -> Plan:
    """Give a deferred its value."""
    found = here.tokens.read(body.token)
    run = found.unit.partition(":")[2]

    async def do() -> Done:
        await settle(here, body.token, value=body.value)
        return Done(f'deferred "{found.name}" of {run} has its value')

    will = f'deferred "{found.name}" of {run} will have this value, for good'
    return Plan(f"deferred {found.name} of {run}", will, 1, do)


async def _going_on(here: Client, body: WorkflowBody) -> UnitRow:
    name, id_ = require_text(body.workflow, what="workflow"), require_text(body.id, what="id")
    row = await here.storage.units.get(unit_of(name, id_))
    if row is None:
        raise HttpRefusal(404, f"there is no run {name}/{id_}, or none any more")
    if row.ended_at is not None:
        raise HttpRefusal(409, f"{name}/{id_} is over: {row.status}")
    return row


async def _hint(here: Client, row: UnitRow | None) -> None:
    """Wake the holder of the seat."""
    if row is None:
        raise HttpRefusal(404, "the run is gone meanwhile")
    await here.wake(row.seat, about=row.unit, fresh=True)


# ── entities and messages ───────────────────────────────────────────────────────────────────────────────────────


async def reset(here: Client, body: EntityBody) -> Plan:
    """Let an entity's stuck messages run again."""
    address = address_of(require_text(body.type, what="type"), require_text(body.id, what="id"))
    dead = await here.storage.messages.count(_of(address, "dead"), most=MESSAGES_MOST)
    pending = await here.storage.messages.count(_of(address, "pending"), most=MESSAGES_MOST)

    async def do() -> Done:
        revived = await here.storage.messages.revive(entity_type=address.type, entity_id=address.id)
        return Done(f"{counted(revived, 'dead message')} of {address} run again", revived)

    will = f"{counted(dead, 'dead message')} of {address} will run again"
    rest = "what waits for another attempt will not wait; its state stays"
    return Plan(f"entity {address}", f"{will}, and {rest}", dead + pending, do)


def _of(address: EntityAddress, status: Any) -> MessageFilter:
    return MessageFilter(status=status, entity_type=address.type, entity_id=address.id)


def _messages(here: Client) -> Messages:
    return Messages(lambda: here.storage.messages, hint=here.calling.persisted.hint)


def _summed(found: Sequence[MessageInfo]) -> str:
    """`Account.charge`, or `Account.charge and 2 other methods`."""
    counts = Counter(f"{EntityAddress.parse(each.entity).type}.{each.method}" for each in found)
    names = [name for name, _ in counts.most_common()]
    return names[0] + (f" and {counted(len(names) - 1, 'other method')}" if names[1:] else "") if names else "nothing"


def _subject(found: Sequence[MessageInfo]) -> str:
    return f"message {found[0].id}" if len(found) == 1 else f"{counted(len(found), 'message')} of {_summed(found)}"


def _rest(found: Sequence[MessageInfo]) -> str:
    return "; there may be more: repeat it for them" if len(found) == MESSAGES_MOST else ""


# ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────


def _require_act(request: Request, token: str) -> None:
    """Refuse a request that may not act, or that the page has not sent."""
    require_read(request)
    if access_of(request) != "act":
        raise HttpRefusal(403, "this page may only be read", "see the setting web, or act with the coterie command")
    if not is_same_origin(request):
        raise HttpRefusal(403, "this was not sent by the page", "scripts use the coterie command")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise HttpRefusal(415, "the content type is not application/json")
    given = request.headers.get("x-coterie-act", "")
    if not hmac.compare_digest(given.encode("utf-8", "replace"), token.encode()):
        raise HttpRefusal(403, "the token of the page is of another process", "reload the page", renew=True)


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > BODY_MOST_BYTES:
            raise HttpRefusal(413, f"the body is larger than {BODY_MOST_BYTES:,} bytes", "use the coterie command")
    return body


def _decoded(kind: type[ActBody], body: bytes) -> ActBody:
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise HttpRefusal(400, f"the body cannot be read: {error}", f"{kind.__doc__}") from None


async def _found(work: Awaitable[Any]) -> Any:
    """Await a part of an act; an unknown name is a 404, other errors keep their status."""
    try:
        return await work
    except CoterieError as error:
        raise HttpRefusal(status_of(error), error.message, error.hint) from error
    except ValueError as error:
        raise HttpRefusal(404, str(error)) from None


def _who(request: Request) -> str:
    """The user that the application knows, else how the request has proved that it may act."""
    user = request.scope.get("user")
    if user is not None and getattr(user, "is_authenticated", False):
        return str(getattr(user, "display_name", "") or "an authenticated user")
    return "http_token" if "authorization" in request.headers else "this machine"


def _whole(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > 18:
        raise HttpRefusal(400, f"{name} is {given[:20]!r}", "give a whole number")
    return int(given)
