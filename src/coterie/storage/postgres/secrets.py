"""The cluster's secret: drawn at its first use, by whoever comes first, and the same for all from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import statements
from coterie.storage.interface import SECRET_BYTES

if TYPE_CHECKING:
    from coterie.kernel.random import Chance
    from coterie.storage.postgres.pool import Pool

_SECRETS = statements.load("coterie.storage.postgres.sql", "secrets.sql")


async def read_or_draw(pool: Pool, *, cluster: str, chance: Chance) -> bytes:
    """The secret of a cluster. What is drawn counts only if it is read back [M4]."""
    rows = await pool.read(_SECRETS["read"], cluster)
    if not rows:
        await pool.write(_SECRETS["draw"], cluster, chance.token(SECRET_BYTES))
        rows = await pool.read(_SECRETS["read"], cluster)
    return bytes(rows[0][0])
