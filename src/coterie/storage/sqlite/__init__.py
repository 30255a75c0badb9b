"""The SQLite engine: one file on one machine, shared by a few processes.

Promises: a write that returned survives `kill -9` and power loss (WAL, `synchronous=FULL`, both read back at
start); several processes on one file all make progress; what would break the locks silently is refused: a
second opener in this process [C2], a network file system, an old library, a forked child [P13].

Not promised: progress while another process is frozen inside a commit. It is named in the error [C3].

Read `storage.py` first, then `database.py` (one file and who runs its work), `transactions.py` (the write
lock), `kv.py`, `schema.py`. Around them: `executor.py` (the threads), `connection.py` (how a file is
opened), `location.py` (URL and file system), `guard.py` (what this process holds open), `locks.py` (who
holds the write lock), `failures.py` (SQLite's errors in our words).

    loop ── GroupWriter ──▶ writer thread ── one connection ──▶ file, file-wal, file-shm
         └─ reads ────────▶ reader thread ── one connection ──▶   "
         └─ dedicated() ──▶ leases thread ── one connection ──▶ file-leases
"""

from coterie.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
