"""The SQLite engine: one file on one machine, shared by a few processes.

Promises: a write that returned survives `kill -9` and power loss (WAL, `synchronous=FULL`, both read back at
start); several processes on one file all make progress; what would break the locks silently is refused: a
second opener in this process [C2], a network file system, an old library, a forked child [P13]. A runner that
freezes inside a commit is killed by the runner that evicts it [C3].

Not promised: progress while another process is frozen inside a commit, if that is not a runner or
`sqlite_kill_frozen` is off. The error and the log name it.

Read `storage.py` first, then `database.py` (one file, how it is locked, and the threads that work on it)
with `executor.py`, `file/write_lock.py` (the holder of the lock), `store.py` (what the stores share), `kv.py`,
`states.py`, `machine_ids.py`, `schema.py`. Messages, ticks and units have a module that reads (`messages.py`,
`ticks.py`, `units.py`) and one that writes (`message_writes.py`, `tick_writes.py`, `unit_writes.py`); jobs and queues
have a package, `jobs/`. For ownership:
`ownership.py` (a session), `seats.py` (its statements), `file/witness.py` (which processes are alive). Around them:
`file/location.py` (URL and file system), `file/file_guard.py` (the files this process has open), `user_sql.py` and
`user_sql_draft.py` (handlers' own SQL), `audit.py` (rows for `coterie check`), `payloads.py` (what is encrypted anew),
`errors.py` (translates SQLite's errors).

    loop ── GroupWriter ──▶ writer thread ─────▶ file, file-wal, file-shm
         └─ reads ────────▶ reader thread ─────▶   "            file-leases (leaving runners)
    lease keeper's loop ──▶ ownership thread ──▶   "            file-leases
                        └── flock ──────────────────────────▶   file-runner-<cluster>-<incarnation>
"""

from coterie.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
