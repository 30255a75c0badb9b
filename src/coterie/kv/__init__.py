"""The durable key-value store: `store` is the users' interface, `changes` applies atomic changes on the storage.

Promises: a write that returned is durable; `modify` loses no update, also when other processes change the same key.
"""
