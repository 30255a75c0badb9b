"""The PostgreSQL engine, for servers 14 to 18.

Promises: a write that returned is committed with `synchronous_commit` on; a call that fails says what is
known; every call ends within its limit, also when the network is silent; a session in doubt is never used
again; rows are locked in key order. What would break promises is refused at start (`inspection.py`).

    callers ──▶ kv ──▶ group writer ──▶ commits ──▶ one writer session
                 └───▶ pool ─────────────────────▶ up to pool_size sessions
    ownership ───▶ locks.Dedicated ──────────────▶ one session of its own, and one more to end what blocks it

Read `sessions.py` and `connections.py` first, then `failures.py`, `folding.py` and `commits.py` (group
commit), `pool.py`, `kv.py`, for ownership `locks.py`, `ownership.py`, `ending.py`, and for the start
`storage.py`, `inspection.py`, `schema.py`. SQL lies in `sql/` and `migrations/`.
"""

from coterie.storage.postgres.connector import Limits
from coterie.storage.postgres.storage import PostgresStorage

__all__ = ["Limits", "PostgresStorage"]
