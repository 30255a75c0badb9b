"""Singletons: a named body of work that runs on one runner, with state that survives whoever leads.

    seat granted ─▶ state loaded, its row marked with our epoch ─▶ on_become_leader ─▶ body
                              │                                       │               │ raises: again, with backoff
       newer than we know, or │                 raises, or hangs      │               │ returns: done, the seat is kept
       cannot be loaded       ▼                                       ▼               ▼
       the seat is given up: this runner takes it no more             │   drained, resigned, or lost
                                      or not for a while ◀────────────┘               │
                                                                                      │
    seat given back (or long gone) ◀─ on_lose_leadership ◀─ body ended, or left behind ◀─ body cancelled

The seat and its epoch are the ownership room's; here is what happens between grant and release.

Promise:
    S1  A body runs while its runner holds the seat. What it writes (state, stamps, transactions, keys) is written
        under the fence: of a former leader nothing is accepted, whatever it still believes.
    S2  `save` and `update` return when the state is durable. The next leader loads the last one that returned, or one
        that was being saved when the leader went.
    S7  Hooks run once for each gain and once for each loss while the process lives, in this order, never two at once
        in one process. `on_become_leader` runs after the former leader has lost its right to write.

Not promised:
    That a former leader has stopped when the new one begins: a frozen process cannot be told. It is fenced; what it
    does outside of the database is not. `leader.verify()` before such an effect, and `takeover_delay`, narrow the gap.

Read in this order: `definition` (what a program says), `leader` (what a body sees), `state_row` and `state` (its
state), `heartbeat` (what it says of itself, and whether it is well), `leadership` (from grant to loss), `registry`
(of a runner), `api` (`cluster.singletons`).
"""
