"""Plans of messages to runs, and of what runs publish: rows by key, on empty tables and on full ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from coterie.storage import statements
from coterie.storage.postgres.connector import session_settings
from tests.unit.postgres.conftest import LONG, new_storage, stranger
from tests.unit.postgres.test_states_plans import nodes, plan_of

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.postgres

SQL = statements.load("coterie.storage.postgres.sql", "run_messages.sql")
HOT = {
    "send_to_run": "'default', 'u1', 'n', 'm', 'd', 'v'",
    "published_after": "'default', 'u1', 'n', 0, 10",
    "last_published": "'default', 'u1', 'n'",
}
NAMES = ("units", "run_inboxes", "run_messages", "published")
FILL = [
    """insert into coterie.run_messages (cluster, unit, name, id, seq, sent_at, digest, value)
       select 'default', 'u' || i % 2000, 'n', i, i, now(), '', '' from generate_series(1, 20000) as i""",
    """insert into coterie.run_inboxes (cluster, unit, name, sent, waiting, begun, made_at)
       select 'default', 'u' || i, 'n', 10, 10, true, now() from generate_series(0, 1999) as i""",
    """insert into coterie.published (cluster, unit, name, seq, at, value)
       select 'default', 'u' || i % 2000, 'n', i, now(), '' from generate_series(1, 20000) as i""",
]


async def test_messages_and_published_values_are_found_by_the_key_of_their_run(postgres_url: str) -> None:
    async with new_storage(postgres_url):
        pass
    async with stranger(postgres_url) as connection:
        await connection.execute(session_settings("writer", application="plans", limits=LONG))
        for changes in ([], FILL, ["analyze"]):
            for statement in changes:
                await connection.execute(statement)
            for name, values in HOT.items():
                plan = await plan_of(connection, SQL[name], values)
                assert walks(plan) == [], f"{name}: {json.dumps(plan, indent=1)}"


def walks(plan: dict[str, Any]) -> list[str]:
    """Scans of more than the rows of one run."""
    return [
        f"{node['Node Type']} of {node['Relation Name']}"
        for node in nodes(plan)
        if node.get("Relation Name") in NAMES
        and node["Node Type"] != "ModifyTable"
        and "(unit " not in node.get("Index Cond", "")
    ]
