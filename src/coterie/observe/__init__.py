"""Observability of a cluster: facts, the health judged from them, and their publication.

`facts`      what one runner knows of itself, and what the database knows of all
`collect`    collects them: from the database, from this process, from the other runners over the wire
`health`     healthy, degraded or unhealthy, and why (pure); what `cluster.health()` returns
`rates`      rates per second, from two samples. Pure
`view`       the read model: the pages that people are shown, field by field
`failures`   the lines about what failed. Pure
`pages`      reads the facts and builds the pages
`details`    one thing in detail
`message_filter` which messages are meant, and their states
`gauges`     sets the gauges of `kernel/metrics.py` when they are about to be read
`otlp`       publishes them to the program's own exporter
`logs`       log formats, for programs without a logging configuration of their own
"""
