"""Crons: named jobs that run on a calendar, once per tick in the whole cluster.

This much of the room is pure: when a schedule is due, and what happens to the ticks that are.

    text ─▶ fields ─▶ labels (what clocks show) ─▶ instants (UTC, by a zone) ─▶ ticks: run, skipped, waiting
           or an interval ────────────────────────────▲

Promise:
    C1  A schedule is a set of instants, and everything here speaks of that one set: next, previous, between, count,
        matches. It is the set that looking at every second finds, in every zone and across every change of its clocks.
    C3  What is skipped has a reason, and what is caught up with has a bound.

Invariants:
    INV-C2  each tick gets exactly one verdict: what a look decides is the beginning of what is due, without gap
    INV-C3  `previous(at) < at < next_after(at)`; a date that never comes is refused when it is defined
    INV-C4  of an outage however long, at most so many ticks run, in order

Read in this order: `fields` and `expression` (what users write), `calendar` (labels), `zones` and `instants` (labels
where clocks change), `schedule` (all of it together), `words` and `preview` (for people), `ticks` (what happens to what
is due).
"""
