"""Errors of steps, as they are stored and raised again: data only."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import msgspec
import pytest

from coterie import DeferredRejected, DeferredTimeout, MalformedMessage, RemoteError
from coterie.durable import failure


class Broke(Exception):
    def __init__(self, cents: int, *, of: str = "x") -> None:
        super().__init__(cents)
        self.cents = cents


class Picky(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class Outer:
    class Inner(ValueError):
        pass


@pytest.mark.parametrize(
    "error", [ValueError("a", 5), Broke(7), Outer.Inner("x"), KeyError("k"), OSError(2, "no"), TimeoutError()]
)
def test_an_error_comes_back_as_what_it_was(error: Exception) -> None:
    made = failure.unpack(failure.pack(error))
    assert (type(made), made.args) == (type(error), error.args)


def test_errors_of_our_own_keep_what_they_say() -> None:
    error = DeferredTimeout(unit="u", name="n", waited_s=5.0)
    made = failure.unpack(failure.pack(error))
    assert isinstance(made, DeferredTimeout)
    assert (str(made), made.waited_s) == (str(error), 5.0)
    made = failure.unpack(failure.pack(MalformedMessage(what="x", problem="y", hint="z")))
    assert isinstance(made, MalformedMessage)
    assert "z" in str(made)


class Local(Exception):
    """Stands for one that this program does not have any more."""


@pytest.mark.parametrize(
    "error", [Picky(1, 2), ValueError(object()), ValueError((1, 2)), ExceptionGroup("g", [OSError()])]
)
def test_wf_20_one_that_cannot_be_made_again_keeps_its_message(error: Exception) -> None:
    made = failure.unpack(failure.pack(error))
    assert isinstance(made, RemoteError)
    assert made.type_name == type(error).__name__
    assert str(error) in str(made)
    assert failure.text_of(failure.pack(error)).startswith(type(error).__name__)


def test_one_whose_class_is_gone_keeps_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    data = failure.pack(Local("hello"))
    monkeypatch.delattr(sys.modules[__name__], "Local")
    made = failure.unpack(data)
    assert isinstance(made, RemoteError)
    assert "hello" in str(made)


@pytest.mark.parametrize(
    ("module", "name"), [("os", "system"), ("builtins", "eval"), ("builtins", "SystemExit"), ("nowhere", "X"), ("", "")]
)
def test_only_exceptions_that_are_loaded_are_made(module: str, name: str) -> None:
    """Whoever writes into the tables must not get anything called."""
    data = msgspec.msgpack.encode([module, name, ["echo"], "text", None])
    assert isinstance(failure.unpack(data), RemoteError)


def test_a_long_or_odd_text_is_cut() -> None:
    for error in (ValueError("x" * 100_000), ValueError("nul\x00 \ud800")):
        text = failure.text_of(failure.pack(error))
        assert len(text) < 5_000
        text.encode()
        assert "\x00" not in text


def test_a_cancellation_can_be_told_about() -> None:
    made: Any = failure.unpack(failure.pack(asyncio.CancelledError("x")))
    assert isinstance(made, Exception)


@pytest.mark.parametrize("kind", ["own", "plain"])
def test_of_an_error_that_is_too_large_its_text_is_stored(kind: str) -> None:
    large = "x" * 100_000
    error = DeferredRejected(unit="u", name="n", problem=large) if kind == "own" else ValueError(large)
    data = failure.pack(error)
    assert len(data) < 5_000
    found = failure.unpack(data)
    assert isinstance(found, RemoteError)
    assert "xxx" in str(found)
    assert failure.text_of(data).startswith(type(error).__name__)


def test_of_our_own_error_with_facts_that_are_no_data_the_text_is_stored() -> None:
    error = MalformedMessage(what=object(), problem="y")  # type: ignore[arg-type] # of a test

    found = failure.unpack(failure.pack(error))
    assert str(error) in str(found)
