"""What happens to a runner in a process of its own, as its starter hears of it: one JSON object per line."""

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
    """Where the address came from, and what to do about it."""
    served: str | None
    """Where probes and health are; None: nowhere."""
    moved_from: int | None
    """The port that it was to have, if that was taken."""
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
    """It leads a singleton no more."""

    runner: str
    singleton: str


class RunnerDraining(msgspec.Struct, tag="draining", frozen=True, kw_only=True):
    """It leaves."""

    runner: str
    shards: int
    """That it held when it began to leave."""
    given: int
    calls: int
    """In flight."""
    oldest_s: float
    """For how long the oldest of them has been."""
    left_s: float


class RunnerLeft(msgspec.Struct, tag="left", frozen=True, kw_only=True):
    """It has left."""

    runner: str
    shards: int
    given: int
    took_s: float
    returned: int
    """Messages that were in memory, had not begun, and are in storage for the next holder."""


Event: TypeAlias = (
    Waits | ProgramLoaded | RunnerJoined | ShardsOwned | LeadershipBegan | LeadershipEnded | RunnerDraining | RunnerLeft
)

_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode(event: Event) -> bytes:
    """As a line."""
    return msgspec.json.encode(event) + b"\n"


def decode(line: bytes) -> Event:
    """From a line."""
    return _decoder.decode(line)
