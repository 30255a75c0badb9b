"""Values and policies without I/O, used by all other packages.

`clock` and `random` are two of the four interfaces to the outside (the others are storage and transport): all time and
all randomness comes through them. `service` is the one lifecycle, with `supervisor` for tasks that must not end.
Plain values and pure policies: `durations`, `deadlines`, `ids`, `retry`, `context`, `text`. `serialization/` turns
values of users into bytes. `coroutines` resumes coroutines that were started elsewhere, `fork_guard` protects objects
after a fork. `metrics` declares and counts all metrics; `spans` is the one interface to OpenTelemetry's spans. `chaos`
has the points at which the simulator may interrupt.
"""
