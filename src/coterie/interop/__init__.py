"""Programs for which the cluster is one library among others: without asyncio, or with transactions of their own.

`loop_thread`           the event loop of a blocking program, in a thread of its own, and the calls of threads on it
`user_connection`       connections of users, whatever their driver: what `via=` takes
`transactional_outbox`  what is sent within a transaction of the user
`sync`                  the methods of `Cluster` without await: what `with cluster.sync() as c:` gives

Promises: a blocking program has one such thread, however many threads use it and however many clusters it has; a forked
child starts its own, and touches nothing of its parent's; the thread never keeps the interpreter from ending. What is
sent within a user's transaction commits with it or not at all, and nothing else is done to the user's connection (O1).
"""
