"""Workflows: functions whose steps are stored, so that they go on where they were, whoever is lost.

    start_workflow ─▶ a row on a shard ─▶ its holder runs it ⇄ suspended: nobody has it in memory
                                             │                   until what it waits for has come
                                             └─▶ done, failed, interrupted (what was done is undone)

The seat is that of a shard, shared with its entities; steps, sleeps and deferreds are those of `durable/`.

Promise:
    B5  A run is started once for each id, and goes on until it has ended, whoever dies: a runner that holds its shard
        and knows its function runs it. Compensations run at least once each, the last one first.
    W3  A run that is not over has a holder that runs it, or waits for something that wakes it.
    W4  No wake-up is lost: what resolves a deferred makes the run `running` in the same transaction [M11].

Not promised:
    That a run whose function no live runner knows goes on: it waits for one.

Read in this order: `definition` (what a program says), `workflow` (what a body sees), `execution` (one run in
memory), `registry` (of a runner), `api` (handles, and `cluster.workflows`).
"""
