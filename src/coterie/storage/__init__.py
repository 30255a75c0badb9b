"""The database: one interface, two engines, and the group writer that both share.

Promises: a write that returned is durable; a failed one says what is known of its outcome; concurrent writes
share transactions and never see each other's errors.

Read `interface.py` and `contracts/` first, then `group_commit.py`, `user_transaction.py` (a handler's own SQL in its
commit), `migrations.py` with `statements.py`, `unreadable_rows.py` (corrupt rows, skipped one by one), and one engine:
`sqlite/` or `postgres/`. `engines.py` chooses the engine by URL.
"""
