"""The SQLite engine: one file on one machine, shared by a few processes.

Promises: a write that returned survives `kill -9` and power loss (WAL, `synchronous=FULL`, both read back at
start); several processes on one file all make progress; what would break the locks silently is refused: a
second opener in this process [C2], a network file system, an old library, a forked child [P13]. A runner that
freezes inside a commit is ended by whoever evicts it [C3].

Not promised: progress while another process is frozen inside a commit, if that is no runner or
`sqlite_kill_frozen` is off. It is named in the error and in the log.

Read `storage.py` first, then `database.py` (one file and the threads that work on it) with `executor.py`,
`write_lock.py` (the write lock, and who holds it), `batch.py` (writes of a group that are alike), `kv.py`,
`states.py`, `machine_ids.py`, `schema.py`. For messages, ticks and units each a file that reads (`messages.py`,
`ticks.py`, `units.py`) and one that writes (`message_writes.py`, `tick_writes.py`, `unit_writes.py`). Who holds what:
`ownership.py` (a session), `seats.py` (its statements), `witness.py` (whose process lives). Around them:
`location.py` (URL and file system), `file_guard.py` (what this process holds open), `user_sql.py` and
`user_sql_draft.py` (SQL of handlers), `audit.py` (rows for `coterie check`), `errors.py` (SQLite's errors in our
words).

    loop ── GroupWriter ──▶ writer thread ─────▶ file, file-wal, file-shm
         └─ reads ────────▶ reader thread ─────▶   "            file-leases (who leaves)
    lease keeper's loop ──▶ ownership thread ──▶   "            file-leases
                        └── flock ──────────────────────────▶   file-runner-<cluster>-<incarnation>
"""

from coterie.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
