"""Whatever must survive its owner.

Present: the key-value store (`keyvalue.py`, the face; `changes.py`, the durable side with atomic changes).

Promises: what returned is durable; `modify` loses no update, whoever else changes the same key.
"""
