"""Crons: named jobs that run on a schedule, once per tick in the whole cluster.

    text ─▶ fields ─▶ labels (what clocks show) ─▶ instants (UTC, by a zone) ─▶ what is due ─▶ run, skipped, waiting
           or an interval ────────────────────────────▲                                         │
                                                                                                ▼
    seat granted ─▶ the stored record and open ticks are taken over ─▶ decide ─▶ claim ─▶ run ─▶ ran, or failed
                                                                       ▲         │ fenced, in one row for each tick
                                                                       └─────────┘

The seat and its epoch belong to `ownership`; what is due is decided by pure functions; the row of a tick is its claim,
its history and the proof that it ran once.

Promise:
    C1  A schedule is a set of instants, and all functions agree on that set: next, previous, between, count, matches.
        It is the set that checking every second finds, in every zone and across every change of its clocks.
    C2  Each tick is claimed once, under the fence, by the database's clock, and has one outcome: ran, failed, skipped.
        What a lost runner has begun is begun again by the next holder, as another attempt of the same tick.
    C3  What is skipped has a reason, and catching up has a bound.

Not promised:
    That a body runs once: a runner may be lost after it did all the work and before it recorded that. What it writes
    through coterie is fenced, other effects are not: use `tick.transaction()`, or `tick.verify()` before them.

Invariants:
    INV-C1  one row for each tick; its claim moves `last` forward, from what the holder knew
    INV-C2  each tick gets exactly one verdict: what is decided is the beginning of what is due, without gap
    INV-C3  `previous(at) < at < next_after(at)`; a date that never comes is refused when it is defined
    INV-C4  after an outage of any length, a bounded number of ticks runs, in order

Read in this order: `expression` (what users write), `calendar` (labels, and the instants of labels where clocks
change), `schedule` (all of it together), `explain` (in words), `decide` (what happens to due ticks), all of it
pure; then `definition` (from function to cron), `tick` (what a body sees), `run` (one tick), `seat` (from grant to
loss), `registry` (the crons of a runner), `api` (`cluster.crons`).
"""
