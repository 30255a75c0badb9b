"""Bytes between processes: fast, bounded, and closed to whoever does not belong.

    request ─▶ in_flight ─▶ outbox ─▶ ═══ socket ═══ ─▶ protocol ─▶ requests ─▶ Handler
       ▲                                                                            │
       └── in_flight ◀─ protocol ◀─ ═══════════════════════════════ ◀─ outbox ◀─────┘

Promise:
    No byte of a stranger reaches a decoder (INV-X1); no reply reaches another caller than its own (incident 39); a
    request runs at most once; every queue has a bound; whatever arrives, nothing worse happens than that its own
    connection is closed.

In which order to read: `interface` (what the packages above use) and `routes`; `protocol` (frames and envelopes);
`handshake`, `identity`, `credentials` and `sealed_records` (who gets in); `connection` with `in_flight` (requests of
ours), `requests` (those of others), `streams` and `outbox`; `peers` (one connection per peer); `tcp`, `tls` and
`listener` (sockets).
"""
