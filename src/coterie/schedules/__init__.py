"""Schedules that a program makes at run time, and entities' timers: rows on shards, whose holders send what is due.

    put, or a handler's commit ──▶ a row on a shard ──▶ due: one read per runner, for all its shards
                                        ▲                         │
                                        │                         ▼
                                   next_at moves ◀── decided by the calendar of crons ──▶ messages, in the same commit

A schedule lives on the shard of its name, in the group of the entity that it calls; a timer on the shard of its entity.
So they need no seats of their own, and a timer is set under the very fence of its handler.

Promise:
    C9  Each instant that is due has one verdict: it is sent once, or skipped with a reason. Nothing is sent before its
        time, nor after `remove`, `pause` or a `put` of something else has returned.

Not promised:
    That a message that was sent is taken back by `remove` or by cancelling the timer: it is a persisted call from then
    on, and runs. That a `backfill` which is under way stops when its schedule is paused, removed or put anew.

Invariants:
    INV-C1  what is sent and the move of its row are one commit, of a row that nobody has changed since it was read
    INV-C2  the id of a message is made of the row's life, the kind and the instant: it cannot be stored twice

Read in this order: `timetable` (a schedule as a set of instants), `verdict` (what becomes of a row that is due), both
of them pure; then `registry` (the loop of a runner) and `api` (`cluster.schedules`).
"""
