"""Singletons: a named function that runs on one runner at a time, with state that outlives each leader.

    seat granted ─▶ state loaded, its row marked with our epoch ─▶ on_become_leader ─▶ body
                              │                                       │               │ raises: again, with backoff
       newer than we know, or │                 raises, or hangs      │               │ returns: done, the seat is kept
       cannot be loaded       ▼                                       ▼               ▼
       the seat is released: this runner takes it no more             │   drained, resigned, or lost
                                      or not for a while ◀────────────┘               │
                                                                                      │
    seat released (or long lost) ◀─ on_lose_leadership ◀─ body ended, or abandoned ◀─ body cancelled

The seat and its epoch belong to `ownership`; this package covers what happens between grant and release.

Promise:
    S1  A body runs while its runner holds the seat. What it writes (state, stamps, transactions, keys) is written
        under the fence: nothing of a former leader is accepted, whatever it still believes.
    S2  `save` and `update` return when the state is durable. The next leader loads the last one that returned, or one
        that was being saved when the leader was lost.
    S7  Hooks run once for each gain and once for each loss while the process lives, in this order, never two at once
        in one process. `on_become_leader` runs after the former leader has lost its right to write.

Not promised:
    That a former leader has stopped when the new one begins: a frozen process cannot be notified. It is fenced; its
    effects outside of the database are not. `leader.verify()` before such an effect, and `takeover_delay`, narrow the
    gap.

Read in this order: `definition` (from function to singleton), `leader` (what a body sees), `state` (its state),
`heartbeat` (its stamps, and whether it is healthy), `leadership` (from grant to loss), `registry` (the singletons of a
runner), `api` (`cluster.singletons`).
"""
