"""The durable key-value store: `store` is its interface, `changes` the durable side with atomic changes.

Promises: a write that returned is durable; `modify` loses no update, also when other processes change the same key.
"""
