"""The database: one interface, two engines, and the group writer that both share.

Promises: a write that returned is durable; a failed one says what is known of its outcome; concurrent writes
share transactions by themselves and never see each other's errors.

Read `interface.py` first, then `groups.py` (group commit), `migrations.py`, and one engine: `sqlite/` or
`postgres/`. `opening.py` chooses the engine by URL.
"""
