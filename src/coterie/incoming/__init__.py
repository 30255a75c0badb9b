"""Incoming work: calls and starts of workflows that SQL has written, checked and moved to where all others are [O2].

    select coterie.send(…) ──▶ a row of `incoming`, in the transaction of whoever wrote it
                                    │  read every 200 ms while there are any, else each second
                                    ▼
    seat incoming:<group> ──▶ checked by the types of this program ──▶ a message, or a run, in one fenced commit
                                    │
                                    └── it does not fit: a dead message with the reason

SQL can make neither the number of a shard nor the encoding of arguments, so a runner does. Each group of shards has a
seat for it, whose definition names the group's types: the newest program holds it, as with crons [M8]. A row of a type
that the holder does not have waits, is reported by health, and holds up no other.

Read in this order: `check` (a row becomes a message or a run), `mover` (the loop on a seat), `registry` (the seats).
"""
