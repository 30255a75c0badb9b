"""The feed of the page: one sample per second of what all open streams show, sent as server-sent events.

    stream opens ──▶ `view`: a snapshot ──▶ `changes` … ──▶ `bye`: the runner stops
          ▲  the last event is at most KEPT_S old: the changes since, instead of a snapshot  │
          └──────────────────────────────────────────────────────────────────────────────────┘

Nothing is sampled while no stream is open. A stream that is read slowly gets the newest state, never a queue: what is
kept of former samples is which rows they changed, not the rows.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from coterie.errors import CoterieError
from coterie.kernel.random import Random
from coterie.observe.view import PAGES, View

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping

    from coterie.web.cluster_view import WebView

MOST = 32
"""Open streams of one process."""
SAMPLED_S = 1.0
"""Time between two samples."""
FRESH_S = 0.5
"""The age up to which facts are reused that something else has just read."""
ALIVE_S = 15.0
"""Time between two signs of life on a stream without changes: proxies close what is silent."""
KEPT_S = 60.0
"""For how long a stream that broke can go on where it was."""
_WITHIN_S = 3.0
"""Time limit of a sample."""

Path = tuple[str, ...]
"""Names a row of a list, or a field of a page: the page, perhaps a field of it, and the row or field."""
Tables = dict[Path, dict[str, Any]]
"""Rows by their names, in lists by their path; the fields of a page that are no lists, by the page."""

_KEYS: Mapping[Path, Callable[[Any], str]] = {
    ("overview", "singletons"): attrgetter("name"),
    ("overview", "crons"): attrgetter("name"),
    ("overview", "queues"): attrgetter("name"),
    ("runners",): attrgetter("id"),
    ("shards", "shards"): attrgetter("shard"),
    ("shards", "groups"): attrgetter("group"),
    ("singletons",): attrgetter("name"),
    ("cron",): attrgetter("name"),
    ("entities",): attrgetter("type"),
    ("messages", "overdue"): attrgetter("id"),
    ("jobs", "queues"): attrgetter("name"),
    ("workflows",): lambda line: f"{line.kind}/{line.name}/{line.id}",
}
"""Lists whose rows are sent one by one, by what names a row; `page/store.js` has the same ones."""

_NOTHING = object()
_encode = msgspec.json.Encoder().encode


def tables(data: Mapping[str, Any]) -> Tables:
    """The rows and fields of pages. Pure."""
    found: Tables = {}
    for page, content in data.items():
        if (page,) in _KEYS:
            found[page,] = _by_key((page,), content)
            continue
        fields = found[page,] = {}
        for name in content.__struct_fields__:
            value = getattr(content, name)
            if (page, name) in _KEYS:
                found[page, name] = _by_key((page, name), value)
            else:
                fields[name] = value
    return found


def _by_key(path: Path, lines: tuple[Any, ...]) -> dict[str, Any]:
    key = _KEYS[path]
    return {key(line): line for line in lines}


def changed(old: Tables, new: Tables) -> list[Path]:
    """The paths whose values differ, came or went. Pure."""
    paths: list[Path] = []
    for table in {**old, **new}:
        before, after = old.get(table, {}), new.get(table, {})
        paths += ((*table, name) for name, value in after.items() if before.get(name, _NOTHING) != value)
        paths += ((*table, name) for name in before if name not in after)
    return paths


class _Sample(NamedTuple):
    """What a sample has changed."""

    revision: int
    at_s: float
    paths: list[Path]


class Feed:
    """Samples the cluster for all streams of a process, while there is one.

    Args:
        web_view: What is sampled.
    """

    def __init__(self, web_view: WebView) -> None:
        self._web_view = web_view
        self._id = Random().token(6).hex()
        self._streams: dict[PageStream, None] = {}
        self._sampling: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._view: View | None = None
        self._tables: Tables = {}
        self._encoded: dict[Path, bytes] = {}
        self._since: dict[str, int] = {}  # by page, the revision from which on all of its changes are in `_samples`
        self._samples: deque[_Sample] = deque()
        self._is_stale = True  # the last sample is from before the sampling began
        self._problem: Exception | None = None

    def __len__(self) -> int:
        return len(self._streams)

    async def open(self, pages: Collection[str], last_id: str = "") -> PageStream | None:
        """Open a stream, when there is something to send; the caller closes it.

        Args:
            pages: What it shows.
            last_id: The id of the last event that the client has received, of any process.

        Returns:
            None: there are too many already.

        Raises:
            CoterieError: The cluster could not be read, or this process stops.
            TimeoutError: It could not be read in time.
        """
        if len(self._streams) >= MOST:
            return None
        stream = PageStream(self, tuple(page for page in PAGES if page in pages))
        self._streams[stream] = None
        try:
            self._start()
            async with asyncio.timeout(_WITHIN_S):
                await self._covered(stream)
        except BaseException:
            self.close(stream)
            raise
        stream.sent = self._resumed(stream, last_id)
        return stream

    def close(self, stream: PageStream) -> None:
        """Forget a stream. After the last one, nothing is sampled any more."""
        self._streams.pop(stream, None)
        self._wanted.set()

    def event(self, stream: PageStream) -> bytes | None:
        """The next event of a stream; None: it has the newest state."""
        view = self._view
        assert view is not None, "it has been opened"
        if stream.sent is None:
            data = {page: view.data[page] for page in stream.pages if page in view.data}
            event, body = b"view", _encode(msgspec.structs.replace(view, data=data))
        elif stream.sent < view.revision:
            event, body = b"changes", self._changes(stream.pages, stream.sent, view)
        else:
            return None
        stream.sent = view.revision
        return b"event: %b\nid: %b\ndata: %b\n\n" % (event, self._event_id(stream).encode(), body)

    # The sampling task

    def _start(self) -> None:
        if self._sampling is None:
            self._forget_old()
            self._is_stale, self._problem = True, None
            self._sampling = task = self._web_view.supervise_feed(self._sample_all)
            task.add_done_callback(self._ended)
        self._wanted.set()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The task was cancelled, since this process stops, or it has failed too often."""
        if self._sampling is task:
            self._sampling = None
            self._say_bye()

    def _say_bye(self) -> None:
        for stream in self._streams:
            stream.is_over = True
            stream.woken.set()

    async def _sample_all(self) -> None:
        while self._streams:
            if _server_stops():
                self._say_bye()
            self._wanted.clear()
            await self._sample()
            for stream in self._streams:
                stream.woken.set()
            await self._pause()
        self._sampling = None  # without a wait since the last look: a stream that opens later starts it again

    async def _pause(self) -> None:
        """Wait for the next sample. A stream that needs another page does not wait, unless the last sample failed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SAMPLED_S):
                while self._streams and (self._problem is not None or self._pages() <= self._since.keys()):
                    self._wanted.clear()
                    await self._wanted.wait()

    def _pages(self) -> set[str]:
        return {page for stream in self._streams for page in stream.pages}

    async def _sample(self) -> None:
        pages = self._pages()
        try:
            async with asyncio.timeout(_WITHIN_S):
                view = await self._web_view.view(pages, within_s=FRESH_S)
        except (CoterieError, TimeoutError) as error:
            self._problem = error  # what was sent stays, and the page shows how old it is
            return
        self._problem = None
        self._take(view)

    def _take(self, view: View) -> None:
        new = tables(view.data)
        paths = changed(self._tables, new)
        for path in paths:
            self._encoded.pop(path, None)
        now_s = asyncio.get_running_loop().time()
        self._since = {page: self._since.get(page, view.revision) for page in view.data}
        self._samples.append(_Sample(view.revision, now_s, paths))
        self._tables, self._view, self._is_stale = new, view, False
        while self._samples[0].at_s < now_s - KEPT_S:
            gone = self._samples.popleft().revision
            self._since = {page: max(since, gone) for page, since in self._since.items()}

    def _forget_old(self) -> None:
        """Begin anew if the last sample is too old to go on from."""
        now_s = asyncio.get_running_loop().time()
        if self._samples and self._samples[-1].at_s < now_s - KEPT_S:
            self._samples.clear()
            self._since, self._tables, self._encoded = {}, {}, {}

    # What a stream is sent

    async def _covered(self, stream: PageStream) -> None:
        """Wait until all of its pages have been sampled."""
        while self._is_stale or not set(stream.pages) <= self._since.keys():
            stream.woken.clear()
            await stream.woken.wait()
            if stream.is_over:
                self._web_view.here()  # raises why
            if self._problem is not None:
                raise self._problem

    def _resumed(self, stream: PageStream, last_id: str) -> int | None:
        """The revision that the client has; None: it needs a snapshot."""
        prefix, _, revision = last_id.rpartition(".")
        if prefix != self._event_id(stream).rpartition(".")[0] or not revision.isdecimal() or len(revision) > 15:
            return None
        begins = max(self._since[page] for page in stream.pages)
        assert self._view is not None, "its pages are sampled"
        return int(revision) if begins <= int(revision) <= self._view.revision else None

    def _event_id(self, stream: PageStream) -> str:
        """Names this process and the pages: what another stream has received is no ground to go on from."""
        shown = sum(1 << place for place, page in enumerate(PAGES) if page in stream.pages)
        return f"{self._id}.{shown:x}.{0 if self._view is None else self._view.revision}"

    def _changes(self, pages: Collection[str], since: int, view: View) -> bytes:
        later = (sample.paths for sample in self._samples if sample.revision > since)
        paths = dict.fromkeys(path for several in later for path in several if path[0] in pages)
        return _encode(
            {
                "revision": view.revision,
                "at": view.at,
                "runner": view.runner,
                "set": [msgspec.Raw(self._entry(path)) for path in paths if self._has(path)],
                "remove": [path for path in paths if not self._has(path)],
            }
        )

    def _has(self, path: Path) -> bool:
        return path[-1] in self._tables.get(path[:-1], ())

    def _entry(self, path: Path) -> bytes:
        """A row as JSON, encoded once for all streams."""
        if path not in self._encoded:
            self._encoded[path] = _encode((path, self._tables[path[:-1]][path[-1]]))
        return self._encoded[path]


class PageStream:
    """One open stream.

    Args:
        feed: The feed that it belongs to.
        pages: What it shows.
    """

    def __init__(self, feed: Feed, pages: tuple[str, ...]) -> None:
        self._feed = feed
        self.pages = pages
        self.sent: int | None = None
        """The revision that the client has; None: nothing."""
        self.is_over = False
        self.woken = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """The events, until this process stops or the client is gone."""
        try:
            yield b"retry: 1000\n\n"
            while not self.is_over:
                self.woken.clear()
                event = self._feed.event(self)
                if event is not None:
                    yield event
                elif not await self._news():
                    yield b": keep-alive\n\n"
            yield b"event: bye\ndata: {}\n\n"
        finally:
            self._feed.close(self)

    async def _news(self) -> bool:
        try:
            async with asyncio.timeout(ALIVE_S):
                await self.woken.wait()
        except TimeoutError:
            return False
        return True


def _server_stops() -> bool:
    """Whether a uvicorn that this process runs has been asked to stop.

    It waits for open responses before it ends the lifespan in which the runner stops, and tells nobody; its handler
    of signals is a method of it.
    """
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
