"""Steps: durable work inside of a unit, which whoever holds the seat next goes on with.

    unit of a leader ┐
    tick of a cron   ├─▶ step, sleep, deferred ─▶ a place in a branch ─▶ stored there? ─▶ yes: what is stored
    workflow         ┘                                                        └─ no: run, or wait; store it, fenced

Promise:
    S11  What a step gave is stored before it is used, and never made again: the next holder runs the body from its
         beginning, and steps that are stored return what they gave. The open one runs again.
    W2   A body that takes another way than what is stored is told so (`StepDiverged`), and nothing is changed.
    A deferred is resolved once, from any process, before or after anybody waits for it.

Not promised:
    That a step runs once: its runner may be lost after it ran and before it was stored.
    What stands between steps is run again: it must do nothing but decide, by what steps gave.

Read in this order: `position` (where a step stands), `failure` (as what an error is stored), `journal` (how results get
there and back), `token` (of deferreds), `waits` (sleeps, deferreds, what may be suspended), `steps` (their results, and
how they run), `unit` (for bodies, and the unit of a leader).
"""
