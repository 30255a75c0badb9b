"""The cluster's secret: drawn at its first use, by whoever comes first, and the same for all from then on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import statements

if TYPE_CHECKING:
    import apsw

SQL = statements.load("coterie.storage.sqlite.sql", "secrets.sql")


def read(connection: apsw.Connection, cluster: str) -> bytes | None:
    """The secret, or None if nobody has drawn one."""
    row = connection.execute(SQL["read"], {"cluster": cluster}).fetchone()
    return None if row is None else bytes(row[0])


def read_or_draw(connection: apsw.Connection, cluster: str, drawn: bytes) -> bytes:
    """The secret, which is `drawn` if there was none. In one write transaction, so nobody comes between."""
    connection.execute(SQL["draw"], {"cluster": cluster, "value": drawn})
    found = read(connection, cluster)
    assert found is not None, "it was inserted, or was there"
    return found
