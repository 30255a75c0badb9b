"""The PostgreSQL engine, for servers 14 to 18.

Promises: a write that returned is committed with `synchronous_commit` on; a call that fails says what is
known; every call ends within its limit, also when the network is silent; a session in doubt is never used
again; rows are locked in key order. A server that would break promises is refused at start (`server/`).

    callers ──▶ kv ──▶ group commit ──▶ writer ──▶ one writer session
                 └───▶ pool ─────────────────────▶ up to pool_size sessions
    ownership ───▶ lease_session.LeaseSession ───▶ one dedicated session, and one more to terminate what blocks it

Read `session.py` and `connector.py` first, with `session_registry.py` (this process's sessions at the server) and
`errors.py`; then `batch/` and `writer.py` (group commit), `pool.py`, `store.py` (the base of the stores), `kv.py`; for
ownership `lease_session.py` and `ownership.py`; for the start `storage.py`, `server/`.
`user_sql.py` runs handlers' own SQL. `audit.py` reads rows for `coterie check`, `instants.py` dates that Python cannot
express. SQL is in `sql/` and `migrations/`.
"""

from coterie.storage.postgres.connector import ConnectionLimits
from coterie.storage.postgres.storage import PostgresStorage

__all__ = ["ConnectionLimits", "PostgresStorage"]
