"""Jobs and queues in a SQLite file.

Read `rows.py` first, then `inserts.py` (those who send), `queues.py` (limits), `claims.py` (the holder of a queue's
seat), `ends.py` (those who run jobs), `jobs.py` (those who look, and the store).
"""
