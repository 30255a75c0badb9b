"""Values and policies without I/O: what every other room is made of.

`clock` and `chance` are two of the four doors to the world (the others are storage and transport): all time and
all randomness comes through them. `service` is the one lifecycle. The rest are plain values and pure policies:
`durations`, `addresses`, `snowflakes`, `retry`, `codec`, `context`. `driving` goes on with coroutines that were begun
elsewhere. `metrics` is how things are counted, `meters` what;
`tracing` is the one door to OpenTelemetry's spans.
"""
