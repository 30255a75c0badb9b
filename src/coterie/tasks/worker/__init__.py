"""Runs jobs on a runner: what is claimed for it begins, runs, and ends with a commit.

    assigned, or found by the sweep ──▶ waiting ──a slot is free──▶ running ──its body ends──▶ ending ──▶ over
                                           │                          │                         │
                                           │ 1 s, draining, unknown   │ cancelled: its time is  │ end, setback or
                                           ▼                          │ over, its claim gone    │ return, repeated
                                       given back                     └─────────────────────────┤ until it is known
                                                                                                ▼
                                                                                     reported to the holder

Promise:
    What runs here is claimed for this runner. An attempt is over when its body is: until then it has its slots, and no
    second one runs beside it here. Its effects (reply, messages and jobs that it sends, the user's SQL) are one commit,
    which proves the runner's row and the claim.

Frames of holders are hints: once a second the worker reads the claims in its runner's name, and believes those.

Reading order: `worker.py`, `attempt.py` (one body), `ends.py` (how its outcome is written), `slots.py`, `reports.py`,
`progress.py`, `processes.py`.
"""
