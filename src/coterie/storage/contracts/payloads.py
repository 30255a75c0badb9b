"""The storage contract of what is encrypted: where it stands, which keys it may be of, and its replacement.

What stands in these columns, and what it means, only `storage.encryption` knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class PayloadTable(msgspec.Struct, frozen=True):
    """A table with columns that users' code fills."""

    name: str
    key: tuple[str, ...]
    """The columns that identify a row of the cluster."""
    bound: tuple[str, ...] = ()
    """Further columns that the values are bound to."""
    binary: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    """Columns with several texts, as JSON."""

    @property
    def values(self) -> tuple[str, ...]:
        """The columns that users' code fills."""
        return (*self.binary, *self.texts, *self.lists)


TABLES = (
    PayloadTable(
        "messages", ("id",), ("entity_type", "entity_id", "method"), ("payload", "digest", "reply"), (), ("errors",)
    ),
    PayloadTable("jobs", ("id",), ("task",), ("payload", "digest", "reply"), (), ("errors",)),
    PayloadTable("job_progress", ("job",), (), (), ("note",)),
    PayloadTable("kv", ("key",), ("stamp",), ("value",)),
    PayloadTable("states", ("key",), ("version",), ("value",)),
    PayloadTable("state_history", ("key", "slot"), ("version",), ("value",), ("reason",)),
    PayloadTable("executions", ("seat",), (), (), ("error", "note")),
    PayloadTable("crons", ("name",), (), (), ("error",)),
    PayloadTable("ticks", ("name", "kind", "at", "seq"), (), (), ("note",), ("errors",)),
    PayloadTable(
        "units", ("unit",), (), ("payload", "digest", "value", "error", "next_payload", "next_digest", "stuck")
    ),
    PayloadTable("steps", ("unit", "branch", "position"), ("kind", "name"), ("digest", "value", "error")),
    PayloadTable("deferreds", ("unit", "name"), ("life",), ("value",), ("error",)),
    PayloadTable("run_messages", ("unit", "name", "id"), (), ("digest", "value")),
    PayloadTable("published", ("unit", "name", "seq"), (), ("value",)),
    PayloadTable("schedules", ("key",), ("life",), ("payload",)),
    PayloadTable("activity", ("id",), ("act", "what"), (), ("result",)),
)
"""All of them. A test compares the list with the columns of both schemas."""


class PayloadRow(msgspec.Struct, frozen=True):
    """A row of such a table."""

    key: tuple[Any, ...]
    bound: tuple[Any, ...]
    values: tuple[Any, ...]
    """Those that do not begin as asked, else None."""


class PayloadChange(msgspec.Struct, frozen=True):
    """New values for a row that still has the old ones; None stands for a value that stays."""

    key: tuple[Any, ...]
    was: tuple[Any, ...]
    values: tuple[Any, ...]


class PayloadStore(Protocol):
    """What is encrypted in one cluster."""

    async def keys(self) -> Mapping[str, str]:
        """Return the fingerprints of the keys that values may be encrypted with, by id."""
        ...

    async def add_key(self, id: str, fingerprint: str) -> None:
        """Store the fingerprint of a key, unless there is one of this id. Durable when it returns."""
        ...

    async def remove_key(self, id: str) -> None:
        """No value is encrypted with this key any more."""
        ...

    async def page(
        self, table: PayloadTable, *, after: tuple[Any, ...] | None, most: int, head: bytes, text_head: str, cut: int
    ) -> Sequence[PayloadRow]:
        """Return the next rows of a table, in the order of their keys.

        Args:
            table: One of `TABLES`.
            after: The key to continue after; None: from the first.
            most: The number of rows.
            head: Values that begin so are left out, empty ones too.
            text_head: The same for texts. Lists of texts are left out if they are empty.
            cut: How much of a value is returned; lists are returned whole.
        """
        ...

    async def rewrite(self, table: PayloadTable, changes: Sequence[PayloadChange]) -> int:
        """Replace values. A row that has other values by now, or that is locked, stays. Returns the rows changed."""
        ...
