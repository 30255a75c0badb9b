"""Messages that are done, many: for tests of what the others cost beside them, and for the bench.

They were sent within the last 22 hours, one after another, to some entities (of the type `Account`, `e0` to `e4999`; on
SQLite of three types `Account0` to `Account2`, `entity-0` to `entity-499`), and a third of them have keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import apsw

if TYPE_CHECKING:
    import asyncpg

_POSTGRES = """
insert into coterie.messages
    (cluster, id, seat, entity_type, entity_id, method, key, sent_at, due_at, digest, payload)
select
    'default', lpad(to_hex((1000 * extract(epoch from at))::bigint), 12, '0') || '0000' || left(md5(i::text), 16),
    's' || entity % 300, 'Account', 'e' || entity, 'add', case when i % 3 = 0 then 'order-' || i end, at, at,
    md5(i::text)::bytea, repeat('p', 60)::bytea
from generate_series(1, $) as i,
    lateral (select now() - interval '22 hours' + i * interval '22 hours' / $ as at, i * 7919::bigint % 5000 as entity);
update coterie.messages set status = 1, completed_at = sent_at + interval '20 ms', reply = 'reply', epoch = 1;
vacuum analyze coterie.messages;
"""

_SQLITE = """
with recursive numbers (n) as (select 1 union all select n + 1 from numbers where n < :count)
insert into messages (
    cluster, id, seat, entity_type, entity_id, method, key, digest, status, sent_at_ns, due_at_ns, completed_at_ns,
    epoch, payload, reply
)
select
    'default', printf('%012x0000', at_ms) || lower(hex(randomblob(8))), 'shard:default:' || (entity % 256),
    'Account' || (entity % 3), 'entity-' || entity, 'add', iif(n % 3, null, 'order-' || n), zeroblob(16), 1,
    at_ms * 1000000, at_ms * 1000000, at_ms * 1000000 + 20000000, 1, zeroblob(60), zeroblob(10)
from (
    select n, n * 7919 % 500 as entity, :now_ns / 1000000 - 80000000 + n * 80000000 / :count as at_ms from numbers
);
"""


async def fill_postgres(connection: asyncpg.Connection[Any], count: int) -> None:
    """Store so many, and let the server know of them."""
    for statement in _POSTGRES.replace("$", str(count)).strip().removesuffix(";").split(";"):
        await connection.execute(statement)  # one by one, as a vacuum must be alone


def fill_sqlite(connection: apsw.Connection, count: int, *, now_ns: int) -> None:
    """Store so many, in the file itself."""
    connection.pragma("synchronous", "OFF")
    connection.execute(_SQLITE, {"count": count, "now_ns": now_ns})
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.pragma("synchronous", "FULL")
