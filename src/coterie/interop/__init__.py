"""Programs that are not asyncio from top to bottom, for which the cluster is one library among others.

`loop_thread`  the event loop of a blocking program, in a thread of its own, and the calls that threads make on it
`sync`         the methods of `Cluster` without await: what `with cluster.sync() as c:` gives

Promises: a blocking program has one such thread, however many threads use it and however many clusters it has; a forked
child starts its own, and touches nothing of its parent's; the thread never keeps the interpreter from ending.
"""
