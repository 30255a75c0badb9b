"""The frames between a runner and the processes that run bodies for it: a length, and msgpack. Never pickles."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import Struct

from coterie.work.definition import refusal

if TYPE_CHECKING:
    from collections.abc import Callable

HEAD_BYTES: Final = 8
"""The length of a frame, before it."""


class BodyPlace(Struct, array_like=True, frozen=True):
    """Where the function of a task is found in another process."""

    module: str
    """Its name; empty: it is a program that was started as a file."""
    file: str
    """The file of the module, for one that cannot be imported by its name; empty: it has none."""


class RunBody(Struct, array_like=True, tag=1, frozen=True):
    """Run a body."""

    place: BodyPlace
    task: str
    payload: bytes
    job: str
    attempt: int
    runner: str
    key: str | None
    trace_id: str | None


class CancelBody(Struct, array_like=True, tag=2, frozen=True):
    """Let the body end: `current().cancelled`."""


class BodyProgress(Struct, array_like=True, tag=3, frozen=True):
    """How far the body is."""

    done: float
    total: float | None
    note: str


class BodyEnded(Struct, array_like=True, tag=4, frozen=True):
    """The body has ended."""

    how: Literal["returned", "declared", "snoozed", "discarded", "failed"]
    reply: bytes = b""
    """The encoded result, or the declared error as it is stored."""
    text: str = ""
    """Why it is discarded; the text of the error."""
    delay_s: float = 0.0
    type_name: str = ""
    traceback: str = ""
    is_retried: bool = True
    """Whether the policy of the task retries errors of this class."""


BodyFrame = RunBody | CancelBody | BodyProgress | BodyEnded

_encode = msgspec.msgpack.Encoder().encode
decode: Callable[[bytes], BodyFrame] = msgspec.msgpack.Decoder(BodyFrame).decode


def pack(frame: BodyFrame) -> bytes:
    """A frame with its length."""
    body = _encode(frame)
    return len(body).to_bytes(HEAD_BYTES, "big") + body


def place_of(fn: Callable[..., Any], *, what: str) -> BodyPlace:
    """Where another process finds a function.

    Raises:
        ConfigurationError: It cannot find it.
    """
    module = sys.modules.get(fn.__module__)
    file = str(getattr(module, "__file__", None) or "")
    if fn.__module__ != "__main__":
        return BodyPlace(fn.__module__, str(Path(file).resolve()) if file.endswith(".py") else "")
    spec = getattr(module, "__spec__", None)
    if spec is not None and spec.name != "__main__":  # python -m package.program
        return BodyPlace(spec.name, "")
    if not file or not Path(file).is_file():
        raise refusal(
            f'{what} has pool="process", and is defined where no other process can import it',
            hint="move it to a module, a file of its own",
        )
    return BodyPlace("", str(Path(file).resolve()))
