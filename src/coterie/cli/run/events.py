"""The events of a runner in a worker process, as sent to its supervisor: one JSON object per line."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from coterie.settings import LogFormat  # noqa: TC001 msgspec reads it


class ProgramLoaded(msgspec.Struct, tag="found", frozen=True, kw_only=True):
    """The program was loaded, and its runner is registered."""

    runner: str
    cluster: str
    app: str
    """`app.py: cluster`."""
    defines: str
    """`1 entity, 1 singleton, 1 cron`."""
    database: str
    database_from: str
    """The source of the URL, and how to change it."""
    served: str | None
    """The URL of the page, probes and health; None: they are not served."""
    has_page: bool = True
    """Whether there is the page: see the setting `web`."""
    moved_from: int | None
    """The requested port, if it was in use."""
    drain_s: float
    log_format: LogFormat = "text"


class Waits(msgspec.Struct, tag="waits", frozen=True, kw_only=True):
    """Its database cannot be reached, and it waits for it."""

    runner: str
    problem: str
    waited_s: float


class RunnerJoined(msgspec.Struct, tag="joined", frozen=True, kw_only=True):
    """It holds its share of the seats."""

    runner: str
    shards: int
    served: str | None


class ShardsOwned(msgspec.Struct, tag="owns", frozen=True, kw_only=True):
    """Its share of the shards has changed."""

    runner: str
    shards: int


class LeadershipBegan(msgspec.Struct, tag="leads", frozen=True, kw_only=True):
    """It has become the leader of a singleton."""

    runner: str
    singleton: str
    epoch: int


class LeadershipEnded(msgspec.Struct, tag="led", frozen=True, kw_only=True):
    """It stopped being the leader of a singleton."""

    runner: str
    singleton: str


class RunnerDraining(msgspec.Struct, tag="draining", frozen=True, kw_only=True):
    """It is draining."""

    runner: str
    shards: int
    """The number that it held when the drain began."""
    given: int
    calls: int
    """Calls in flight."""
    oldest_s: float
    """The age of the oldest of them."""
    left_s: float


class RunnerLeft(msgspec.Struct, tag="left", frozen=True, kw_only=True):
    """It has drained and deregistered."""

    runner: str
    shards: int
    given: int
    took_s: float
    returned: int
    """Messages that were in memory, had not started, and are in storage for the next holder."""


Event: TypeAlias = (
    Waits | ProgramLoaded | RunnerJoined | ShardsOwned | LeadershipBegan | LeadershipEnded | RunnerDraining | RunnerLeft
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """Encode an event as a line."""
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    """Decode a line."""
    return _decoder.decode(line)
