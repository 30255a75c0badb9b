"""The SQLite engine: one file on one machine, shared by a few processes.

Promises: a write that returned survives `kill -9` and power loss (WAL, `synchronous=FULL`, both read back at
start); several processes on one file all make progress; what would break the locks silently is refused: a
second opener in this process [C2], a network file system, an old library, a forked child [P13]. A runner that
freezes inside a commit is ended by whoever evicts it [C3].

Not promised: progress while another process is frozen inside a commit, if that is no runner or
`sqlite_kill_frozen` is off. It is named in the error and in the log.

Read `storage.py` first, then `database.py` (one file and who runs its work), `transactions.py` (the write lock),
`kv.py`, `states.py`, `machines.py`, `schema.py`. Messages: `messages.py` (their face), `completions.py` (one write of
a group) and `together.py` (those of a group that are alike), `deliveries.py`, `records.py`. Crons: `ticks.py` (their
face), `claiming.py` (what goes through groups). Durable work: `units.py` and `stepping.py` likewise. Who holds what:
`owners.py` (opens sessions), `ownership.py` (a session), `leases.py` and `seats.py` (its statements), `witness.py`
(whose process lives), `frozen.py` (who is in the way). Around them: `executor.py` and `desk.py` (the threads and
their connections), `client.py` (how a file is opened), `location.py` (URL and file system), `guard.py` (what this
process holds open), `locks.py` (who holds the write lock), `failures.py` (SQLite's errors in our words).

    loop ── GroupWriter ──▶ writer thread ─────▶ file, file-wal, file-shm
         └─ reads ────────▶ reader thread ─────▶   "            file-leases (who leaves)
    lease keeper's loop ──▶ ownership thread ──▶   "            file-leases
                        └── flock ──────────────────────────▶   file-runner-<cluster>-<incarnation>
"""

from coterie.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
