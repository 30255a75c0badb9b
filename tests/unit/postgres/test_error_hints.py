"""What an operator is told about an error of the server or the driver: each SQLSTATE that has a hint."""

from __future__ import annotations

import socket

import asyncpg
import pytest

from coterie.storage.postgres.errors import describe, hint_of, hopeless


def error(state: str, *args: str) -> asyncpg.PostgresError:
    found = asyncpg.PostgresError(*args)
    found.sqlstate = state  # type: ignore[misc] # of a test
    return found


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("55P03", "holds a lock"),
        ("42501", "grant select"),
        ("57014", "overloaded"),
        ("53300", "max_connections"),
        ("53100", "disk is full"),
        ("25006", "primary"),
    ],
)
def test_what_to_do_is_said_where_it_is_known(state: str, says: str) -> None:
    assert says in hint_of(error(state))


def test_otherwise_only_the_error_itself_can_say() -> None:
    assert hint_of(error("22001")) == hint_of(ValueError()) == ""


@pytest.mark.parametrize(
    ("problem", "hint"),
    [
        (error("28P01"), "check the password in the url"),
        (error("3D000"), "create the database first"),
        (asyncpg.ClientConfigurationError("x"), "correct the url"),
        (error("57P03"), None),
        (OSError(), None),
        (None, None),
    ],
)
def test_another_try_is_hopeless_only_where_a_person_must_change_something(
    problem: BaseException | None, hint: str | None
) -> None:
    found = hopeless(problem)
    assert found == hint if hint is None else hint in (found or "")


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (error("22001", "too long"), "too long (SQLSTATE 22001)"),
        (ConnectionRefusedError(), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed"), "connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "cannot be resolved (Name or service not known)"),
        (ValueError("first\nsecond"), "first"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_is_one_line_in_the_words_of_an_operator(problem: BaseException, says: str) -> None:
    assert describe(problem).endswith(says)
    assert "\n" not in describe(problem)
