"""Statements for many rows at once: the row that is marked `-- each` in the file, as often as it is needed.

With one step of SQLite for each row the interpreter may change hands after each of them, and a busy event loop keeps it
for a while: under the write lock, for which other processes wait.

They are written with `or rollback`: otherwise SQLite keeps a copy of each page that such a statement changes, to be
able to undo the statement alone.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import apsw

_EACH = re.compile(r"(\([?\d, ]+\)) -- each")
_MOST = 128
"""Rows of one statement. Powers of two up to it make any number of rows, and few statements to be kept prepared; what
is bound is copied, so that more would cost memory."""


def write(connection: apsw.Connection, statement: str, same: Sequence[Any], rows: Sequence[Sequence[Any]]) -> int:
    """Run a statement for all rows; how many rows of the table it changed.

    Args:
        connection: Inside of a transaction. Any error undoes all of that.
        statement: With one row in it. `?1`, `?2`, … are the same for all and come before it.
        same: Their values.
        rows: The values of each row.
    """
    before, begin = connection.total_changes(), 0
    while begin < len(rows):
        times = min(_MOST, 1 << (len(rows) - begin).bit_length() - 1)
        some = rows[begin : begin + times]
        connection.execute(repeated(statement, times), (*same, *chain.from_iterable(some)))
        begin += times
    return connection.total_changes() - before


@cache
def repeated(statement: str, times: int) -> str:
    """A statement with its row so many times."""
    (row,) = _EACH.findall(statement)
    return _EACH.sub(",\n".join([row] * times), statement)
