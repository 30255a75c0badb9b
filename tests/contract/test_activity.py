"""The record of acts: the same on both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage.contracts.activity import Act

if TYPE_CHECKING:
    from coterie.storage.interface import Storage


def act(what: str) -> Act:
    return Act(who="token", origin="10.0.0.7", act="retry", what=what, result="retried 1 dead message")


async def test_acts_are_read_the_newest_first(storage: Storage) -> None:
    before = await storage.now()
    for what in ("one", "two", "<b>three</b>"):
        await storage.activity.add(act(what))
    rows = await storage.activity.list()
    assert [row.what for row in rows] == ["<b>three</b>", "two", "one"]
    assert (rows[0].who, rows[0].origin, rows[0].act) == ("token", "10.0.0.7", "retry")
    now = await storage.now()
    assert all(before <= row.at <= now for row in rows)
    assert await storage.activity.list(before=rows[0].id, most=1) == rows[1:2]


async def test_old_acts_are_deleted_the_oldest_first(storage: Storage) -> None:
    for what in ("one", "two", "three"):
        await storage.activity.add(act(what))
    assert await storage.activity.purge(older_s=3600, most=10) == 0
    late = await storage.overdue(retention_s=3600, key_retention_s=0)
    assert "activity" in late
    assert await storage.activity.purge(older_s=0, most=2) == 2
    assert [row.what for row in await storage.activity.list()] == ["three"]
    assert "activity" not in await storage.overdue(retention_s=0, key_retention_s=3600)
