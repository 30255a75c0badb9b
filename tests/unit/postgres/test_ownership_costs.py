"""What ownership costs with many seats, counted in rows that the server touches: linear, never quadratic."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from coterie.storage import statements
from coterie.storage.postgres.connector import session_settings
from tests.unit.postgres.conftest import LONG, stranger

if TYPE_CHECKING:
    from collections.abc import Iterator

    import asyncpg

pytestmark = pytest.mark.postgres

SQL = statements.load("coterie.storage.postgres.sql", "ownership.sql")
MANY = 5_000
ROWS_EACH = 20
"""Rows that a statement may touch for each seat, over all parts of its plan."""


def texts(form: str) -> str:
    """An array of texts, one for each seat."""
    return "'{" + ",".join(form.format(number) for number in range(MANY)) + "}'::text[]"


def prints(version: str) -> str:
    return texts(version + "{}")


NAMES, GROUPS = texts("singleton:s{}"), texts("default")


def knows(version: str) -> str:
    numbers = f"generate_series(0, {MANY - 1}) as i"
    return f"(select jsonb_object_agg('singleton:s' || i, '{version}' || i) from {numbers})"


def runner(id: str, version: str) -> str:
    return f"""insert into coterie.runners (cluster, id, name, address, host_id, groups, weight, version, knows)
        values ('default', '{id}', '', '', '', '{{}}', 1, '', {knows(version)})"""


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", []):
        yield from nodes(part)


def touched(plan: dict[str, Any]) -> int:
    """Rows that the parts of a plan have found or thrown away."""
    kinds = ("Actual Rows", "Rows Removed by Filter", "Rows Removed by Join Filter", "Rows Removed by Index Recheck")
    return sum(round(node["Actual Loops"] * sum(node.get(kind, 0) for kind in kinds)) for node in nodes(plan))


async def cost(session: asyncpg.Connection[Any], name: str, *values: str) -> int:
    """Run a statement with the plan that our sessions use; the rows that it has touched."""
    await session.execute(f"prepare counted as {SQL[name]}")
    listed = ", ".join(("'default'", *values))
    text = await session.fetchval(f"explain (analyze, timing off, format json) execute counted({listed})")
    await session.execute("deallocate counted")
    return touched(json.loads(text)[0]["Plan"])


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "analyzed"])
async def test_defining_thousands_of_singletons_and_crons_is_never_quadratic(postgres_url: str, analyzed: bool) -> None:
    """`contest` compared n² rows: with 2,000 of them no runner came up."""
    async with stranger(postgres_url) as session:
        await session.execute(session_settings("dedicated", application="test", limits=LONG))
        await session.execute("set statement_timeout = '60s'")
        first = {"declare": await cost(session, "declare", NAMES, GROUPS, prints("a"))}
        if analyzed:
            await session.execute("analyze")
        first["contest"] = await cost(session, "contest", NAMES, prints("a"))
        first["redefine"] = await cost(session, "redefine", NAMES, GROUPS, prints("a"))
        await session.execute(runner("1", "a"))
        newer = {
            "declare": await cost(session, "declare", NAMES, GROUPS, prints("b")),
            "contest": await cost(session, "contest", NAMES, prints("b")),
            "redefine": await cost(session, "redefine", NAMES, GROUPS, prints("b")),
        }
        await session.execute(runner("2", "b"))
        if analyzed:
            await session.execute("analyze")
        older = {
            "contest": await cost(session, "contest", NAMES, prints("a")),
            "redefine": await cost(session, "redefine", NAMES, GROUPS, prints("a")),
        }
        assert await session.fetchval("select count(*) from coterie.seats where fingerprint like 'b%'") == MANY
        for what, costs in (("first", first), ("newer", newer), ("older", older)):
            assert all(each <= ROWS_EACH * MANY for each in costs.values()), f"{what}: {costs}"
