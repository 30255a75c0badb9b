"""What can be seen of a cluster: facts, a judgement of them, and their publication.

`facts`      what one runner knows of itself, and what the database knows of everybody
`local`      puts together what this runner knows of itself
`asking`     asks the other runners, and answers them
`gathering`  collects them: from the database, from this process, from the other runners over the wire
`judge`      healthy, degraded or unhealthy, and why. Pure
`health`     what `cluster.health()` returns
`rates`      how much happens in a second, from two moments. Pure
`view`       the read model: the pages that people are shown, field by field
`lines`      builds its lines; `failing` those about what failed. Pure
`viewing`    looks, and builds the pages
`sampling`   sets the gauges of `kernel/metrics.py`, when somebody is about to read them
`prometheus` publishes all meters to whoever scrapes, `otlp` to the program's own exporter
`logs`       how log lines look, where the program has no logging of its own
"""
