-- Messages whose runner may have died of them have an allowance of their own, beside their attempts [C5].

-- Suspicion: none, suspected, begun alone (under the epoch of the row), begun alone and then beside another suspect.
-- Losses: how often the holder of the seat was lost after it had begun the message alone.
alter table messages add column suspicion integer not null default 0;
alter table messages add column losses integer not null default 0;

-- When a holder that did not give the seat back was deleted, and its epoch: what was stored later it cannot have begun.
alter table seats add column lost_at_ns integer;
alter table seats add column lost_epoch integer not null default 0;
