"""Crons: named jobs that run on a calendar, once per tick in the whole cluster.

    text ─▶ fields ─▶ labels (what clocks show) ─▶ instants (UTC, by a zone) ─▶ what is due ─▶ run, skipped, waiting
           or an interval ────────────────────────────▲                                         │
                                                                                                ▼
    seat granted ─▶ what is known, and what is not over, is taken over ─▶ look ─▶ claim ─▶ run ─▶ ran, or failed
                                                                           ▲       │ fenced, in one row for each tick
                                                                           └───────┘

The seat and its epoch are the ownership room's; what is due is decided by pure functions; the row of a tick is claim,
history and the proof that it ran once.

Promise:
    C1  A schedule is a set of instants, and everything here speaks of that one set: next, previous, between, count,
        matches. It is the set that looking at every second finds, in every zone and across every change of its clocks.
    C2  Each tick is claimed once, under the fence, by the database's clock, and has one outcome: ran, failed, skipped.
        What a lost runner has begun is begun again by the next holder, as another attempt of the same tick.
    C3  What is skipped has a reason, and what is caught up with has a bound.

Not promised:
    That a body runs once: a runner that is lost may have done all but say so. What it writes through coterie is fenced,
    what it does elsewhere is not: `tick.transaction()`, or `tick.verify()` before it.

Invariants:
    INV-C1  one row for each tick; its claim moves `last` forward, from what the holder knew
    INV-C2  each tick gets exactly one verdict: what a look decides is the beginning of what is due, without gap
    INV-C3  `previous(at) < at < next_after(at)`; a date that never comes is refused when it is defined
    INV-C4  of an outage however long, at most so many ticks run, in order

Read in this order: `expression` (what users write), `calendar` (labels, and the instants of labels where clocks
change), `schedule` (all of it together), `explain` (for people), `decide` (what happens to what is due), all of it
pure; then `definition` (what a program says), `tick` (what a body sees), `run` (one tick), `seat` (from grant to
loss), `registry` (of a runner), `api` (`cluster.crons`).
"""
