"""What a handler raised, at the caller: declared errors as themselves, the rest as RemoteError [m10]."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.entities.calls.wire import pack_failure, read_failure
from coterie.entities.declared_errors import declared_errors
from coterie.errors import ConfigurationError, MailboxFull, RemoteError


class Overdrawn(Exception):
    pass


class FarOverdrawn(Overdrawn):
    pass


class VeryFarOverdrawn(FarOverdrawn):
    pass


class Detailed(Exception):
    def __init__(self, cents: int, needed: int) -> None:
        super().__init__(cents, needed)
        self.cents = cents / 1


class Silent(Exception):
    def __init__(self, cents: int) -> None:
        self.cents = cents


@dataclass
class Data(Exception):
    cents: int
    note: str = ""


class Reduced(Exception):
    def __init__(self, cents: int) -> None:
        super().__init__(f"only {cents} left")
        self.cents = cents

    def __reduce__(self) -> Any:
        return type(self), (self.cents,)


class Formats(Exception):
    def __init__(self, cents: int) -> None:
        super().__init__(f"only {cents} left")


class Loses(Exception):
    def __init__(self, message: str, code: int = 5) -> None:
        super().__init__(message)
        self.code = code


class Picky(Exception):
    def __init__(self, cents: Unknown) -> None:  # type: ignore[name-defined] # noqa: F821 that is the point
        super().__init__(cents / 100)


class ByKeyword(Exception):
    def __init__(self, message: str, *, code: int = 5) -> None:
        super().__init__(message)


def crossed(error: BaseException, *declared: type[Exception]) -> Exception:
    """The error as the caller gets it."""
    names = declared_errors(declared, what="Account.charge")
    return read_failure(pack_failure(error, names), names)


def raised(error: BaseException) -> BaseException:
    """The same, with a traceback."""
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.mark.parametrize(
    "error",
    [
        Overdrawn("alice has 5"),
        Overdrawn(),
        Overdrawn("alice", 5, None, ["x"], {"a": 1}),
        Detailed(5, 7),
        Silent(5),
        Data(5, "x"),
        Reduced(5),
        KeyError("x"),
        FileNotFoundError(2, "no such file"),
    ],
    ids=repr,
)
def test_a_declared_error_arrives_as_itself(error: Exception) -> None:
    again = crossed(error, type(error))
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
    assert vars(again) == vars(error)


@pytest.mark.parametrize("error", [FarOverdrawn("x"), VeryFarOverdrawn("x")])
def test_a_subclass_arrives_as_the_nearest_declared_class(error: Exception) -> None:
    assert type(crossed(error, Exception, Overdrawn, FarOverdrawn)) is FarOverdrawn
    assert type(crossed(error, Exception, Overdrawn)) is Overdrawn
    assert type(crossed(error, Exception)) is Exception


@pytest.mark.parametrize(
    "error", [Overdrawn("x"), ZeroDivisionError("x"), MailboxFull(entity="Account/bob", waiting=1)]
)
def test_an_undeclared_exception_arrives_as_a_remote_error(error: Exception) -> None:
    again = crossed(raised(error), FarOverdrawn)
    assert isinstance(again, RemoteError)
    assert again.type_name == type(error).__name__
    assert "in raised" in again.remote_traceback


def test_the_text_of_a_remote_error_can_be_read() -> None:
    again = crossed(raised(ZeroDivisionError("division by zero")))
    lines = str(again).splitlines()
    assert lines[:3] == ["ZeroDivisionError: division by zero", "", "Traceback (most recent call last):"]
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_a_remote_error_let_through_stays_what_it_was_with_both_tracebacks() -> None:
    first = crossed(raised(ZeroDivisionError("division by zero")))
    second = crossed(raised(first))
    assert isinstance(second, RemoteError)
    assert (second.type_name, second.problem) == ("ZeroDivisionError", "division by zero")
    assert second.remote_traceback.count("in raised") == 2


def test_the_traceback_begins_in_the_users_code() -> None:
    namespace: dict[str, Any] = {"__name__": "coterie.entities.host.activation", "then": lambda: 1 / 0}
    exec("def dispatch(): then()", namespace)
    try:
        namespace["dispatch"]()
    except ZeroDivisionError as error:
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next  # without this test's own frame
        again = crossed(error)
    assert isinstance(again, RemoteError)
    assert "dispatch" not in again.remote_traceback
    assert "<lambda>" in again.remote_traceback


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError


class OtherReduce(Exception):
    def __reduce__(self) -> Any:
        return print, ("code",)


class BadReduce(Exception):
    def __reduce__(self) -> Any:
        raise ValueError


@pytest.mark.parametrize(
    "error",
    [
        Unprintable(),
        Overdrawn("\ud800"),
        Overdrawn(print),
        Overdrawn(2**70),
        BadReduce(),
        OtherReduce(),
        asyncio.CancelledError(),
        SystemExit(1),
        ExceptionGroup("several", [ValueError(1), KeyError(2)]),
        RecursionError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_was_raised_gives_bytes_that_can_be_read(error: BaseException) -> None:
    again = crossed(raised(error), Overdrawn, BadReduce, OtherReduce)
    assert isinstance(again, RemoteError)
    assert again.type_name == type(error).__name__
    assert str(again)


def test_an_endless_traceback_is_cut_to_its_end() -> None:
    def deep(count: int) -> None:
        if count == 0:
            raise ValueError("x" * 100_000)
        exec("deep(count - 1)", {"deep": deep, "count": count})

    try:
        deep(200)
    except ValueError as error:
        packed = pack_failure(error, {})
    assert len(packed) < 30_000


class Another:
    """Overdrawn as another version of the program has it."""

    class Overdrawn(Exception):
        def __init__(self) -> None: ...


def test_an_error_that_the_caller_cannot_rebuild_becomes_a_remote_error_with_its_text() -> None:
    packed = pack_failure(Overdrawn("alice", 5), {"Overdrawn": Overdrawn})
    programs: list[dict[str, type[Exception]]] = [{}, {"Overdrawn": Another.Overdrawn}]
    for known in programs:
        again = read_failure(packed, known)
        assert isinstance(again, RemoteError)
        assert str(again) == "Overdrawn: ('alice', 5)"


@given(st.binary(max_size=60))
def test_whatever_arrives_becomes_an_error(data: bytes) -> None:
    assert isinstance(read_failure(data, {"Overdrawn": Overdrawn}), RemoteError | Overdrawn)


def test_no_class_is_looked_up_that_was_not_declared() -> None:
    packed = pack_failure(KeyError("x"), {"KeyError": KeyError})
    assert isinstance(read_failure(packed, {"Overdrawn": Overdrawn}), RemoteError)


@pytest.mark.parametrize("kind", [Formats, Loses, Picky, ByKeyword, MailboxFull], ids=lambda kind: kind.__name__)
def test_an_error_whose_args_cannot_rebuild_it_is_refused_at_definition(kind: type[Exception]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        declared_errors([kind], what="Account.charge")
    assert caught.value.message == (
        f"Account.charge: {kind.__name__}(*args) does not give back the error of which `args` were taken"
    )
    assert "__reduce__" in caught.value.hint


def test_a_namesake_of_a_declared_error_is_undeclared() -> None:
    assert type(crossed(Another.Overdrawn(), Overdrawn)) is RemoteError


def test_two_errors_of_one_name_are_refused() -> None:
    declared_errors([Overdrawn, Overdrawn], what="Account.charge")  # the same twice is no harm
    with pytest.raises(ConfigurationError, match=r"^Account\.charge declares two errors of the name Overdrawn, "):
        declared_errors([Overdrawn, Another.Overdrawn], what="Account.charge")


@pytest.mark.parametrize("errors", [Overdrawn, "Overdrawn", 5, [5], [int], [KeyboardInterrupt], [Overdrawn("x")]])
def test_what_is_no_list_of_exception_classes_is_refused(errors: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"^Account\.charge: errors (is|has) "):
        declared_errors(errors, what="Account.charge")
