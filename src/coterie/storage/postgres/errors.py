"""Classifies driver errors: lost or refused, retryable or not, and their text. Pure."""

from __future__ import annotations

import re
import socket
from typing import Literal

import asyncpg

from coterie.errors import Outcome, PersistenceError

Verdict = Literal["again", "locked", "elsewhere", "refused"]

_AGAIN = {"40001", "40P01"}  # serialization failure, deadlock: the database asks for a retry
_LOCKED = {"55P03"}  # lock_timeout: another session holds the row
_ELSEWHERE = {
    "57P01",  # the server is being shut down
    "57P02",  # it crashed
    "57P03",  # it is starting up
    "25006",  # it has become read-only: a former primary
    "26000",  # the prepared statement does not exist: another session than ours answered
    "0A000",  # a cached plan no longer fits the table
}

# A retry does not help: an operator has to change something. SQLSTATE to hint.
_HOPELESS = {
    "28P01": "check the password in the url",
    "28000": "check user and access rules (pg_hba.conf) of the server",
    "3D000": "create the database first, or correct its name in the url",
    "42501": "the role may not connect to this database",
}

_HINTS = {
    "55P03": "another session holds a lock on it; pg_stat_activity shows open transactions",
    "42501": "grant select, insert, update, delete on all tables in schema coterie to the role",
    "57014": "the server is overloaded, or another session holds what it needs",
    "53300": "the server has no free connection: raise its max_connections, lower pool_size, or run fewer processes",
    "53100": "the server's disk is full: make room there; what was acknowledged is not lost",
    "25006": "the server is a standby or was made read-only; point the url to the primary",
}

DatabaseRefusal = (asyncpg.PostgresError, asyncpg.InterfaceError)
"""What the driver raises while the connection stays usable: the server refused, or a value cannot be sent."""


class Lost(Exception):
    """The connection is gone. `sent`: the statement was sent, so it may have taken effect."""

    def __init__(self, problem: str, *, sent: bool) -> None:
        super().__init__(problem)
        self.problem = problem
        self.sent = sent


def judge(error: Exception) -> Verdict:
    """How to handle a refusal: retry at once, report the lock, retry on another connection, or give up."""
    state = getattr(error, "sqlstate", None)
    if state in _AGAIN:
        return "again"
    if state in _LOCKED:
        return "locked"
    return "elsewhere" if state in _ELSEWHERE else "refused"


def refusal(error: Exception, *, doing: str) -> PersistenceError:
    """The error for a refusal by the server, which has rolled back."""
    return PersistenceError(doing=doing, problem=describe(error), outcome="refused", hint=hint_of(error))


def loss(lost: Lost, *, doing: str, outcome: Outcome) -> PersistenceError:
    """The error for a connection that is gone for good, or too late for a retry."""
    return PersistenceError(doing=doing, problem=lost.problem, outcome=outcome)


def hopeless(error: BaseException | None) -> str | None:
    """The hint for a failed connect that a retry cannot fix; None if it may."""
    if isinstance(error, asyncpg.ClientConfigurationError):
        return "correct the url"
    return _HOPELESS.get(getattr(error, "sqlstate", None) or "")


def describe(error: BaseException) -> str:
    """Describe an error for an operator."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate:
        return f"{error.args[0] if error.args else error} (SQLSTATE {error.sqlstate})"
    if isinstance(error, ConnectionRefusedError) or re.search(r"Errno (111|61)\b", str(error)):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return f"the host name cannot be resolved ({error.strerror})"
    return (str(error) or type(error).__name__).splitlines()[0]


def hint_of(error: Exception) -> str:
    """What to do about an error of the server; empty if only the error itself can say."""
    return _HINTS.get(getattr(error, "sqlstate", None) or "", "")
