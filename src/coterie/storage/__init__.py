"""The database: one interface, two engines, and the group writer that both share.

Promises: a write that returned is durable; a failed one says what is known of its outcome; concurrent writes
share transactions by themselves and never see each other's errors.

Read `interface.py` and `contracts/` first, then `group_commit.py`, `user_transaction.py` (SQL of handlers in the
commit), `migrations.py` with `statements.py`, `unreadable_rows.py` (rows that are left out alone), and one engine:
`sqlite/` or `postgres/`. `engines.py` chooses the engine by URL.
"""
