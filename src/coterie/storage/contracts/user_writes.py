"""The storage contract of writes on a user's own connection: they commit with the user's rows, or not at all (O1).

Storage does not know the user's driver, and the connection may belong to another thread. So such a write is a
generator: it yields statements, is sent the rows of each, and returns its result. Whoever knows the connection runs it.

The end of the transaction is not reported: `ended` asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from coterie.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.storage.contracts.jobs import JobReceipt, NewJob
    from coterie.storage.contracts.messages import Message, Receipt
    from coterie.storage.contracts.units import UnitStart

T = TypeVar("T")


class Statement(NamedTuple):
    """A statement with `$1`, `$2` … for a user's connection."""

    sql: str
    values: tuple[Any, ...]


UserWrite: TypeAlias = Generator[Statement, Sequence[Sequence[Any]], T]
"""A write on a user's connection. It is sent rows as plain tuples, in the order of the statement's columns."""


class MessagesInserted(NamedTuple):
    """The result of `UserWrites.insert`.

    A receipt that is not fresh names the message that has had the key before, perhaps of the same transaction.
    """

    transaction: str | None
    """The transaction that commits them; None: nothing was stored."""
    receipts: Sequence[Receipt]
    """In the order of the messages."""


class JobsInserted(NamedTuple):
    """The result of `UserWrites.insert_jobs`, like that of `insert`."""

    transaction: str | None
    """The transaction that commits them; None: nothing was stored."""
    receipts: Sequence[JobReceipt]
    """In the order of the jobs."""


class UnitStarted(NamedTuple):
    """The result of `UserWrites.start`."""

    transaction: str | None
    """The transaction that commits it; None: there was a run of this id."""
    digest: bytes
    """That of the run that is stored."""


class UserWrites(Protocol):
    """Makes writes for users' connections, and learns what became of their transactions."""

    async def insert(self, messages: Sequence[Message]) -> UserWrite[MessagesInserted]:
        """Store messages, except those whose key exists already [M4].

        Raises:
            InvalidArgument: No connection but coterie's own reaches this database. The write itself raises it on a
                connection to another database.
        """
        ...

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> UserWrite[JobsInserted]:
        """Store jobs, except those whose key exists already. Raises as `insert` does."""
        ...

    async def start(self, unit: UnitStart) -> UserWrite[UnitStarted]:
        """Start a workflow without a parent, unless there is a run of its id. Raises as `insert` does."""
        ...

    async def ended(self, transactions: Sequence[str]) -> Mapping[str, bool]:
        """Those of these transactions that have ended: True if committed, False if rolled back or no longer known.

        One that was prepared for two-phase commit is open until that is decided.
        """
        ...


def other_database() -> InvalidArgument:
    """The error of a connection to another database than the cluster's."""
    return InvalidArgument(
        what="via",
        value="a connection to another database",
        problem="only what is in the database of the cluster can be committed with its messages",
        hint="give the connection to that database, or send without via= after your commit",
    )


class NoUserWrites:
    """The `UserWrites` of a file that coterie opens alone: a second library on it would break its locks."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def insert(self, messages: Sequence[Message]) -> UserWrite[MessagesInserted]:
        """Refuse to store messages."""
        del messages
        raise _no_user_connections(self._address)

    async def insert_jobs(self, jobs: Sequence[NewJob]) -> UserWrite[JobsInserted]:
        """Refuse to store jobs."""
        del jobs
        raise _no_user_connections(self._address)

    async def start(self, unit: UnitStart) -> UserWrite[UnitStarted]:
        """Refuse to start a workflow."""
        del unit
        raise _no_user_connections(self._address)

    async def ended(self, transactions: Sequence[str]) -> Mapping[str, bool]:
        """Report them as rolled back: none was begun here."""
        return dict.fromkeys(transactions, False)


def _no_user_connections(address: str) -> InvalidArgument:
    return InvalidArgument(
        what="via",
        value="a connection of your own",
        problem=f"the cluster's database is {address}, a SQLite file, which is opened by coterie alone",
        hint="open a transaction with `async with cluster.transaction() as tx:`, and give via=tx",
    )
