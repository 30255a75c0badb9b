"""The routes that show one thing in detail, or one list: all of them bounded, names in the query only."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
from starlette.responses import Response
from starlette.routing import Route

from coterie.errors import InvalidArgument
from coterie.kernel.durations import to_seconds
from coterie.kernel.ids import EntityAddress
from coterie.kernel.text import require_text
from coterie.observe import details, schedules
from coterie.observe.incoming_call import IncomingCall, find_message
from coterie.observe.jobs.filter import (
    JOB_QUALIFIERS,
    JOB_WORDS,
    ChosenJobs,
    JobOptions,
    choose_jobs,
    told_job,
    told_job_whole,
)
from coterie.observe.message_filter import STATES, MessageOptions
from coterie.web.access import access_of, require_read
from coterie.web.responses import HttpRefusal
from coterie.work.tags import NAME_MOST_BYTES, VALUE_MOST_BYTES
from coterie.workflows.definition import unit_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.requests import Request

    from coterie.storage.contracts.units import UnitRow
    from coterie.web.cluster_view import WebView

WITHIN_S = 5.0
"""Time limit of one request."""
TAG_MOST = 601
"""Characters of a tag in a filter, its name and its value."""
TAG_PATTERN = "[^=\\x00]+=[^\\x00]*"
LIST_MOST = 500
"""Rows of one list."""
_LIST = 100


class Details:
    """The handlers. Each returns what is sent as JSON.

    Args:
        web_view: What they show.
    """

    def __init__(self, web_view: WebView) -> None:
        self._web_view = web_view

    def routes(self) -> list[Route]:
        """A route for each of them."""
        handlers: Mapping[str, Callable[[Request], Awaitable[Any]]] = {
            "singleton": self.singleton,
            "cron": self.cron,
            "ticks": self.ticks,
            "shards/moves": self.moves,
            "entities": self.entities,
            "entity": self.entity,
            "messages": self.messages,
            "message": self.message,
            "jobs": self.jobs,
            "job": self.job,
            "schedules": self.schedules,
            "schedule": self.schedule,
            "workflow": self.workflow,
            "kv": self.keys,
        }
        return [Route(f"/api/{name}", _answering(handler)) for name, handler in handlers.items()]

    @property
    def _texts(self) -> bool:
        return not self._web_view.redacted

    async def singleton(self, request: Request) -> Any:
        """A singleton with its states."""
        name = _text(request, "name")
        found = await details.singleton(self._web_view.here(), await self._web_view.facts(), name, texts=self._texts)
        return found or _missing(f"singleton {name!r}")

    async def cron(self, request: Request) -> Any:
        """A cron with its next and last ticks."""
        name = _text(request, "name")
        found = await details.cron(self._web_view.here(), await self._web_view.facts(), name, texts=self._texts)
        return found or _missing(f"cron {name!r}")

    async def ticks(self, request: Request) -> Any:
        """The ticks of crons on a line of time."""
        start, end = _instant(request, "from"), _instant(request, "until")
        crons = {require_text(each, what="name") for each in request.query_params.getlist("name")}
        if "" in crons:
            raise HttpRefusal(400, "name is empty", "leave it out for all crons")
        facts = await self._web_view.facts()
        return await details.ticks(self._web_view.here(), facts, crons, start=start, end=end, texts=self._texts)

    async def moves(self, _: Request) -> Any:
        """The moves of shards of the last hour."""
        return await details.moves(self._web_view.here())

    async def entities(self, request: Request) -> Any:
        """The active entities of a type."""
        kind = _text(request, "type")
        found = await details.entities(self._web_view.here(), kind, limit=limit_of(request))
        return found or _missing(f"entity type {kind!r}")

    async def entity(self, request: Request) -> Any:
        """One entity."""
        address = address_of(_text(request, "type"), _text(request, "id"))
        found = await details.entity(self._web_view.here(), address, texts=self._texts)
        return found or _missing(f"entity {address}")

    async def messages(self, request: Request) -> Any:
        """Messages that match, the newest first."""
        names = ("type", "method", "state", "error", "key", "tag", "older")
        given = {name: request.query_params[name] for name in names if name in request.query_params}
        if "entity" in request.query_params:
            given["id"] = request.query_params["entity"]
        chosen, after = filter_of(given, texts=self._texts), request.query_params.get("after")
        here, limit = self._web_view.here(), limit_of(request)
        after = None if after is None else require_text(after, what="after")
        return await details.messages(here, chosen, limit=limit, after=after, texts=self._texts)

    async def message(self, request: Request) -> Any:
        """One message."""
        here = self._web_view.here()
        found = await find_message(here, _text(request, "id"))
        if isinstance(found, IncomingCall):
            return {"message": None, "incoming": found if self._texts else msgspec.structs.replace(found, key=None)}
        return {"message": await details.message(here, found, texts=self._texts)}

    async def jobs(self, request: Request) -> Any:
        """Jobs that match, the newest first."""
        given = {name: request.query_params[name] for name in JOB_QUALIFIERS if name in request.query_params}
        after, limit = request.query_params.get("after"), limit_of(request)
        after = None if after is None else require_text(after, what="after")
        here = self._web_view.here()
        chosen = job_filter_of(given, texts=self._texts)
        found = ChosenJobs((), more=False)
        if _may_exist(chosen.tag):
            found = await choose_jobs(here.storage.jobs, chosen, limit=limit, after=after, newest=True)
        names = {row.id: row.name for row in (await here.storage.view()).runners}
        return {"jobs": [told_job(row, names, texts=self._texts) for row in found.rows], "more": found.more}

    async def job(self, request: Request) -> Any:
        """One job."""
        here, id_ = self._web_view.here(), _text(request, "id")
        rows = await here.storage.jobs.look([id_])
        if not rows:
            return _missing(f"job {id_!r}")
        names = {row.id: row.name for row in (await here.storage.view()).runners}
        return {"job": told_job_whole(rows[0], names, texts=self._texts)}

    async def schedules(self, request: Request) -> Any:
        """Schedules whose names begin with a prefix."""
        prefix = require_text(request.query_params.get("prefix", ""), what="prefix")
        after, until = request.query_params.get("after"), _instant(request, "until")
        after = None if after is None else require_text(after, what="after")
        limit = limit_of(request)
        return await schedules.schedules(self._web_view.here(), prefix, after=after, limit=limit, until=until)

    async def schedule(self, request: Request) -> Any:
        """One schedule."""
        name = _text(request, "name")
        found = await schedules.schedule(self._web_view.here(), name, texts=self._texts)
        return found or _missing(f"schedule {name!r}")

    async def workflow(self, request: Request) -> Any:
        """A run of a workflow."""
        here, name, id_ = self._web_view.here(), _text(request, "name"), _text(request, "id")
        row = await here.storage.units.get(unit_of(name, id_)) or await self._other(name, id_)
        if row is None:
            return _missing(f"run {name}/{id_}")
        may_act = access_of(request) == "act"
        return await details.workflow(here, row, texts=self._texts, tokens=may_act)

    async def _other(self, name: str, id_: str) -> UnitRow | None:
        """Unfinished work of a leader or a tick."""
        listed = await self._web_view.here().storage.units.list(status=None, name=name, older_s=None, most=LIST_MOST)
        return next((row for row in listed if row.id == id_), None)

    async def keys(self, request: Request) -> Any:
        """Keys that begin with a prefix."""
        prefix = require_text(request.query_params.get("prefix", ""), what="prefix")
        after = request.query_params.get("after")
        after = None if after is None else require_text(after, what="after")
        here, limit = self._web_view.here(), limit_of(request)
        return await details.keys(here, prefix, after=after, limit=limit, texts=self._texts)


def _answering(handler: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        require_read(request)
        async with asyncio.timeout(WITHIN_S):
            found = await handler(request)
        return Response(msgspec.json.encode(found), media_type="application/json")

    return answer


def filter_of(given: Mapping[str, Any], *, texts: bool) -> MessageOptions:
    """The filter of messages that a request names.

    Args:
        given: Its qualifiers, as `coterie messages list --filter` takes them.
        texts: Whether it may ask for texts: answers to that tell what they are.

    Raises:
        HttpRefusal: One is unknown, or does not fit.
    """
    known = MessageOptions.__dataclass_fields__
    for name, value in given.items():
        if name not in known:
            raise HttpRefusal(400, f"unknown qualifier {name!r}", f"there are {', '.join(known)}")
        if not isinstance(value, str):
            raise HttpRefusal(400, f"{name} is no text", "write it in quotes")
        require_text(value, what=name)
    if given.get("state") not in (None, *STATES):
        raise HttpRefusal(400, f"there is no state {given['state']!r}", f"there are {', '.join(STATES)}")
    kind = given.get("type")
    if "id" in given:
        if not kind:
            raise HttpRefusal(404, "there is no entity without a type", "add type=Account")
        address_of(kind, given["id"])
    elif kind is not None and "/" in kind:
        raise HttpRefusal(404, f"there is no entity type {kind!r}", "give the id as entity=")
    if not texts and (given.keys() & {"error", "key", "tag"}):
        raise HttpRefusal(403, "error, key and tag are hidden by the setting redact", "filter by type and method")
    if "older" in given:
        to_seconds(given["older"], what="older", allow_zero=True)  # refuses what is not a duration
    chosen = MessageOptions(**given)
    try:
        _ = chosen.tag_pair
    except InvalidArgument as error:
        raise HttpRefusal(400, error.message, "write tag=order=7") from None
    return chosen


def job_filter_of(given: Mapping[str, Any], *, texts: bool) -> JobOptions:
    """The filter of jobs that a request names.

    Args:
        given: Its qualifiers, as `coterie jobs list --filter` takes them.
        texts: Whether it may ask for texts.

    Raises:
        HttpRefusal: One is unknown, or does not fit.
    """
    for name, value in given.items():
        if name not in JOB_QUALIFIERS:
            raise HttpRefusal(400, f"unknown qualifier {name!r}", f"there are {', '.join(JOB_QUALIFIERS)}")
        if not isinstance(value, str):
            raise HttpRefusal(400, f"{name} is no text", "write it in quotes")
        require_text(value, what=name)
    if given.get("state") not in (None, *JOB_WORDS):
        raise HttpRefusal(400, f"there is no state {given['state'][:40]!r}", f"there are {', '.join(JOB_WORDS)}")
    tag = given.get("tag")
    if tag is not None and (len(tag) > TAG_MOST or not re.fullmatch(TAG_PATTERN, tag)):
        raise HttpRefusal(400, "the tag cannot be read", f"write tag=order=7, with {TAG_MOST} characters at most")
    if not texts and (given.keys() & {"error", "key", "tag"}):
        raise HttpRefusal(403, "error, key and tag are hidden by the setting redact", "filter by task, queue and state")
    if "older" in given:
        to_seconds(given["older"], what="older", allow_zero=True)  # refuses what is not a duration
    return JobOptions(**given)


def _may_exist(tag: str | None) -> bool:
    """Whether there may be a tag like this: each half of it is bounded in bytes, which a schema cannot say."""
    if tag is None:
        return True
    name, _, value = tag.partition("=")
    return len(name.encode()) <= NAME_MOST_BYTES and len(value.encode()) <= VALUE_MOST_BYTES


def address_of(type: str, id: str) -> EntityAddress:
    """The address of an entity.

    Raises:
        HttpRefusal: It is none.
    """
    try:
        return EntityAddress.parse(f"{type}/{id}")
    except ValueError:
        raise HttpRefusal(404, f"there is no entity {type}/{id}", "give its type and its id") from None


def _text(request: Request, name: str) -> str:
    given = request.query_params.get(name)
    if not given:
        raise HttpRefusal(400, f"{name} is missing", f"add ?{name}=")
    return require_text(given, what=name)


def limit_of(request: Request) -> int:
    """How many rows a request wants.

    Raises:
        HttpRefusal: That is no such number.
    """
    given = request.query_params.get("limit", str(_LIST))
    if not given.isascii() or not given.isdigit() or len(given) > 6 or not 1 <= int(given) <= LIST_MOST:
        raise HttpRefusal(400, f"limit is {given[:20]!r}", f"give a whole number from 1 to {LIST_MOST}")
    return int(given)


def _instant(request: Request, name: str) -> datetime | None:
    given = request.query_params.get(name)
    if given is None:
        return None
    try:
        at = datetime.fromisoformat(given)
        return at.astimezone(UTC) if at.tzinfo is not None else _no_instant(name, given)
    except (ValueError, OverflowError):
        return _no_instant(name, given)


def _no_instant(name: str, given: str) -> datetime:
    raise HttpRefusal(400, f"{name} is {given[:40]!r}", "give an instant in UTC, as in 2026-03-01T12:00:00Z") from None


def _missing(what: str) -> Any:
    raise HttpRefusal(404, f"there is no {what}, or none any more")
