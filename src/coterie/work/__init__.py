"""Work on seats: what entities, singletons, crons and workflows share.

    definition ─▶ registry ─▶ occupants of one runner ─▶ an occupant of one seat, from grant to loss
                                    └── services: what the runner provides to all of them

Read in this order: `definition` (checks of definitions), `registry` (definitions by name), `services`, `occupants`
(made, woken, polled and stopped), `threads` (where plain functions run), `middleware` (what runs around each attempt),
`while_held` (what is retried while the database is away), `transaction` (the user's own SQL), `tags` (by which what is
sent is found), `context` (what work says about itself), `limits` (how long user code may take to end), `pruner`
(deletes what has expired).
"""
