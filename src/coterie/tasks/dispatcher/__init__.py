"""What the holder of a queue's seat does: it decides which jobs start next, and on which runner.

    storage ── sweeps, refills, what is due ──▶ Lanes ──▶ Dispatcher ── one claim statement at a time ──▶ storage
    senders ── hints ─────────────────────────────┘  ▲        │
                                                     │        └── Assignment ──▶ runners
    runners ── what is over, what they can take ──▶ RunnerSlots, ClaimedJobs

Everything in memory may be wrong: the statement that claims counts for itself, and claims only what is ready, within
all limits, for a runner that is there. Jobs that memory takes for claimed, and are not, are found by a comparison with
what is stored; those that it does not know by sweeps.

Read `lanes.py` (which job is next, pure), `slots.py` (which runner takes it), `claims.py` (what runs),
`waiters.py`, then `dispatcher.py` (claims) and `upkeep.py` (all that keeps memory right).
"""
