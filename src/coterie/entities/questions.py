"""What those ask a runner who do not have its program: a call by name, who lives there, what is at work. No I/O.

Everything crosses by names: later versions may add fields, with a default.
"""

from __future__ import annotations

from datetime import datetime  # noqa: TC003 msgspec reads annotations at run time
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, Struct

from coterie.entities.envelopes import Name  # noqa: TC001 as above

Most = Annotated[int, Meta(ge=0, le=10_000)]


class Invoke(Struct, tag="invoke", frozen=True, kw_only=True):
    """Call a method, or send the call, as the runner's own program would. The answer is an `Invoked`."""

    entity_type: Name
    entity_id: Name
    method: Name
    arguments: bytes
    """A JSON map by the names of its parameters."""
    key: str | None = None
    waits: bool = True
    """Whether the result is wanted; otherwise it is sent."""
    at: datetime | None = None
    delay_s: float = 0.0


class Invoked(Struct, frozen=True, kw_only=True):
    """What came of an `Invoke`."""

    result: bytes = b""
    """What it returned; empty: it was sent only, or failed."""
    failure: bytes = b""
    """What it raised, see `failures`."""
    message_id: str = ""
    """Of what was sent."""
    persisted: bool = False


class Residents(Struct, tag="residents", frozen=True, kw_only=True):
    """Who lives there, the busiest first? The answer is a `Living`."""

    entity_type: Name
    entity_id: str | None = None
    """Only this one."""
    most: Most = 1_000


class Life(Struct, frozen=True, kw_only=True):
    """An entity that lives on a runner."""

    id: str
    waiting: int
    """Calls in its mailbox."""
    mailbox: int
    """How many may wait there."""
    running: int
    method: str | None = None
    """What began last, while it runs."""
    running_s: float | None = None
    idle_s: float | None = None
    """Since when nobody has called; None: it is at work, or stays whether anybody calls or not."""
    leaves_s: float | None = None
    """When it leaves, if nobody calls."""


class Living(Struct, frozen=True, kw_only=True):
    """The answer to `Residents`."""

    lives: tuple[Life, ...]
    total: int
    """How many there are, also beyond those that were asked for."""
    group: str | None = None
    """The shard group of the type; None: the runner's program does not have it."""


class Running(Struct, tag="running", frozen=True, kw_only=True):
    """Which stored messages are at work there? The answer is an `AtWork`."""

    most: Most = 1_000


class AtWork(Struct, frozen=True, kw_only=True):
    """The answer to `Running`."""

    messages: dict[str, float]
    """By id, for how long each has run."""


Question: TypeAlias = Invoke | Residents | Running

encode = msgspec.msgpack.Encoder().encode
decode_question = msgspec.msgpack.Decoder[Question](Question).decode
decode_invoked = msgspec.msgpack.Decoder(Invoked).decode
decode_living = msgspec.msgpack.Decoder(Living).decode
decode_at_work = msgspec.msgpack.Decoder(AtWork).decode
