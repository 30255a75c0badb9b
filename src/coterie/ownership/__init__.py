"""Ownership: which runner holds which seat, at which epoch. All other packages rely on it.

A seat has one holder at a time. The holder is a row in the database, and every durable write under the seat proves
that row in the same statement: the fence. Everything else here serves speed: to stop in time, to be replaced soon, to
hand over without a gap. If all of it failed, work would stop or be refused; it would not be wrong.

    process ──▶ registered ──▶ trusted ──────── renewed each second ────────▶ trusted …
                                  │
                                  ├─ no renewal for TTL - margin ─▶ untrusted: everything stops; owed seats are
                                  │                                 released with the next renewal, if there is one
                                  ├─ the loop was blocked ────────▶ evicts itself ─┐
                                  ├─ another runner evicted it ────────────────────┴─▶ ended: a new incarnation starts
                                  └─ leave: drain, release, offer ─▶ row deleted

The *trust window* begins at the moment before the last successful renewal was sent and lasts TTL - margin, on a clock
that counts suspension. Others may evict only after TTL by the database's clock and by their own observation, so a
runner that can measure time stops before it is replaced. One that cannot (frozen, its machine paused) is fenced.

Invariants:
    INV-F1  the epochs of a seat only grow
    INV-F2  no write of a former holder commits after its successor has been granted the seat
    INV-F4  nothing but a successful renewal prolongs trust, and that from the moment before it was sent
    INV-F5  while one runner that may hold a seat reaches the database, the seat does not stay free
    INV-F6  all runners agree on shards and lease; one that does not refuses to start

Read in this order: `seats` (what is held, and how it is acquired and released), `lease` (pure), `lease_thread` (keeps
the lease) and `runner_health` (what it measures about its runner), `assignment`, `rebalance` and `exclusion` (who
should hold what, pure), `liveness` (who is provably dead, pure) and `failure_detector` (evicts them), `admission` (who
may join) and `membership` (all of it together), `directory` and `peer_notices` (what runners tell others),
`machine_id`.
"""
