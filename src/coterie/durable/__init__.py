"""Whatever must survive its owner.

Present: the key-value store (`keyvalue.py`, the face; `changes.py`, the durable side with atomic changes); `pruner.py`,
which deletes what need not survive any longer, of all tables.

Promises: what returned is durable; `modify` loses no update, whoever else changes the same key.
"""
