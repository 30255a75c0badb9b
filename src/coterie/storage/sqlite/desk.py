"""What one executor works on: the main database and, from its first use on, the leases beside it."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from coterie.errors import StorageReplaced
from coterie.storage import migrations
from coterie.storage.sqlite import guard, schema, transactions
from coterie.storage.sqlite.connection import open_file, open_memory
from coterie.storage.sqlite.failures import failed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import apsw

    from coterie.errors import Outcome
    from coterie.kernel.clock import Clock
    from coterie.storage.sqlite.transactions import Patience

_MIGRATIONS = "coterie.storage.sqlite.migrations.leases"


class Desk:
    """The connections of one executor.

    Args:
        main: To the main database.
        open_leases: Opens the one to the leases.
        turn: Held during each piece of work: in memory all executors share the connections.
        files: The paths that must lead to what is open; those of the leases may be added later.

    Attributes:
        closing: What `close` does.
    """

    def __init__(
        self,
        main: apsw.Connection,
        open_leases: Callable[[], apsw.Connection],
        *,
        turn: threading.Lock | None = None,
        files: list[Path] | None = None,
    ) -> None:
        self.main = main
        self.turn = turn or threading.Lock()
        self.closing = ExitStack()
        self._open_leases = open_leases
        self._leases: apsw.Connection | None = None
        self._files = [] if files is None else files

    def require_in_place(self, *, outcome: Outcome = "refused", lately: bool = False) -> None:
        """Raise `StorageReplaced` if a file was deleted, moved or replaced: what is written here is lost then.

        Asked before a piece of work, and once more after a commit before anybody is told of it ("unknown": the first
        look has found nothing). With `lately` a look of the last 10 ms will do.
        """
        for file in self._files:
            guard.require_in_place(file, outcome=outcome, lately=lately)

    @property
    def leases(self) -> apsw.Connection:
        """The connection to the leases."""
        if self._leases is None:
            self._leases = self._open_leases()
        return self._leases

    def lent(self) -> Desk:
        """The same connections for another executor, which does not close them."""
        return Desk(self.main, lambda: self.leases, turn=self.turn)

    def close(self) -> None:
        """Let go of the connections that belong to this desk."""
        with self.turn:
            self.closing.close()


def desk_of_files(main: Path, leases: Path, *, writes: bool, patience: Patience, clock: Clock) -> Desk:
    """A desk with connections of its own to two files (resolved paths); `patience` is for setting up the leases."""
    closing = ExitStack()
    files = [main]

    def open_leases() -> apsw.Connection:
        with ExitStack() as undo:
            connection = undo.enter_context(_opened(leases, writes=True))
            # Leases end with this boot of the machine at the latest: a renewal need not outlive a loss of power, so it
            # need not wait for a busy disk. The file stays whole either way.
            connection.pragma("synchronous", "NORMAL")
            prepare_leases(connection, patience=patience, clock=clock, address=str(leases))
            closing.push(undo.pop_all())
        files.append(leases)
        return connection

    desk = Desk(closing.enter_context(_opened(main, writes=writes)), open_leases, files=files)
    desk.closing = closing
    return desk


def desk_in_memory(*, patience: Patience, clock: Clock) -> Desk:
    """A desk with databases of its own, which are gone with it."""

    def open_leases() -> apsw.Connection:
        connection = open_memory()
        desk.closing.callback(connection.close)
        prepare_leases(connection, patience=patience, clock=clock, address="memory")
        return connection

    desk = Desk(open_memory(), open_leases)
    desk.closing.callback(desk.main.close)
    return desk


def prepare_leases(connection: apsw.Connection, *, patience: Patience, clock: Clock, address: str) -> None:
    """Set up or bring up to date a database of leases; whoever opens it does, since there is nothing to decide."""

    def due() -> list[migrations.Migration]:
        return migrations.pending(migrations.load(_MIGRATIONS), schema.applied(connection, address=address), None)

    doing = f"set up {address}"
    if transactions.read(connection, lambda _: due(), patience=patience, doing=doing):
        transactions.transact(
            connection, lambda _: schema.apply(connection, due(), clock=clock), patience=patience, doing=doing
        )


@contextmanager
def _opened(path: Path, *, writes: bool) -> Iterator[apsw.Connection]:
    """A connection to a file that is guarded while it is open."""
    with guard.opening():
        guard.require_in_place(path)  # else this would begin an empty file beside the one that is open
        _create_private(path)
        connection = open_file(path, writes=writes)
        try:
            held = guard.hold(path)
        except StorageReplaced:
            connection.close()
            raise
        except OSError as error:
            connection.close()
            raise failed(error, doing=f"open {path}") from error
    try:
        yield connection
    finally:
        # Both at once: the last connection that is closed takes -wal and -shm away, and who opens the file in between
        # would miss them.
        with guard.opening():
            connection.close()
            held.release()


def _create_private(path: Path) -> None:
    """Create the file for this user alone, as it will hold the cluster's secret; -wal and -shm follow its mode [X4]."""
    if path.exists():  # with the mode that somebody gave it
        return
    with suppress(OSError):  # another process is faster; or SQLite will say what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
