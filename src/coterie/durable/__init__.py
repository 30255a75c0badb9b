"""Durable work: units of work whose steps are stored, so that the next holder of the seat continues them.

    unit of a leader ┐
    tick of a cron   ├─▶ step, sleep, deferred ─▶ a place in a branch ─▶ stored there? ─▶ yes: what is stored
    workflow         ┘                                                        └─ no: run, or wait; store it, fenced

Promise:
    S11  The result of a step is stored before it is used, and the step does not run again: the next holder runs the
         body from its beginning, and stored steps return their stored results. The open one runs again.
    W2   A body that diverges from what is stored gets `StepDiverged`, and nothing stored is changed.
    A deferred is resolved once, from any process, before or after the unit waits for it.

Not promised:
    That a step runs once: its runner may be lost after it ran and before it was stored.
    Code between steps runs again: it must have no effects, and depend only on the results of steps.

Read in this order: `position` (the place of a step), `failure` (how an error is stored), `journal` (how results are
stored and loaded), `token` (of deferreds), `waits` (sleeps, deferreds, when a unit may be suspended), `run_messages`
(what a run receives and publishes), `steps` (results of steps, and how steps run), `branches` (maps and races), `unit`
(the API of bodies, and the unit of a leader).
"""
