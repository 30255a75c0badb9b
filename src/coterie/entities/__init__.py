"""Entities: objects with typed methods that any process can call by id, on whichever runner they are active.

    class ──define──▶ EntityType ──ref──▶ reference ──method(…)──▶ Call ──await──▶ the sender

Promise:
    A payload that does not fit the annotations is refused at the caller before anything is sent, and at the entity
    before it reaches the handler (F1). Invalid definitions are refused when the program is loaded, with what to write
    instead. Two versions of a program understand each other's calls: parameters travel by name.

On a runner, without any network:

    Host.deliver(Work) ──▶ Resident ──▶ its turn ──▶ handler ──▶ Work.reply, failed, refuse or not_mine
                              │
          activated ──▶ idle ◀─┴─▶ running ──▶ (idle too long, a defect, the shard moves) ──▶ deactivated

    An idle entity is a plain object: no task, no timer, no queue. An entity runs one handler at a time, or as many as
    its concurrency [INV-E1]; its mailbox is bounded [INV-E4]; every call is answered once, by its deadline; a call that
    has started is never started again [INV-D8].

Reading order: `entity` (the class users derive from), `rpc` (`@rpc`, and its metrics) and `declared_errors`;
`arguments` (types and arguments), `idempotency_key` (which calls are the same call), `definition` (checks a class),
`reference` (the caller's side), `registry` (the entities of a program, and how runners host them).

`host/`, on a runner: `work` (one call, and how it is answered), `host` (all entities of a runner), `shard`,
`activation`, `mailbox` and `resources` (one entity), `dispatch` and `executor` (how handlers run), `responder`,
`deactivation`, `defects` (consecutive failures of a type).

`calls/`, between processes: `client` (sends a call and returns its answer) with `router` (the owner of a shard, and
when to retry) and `wire` (the wire format, pure); `server` (calls from other processes), `local` (calls inside one
process), `broadcast`; `by_name_client` and `by_name_server`, for clients without the program; `spans`.

`persisted/`, calls and state that are stored: `sender` (the sender's side), `reply` (from the owner or from storage)
and `outcome` (which error, pure); `receiver` (hand-overs to the owner), `inbox` (the owner's messages in memory),
`suspects` (messages that may have killed a runner), `poller` (finds messages in storage);
`transaction` (the user's own SQL) and `commit` (state and all effects of a handler, before a reply is sent); `api`
(`cluster.messages`).

    stored ──▶ handed over, or polled ──▶ in memory ──▶ handler ──▶ one commit ──▶ replied
                         ▲                                │
                         └──────── failed attempt ────────┴──▶ dead after its attempts

Promise:
    A stored message runs to its end, once as far as the database can tell (B3): reply, state and sent messages commit
    together, under the fence, before any of them is visible. A message that cannot run now stays in storage, and
    memory is bounded [INV-D1, D2, R1].
"""
