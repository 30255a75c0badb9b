"""Workflows: functions whose steps are stored, so that they continue on another runner after a crash.

    start_workflow ─▶ a row on a shard ─▶ its holder runs it ⇄ suspended: in no runner's memory
                                             │                   until what it waits for has come
                                             └─▶ done, failed, interrupted (after its compensations)

A workflow runs on the seat of a shard, shared with entities; steps, sleeps and deferreds are those of `durable/`.

Promise:
    B5  A run is started once for each id, and continues until it has ended, whichever processes die: a runner that
        holds its shard and has its function runs it. Compensations run at least once each, the last one first.
    W3  A run that is not over is being run by a holder, or waits for something that wakes it.
    W4  No wake-up is lost: what resolves a deferred makes the run `running` in the same transaction [M11].

Not promised:
    That a run whose function no live runner has continues: it waits for one.

Read in this order: `definition` (from function to workflow), `workflow` (what a body sees), `execution` (one run in
memory), `registry` (the workflows of a runner), `api` (handles, and `cluster.workflows`).
"""
