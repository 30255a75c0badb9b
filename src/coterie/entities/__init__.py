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

In which order to read: `entity` (the class users derive from) and `rpcs` (`@rpc`); `annotations`, `payloads` and
`declared` (types, arguments and errors of one rpc), `keys` (which calls are the same call), `counting` (what is counted
of one rpc), `defects` (calls of a type that fail in a row); `definitions` (all of a class); `references` and `calls`
(the caller's side); `failures` (errors on their way back); `options` (how definitions refuse).

Hosting: `work` (one call, and how it is answered), `hosting` (all entities of a runner), `residents` and `mailbox`
(one entity), `handling`, `serving`, `driving`, `prompt` and `spares` (how handlers run), `answers`, `streams`,
`spans`, `activation`, `resources`, `idling` and `farewells` (one life, from its beginning to its end, within `limits`),
`occupancy` (a shard).

Between processes: `calling` (a call's way there and back) with `routing` (whose shard it is), `attempts` (what is worth
another one, pure) and `envelopes` (what crosses, pure); `arrivals` (calls of other processes), `nearby` (calls of one's
own), `detached` (those nobody waits for), `broadcasting`; `room` (the entities of a program, and how runners come to
host them). By name, for those who do not have the program: `questions` (what crosses), `untyped` (who asks) and
`inquiries` (who answers).

Persisted calls and state: `posting` (the sender's side) with `bringing` (from storage to the owner), `awaiting` and
`seeking` (its reply, from the owner or from storage) and `outcomes` (which error, pure); `handovers` (what arrives at
the owner), `deliveries` and `stored` (what is in its memory), `suspects` (what may have killed a runner), `sweeping`
(what it finds in storage); `kept` (state as it is stored), `ledgers` (what a handler leaves behind),
`transacting` (SQL of its own) and `committing` (which is durable before anybody hears of it); `mail` (for people to
look at messages, and to run them again).

    stored ──▶ handed over, or swept ──▶ in memory ──▶ handler ──▶ one commit ──▶ replied
                         ▲                                │
                         └────────── set back ────────────┴──▶ dead after its attempts

Promise:
    A message that is stored runs to its end, once as far as the database can tell (B3): reply, state and sent messages
    commit together, under the fence, before anybody hears of them. What cannot run now stays in storage, and is bounded
    in memory [INV-D1, D2, R1].
"""
