"""Jobs and queues on PostgreSQL.

Read `sql/jobs.sql` and `sql/queues.sql` first, then `queues.py` (the holder of a queue's seat, and limits) and
`jobs.py` (all others). Inserts, ends and setbacks are in `batch/jobs.py`.
"""

from coterie.storage.postgres.jobs.jobs import PostgresJobs

__all__ = ["PostgresJobs"]
