"""docs/sql.md: its program runs, and its SQL does what the page says, as a whole script of psql would."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import asyncpg
import pytest

from tests.docs.test_examples import PROGRAM

if TYPE_CHECKING:
    from coterie import Cluster

pytestmark = pytest.mark.postgres

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text("utf-8")
SQL = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def test_the_sql_of_the_page_sends_to_the_program_of_the_page(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COTERIE_URL", postgres_url)
    (text,) = PROGRAM.findall(PAGE)
    shop: Any = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    exec(compile(text, "docs/sql.md", "exec"), shop.__dict__)
    cluster: Cluster = shop.cluster
    async with cluster:
        await cluster.ready(timeout="2m")
        connection = await asyncpg.connect(postgres_url)
        try:
            blocks = SQL.findall(PAGE)
            assert len(blocks) == 2
            for each in blocks:
                await connection.execute(each)
        finally:
            await connection.close()
        async with asyncio.timeout(120):
            while len(done := await cluster.messages.list(status="done")) < 2:
                await asyncio.sleep(0.05)
        assert [(each.entity, each.reply) for each in done] == [("Account/alice", -500), ("Account/alice", -1200)]
        run = cluster.workflow_handle(shop.welcome, "customer-7")
        async with asyncio.timeout(120):
            while not await cluster.workflows.list(name="welcome"):
                await asyncio.sleep(0.05)
        assert await run.result(timeout="2m") == "hello Alice"
