"""Bytes between processes: fast, bounded, and closed to processes that do not belong to the cluster.

    request ─▶ in_flight ─▶ outbox ─▶ ═══ socket ═══ ─▶ protocol ─▶ requests ─▶ Handler
       ▲                                                                            │
       └── in_flight ◀─ protocol ◀─ ═══════════════════════════════ ◀─ outbox ◀─────┘

Promise:
    No byte of an unauthenticated peer reaches a decoder (INV-X1); no reply reaches another caller than its own
    (incident 39); a request runs at most once; every queue has a bound; invalid input costs no more than its own
    connection.

Read in this order: `interface` (what the packages above use); `protocol` (frames and envelopes);
`handshake`, `identity`, `credentials` and `sealed_records` (authentication); `connection` with `in_flight` (our
requests), `requests` (those of peers), `streams` and `outbox`; `peers` (one connection per peer); `tcp`, `tls` and
`listener` (sockets).
"""
