"""Entities: objects with typed methods that any process may call by id, wherever they live.

    class ──define──▶ EntityType ──ref──▶ reference ──method(…)──▶ Call ──await──▶ the sender

Promise:
    A payload that does not fit the annotations is refused at the caller before anything is sent, and at the entity
    before it reaches the handler (F1). What cannot work is refused when the program is loaded, with what to write
    instead. Two versions of a program understand each other's calls: parameters travel by name.

On a runner, without any network:

    Host.deliver(Work) ──▶ Resident ──▶ its turn ──▶ handler ──▶ Work.reply, failed, refuse or not_mine
                              │
          activated ──▶ idle ◀─┴─▶ at work ──▶ (nobody calls, a defect, the shard moves) ──▶ farewell

    An entity is a plain object while it is idle: no task, no timer, no queue. Of one entity one handler runs at a
    time, or as many as its concurrency says [INV-E1]; what waits is bounded [INV-E4]; every call is answered once, by
    its deadline; what has begun is never begun again [INV-D8].

In which order to read: `entity` (the class users derive from) and `rpc` (`@rpc`: its errors, what is counted of it);
`arguments` (types and arguments), `idempotency_key` (which calls are the same call), `definition` (all of a class),
`reference` (the caller's side), `registry` (the entities of a program, and how runners come to host them).

`host/`, on a runner: `work` (one call, and how it is answered), `host` (all entities of a runner), `shard`,
`activation`, `mailbox` and `resources` (one entity), `dispatch` and `executor` (how handlers run), `responder`,
`deactivation`, `defects` (calls of a type that fail in a row).

`calls/`, between processes: `client` (a call's way there and back) with `router` (whose shard it is, and what is
worth another attempt) and `wire` (what crosses, pure); `server` (calls of other processes), `local` (calls of one's
own), `broadcast`; `by_name_client` and `by_name_server`, for those who do not have the program; `spans`.

`persisted/`, calls and state that are stored: `sender` (the sender's side), `reply` (from the owner or from storage)
and `outcome` (which error, pure); `receiver` (what arrives at the owner), `inbox` (what is in its memory), `suspects`
(what may have killed a runner), `poller` (what it finds in storage); `state` (as it is stored), `effects` (what a
handler leaves behind), `transaction` (SQL of its own) and `commit` (which is durable before a reply is sent); `api`
(`cluster.messages`).

    stored ──▶ handed over, or swept ──▶ in memory ──▶ handler ──▶ one commit ──▶ replied
                         ▲                                │
                         └────────── set back ────────────┴──▶ dead after its attempts

Promise:
    A message that is stored runs to its end, once as far as the database can tell (B3): reply, state and sent messages
    commit together, under the fence, before anybody hears of them. What cannot run now stays in storage, and is bounded
    in memory [INV-D1, D2, R1].
"""
