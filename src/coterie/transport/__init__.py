"""Bytes between processes: fast, bounded, and closed to whoever does not belong.

    request ─▶ inflight ─▶ writing ─▶ ═══ socket ═══ ─▶ frames ─▶ envelopes ─▶ answering ─▶ Handler
       ▲                                                                                    │
       └── inflight ◀─ envelopes ◀─ frames ◀─ ═══════════════════════════════ ◀─ writing ◀──┘

Promise:
    No byte of a stranger reaches a decoder (INV-X1); no reply reaches another caller than its own (incident 39); a
    request runs at most once; every queue has a bound; whatever arrives, nothing worse happens than that its own
    connection is closed.

In which order to read: `interface` (what the rooms above use); `frames` and `envelopes` (the format); `handshake`,
`hellos`, `identity` and `sealing` (who gets in); `connection` with `inflight`, `deadlines`, `outcomes`, `answering`,
`requests`, `streaming`, `writing` and `pulse`; `peers` with `roster` and `reaching` (one connection per peer); `tcp`,
`tls`, `lobby` and `listening` (sockets).
"""
