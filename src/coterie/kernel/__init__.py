"""Values and policies without I/O: what every other room is made of.

`clock` and `random` are two of the four interfaces to the world (the others are storage and transport): all time and
all randomness comes through them. `service` is the one lifecycle, with `supervisor` for tasks that must not end.
Plain values and pure policies: `durations`, `deadlines`, `ids`, `retry`, `context`, `text`. `serialization/` turns
values of users into bytes. `coroutines` goes on with coroutines that were begun elsewhere, `fork_guard` tells objects
that their process was forked. `metrics` is how things are counted, and what; `spans` is the one interface to
OpenTelemetry's spans. `chaos` has the points at which the simulator may interrupt.
"""
