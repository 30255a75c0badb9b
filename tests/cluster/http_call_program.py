"""A runner that is called over HTTP: `python http_call_program.py`. Its methods have types of every kind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

from msgspec import Meta

from coterie import Cluster, Entity, Workflow, rpc


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class TooHeavyError(Exception):
    """Declared."""


@dataclass
class Book:
    title: str
    pages: Annotated[int, Meta(ge=1, le=10_000)] = 1
    colour: Colour = Colour.RED
    tags: list[str] = field(default_factory=list)
    inside: dict[str, Book] = field(default_factory=dict)


cluster = Cluster()


@cluster.entity(mailbox=1000)
class Shelf(Entity[None]):
    @rpc
    async def name(self) -> str:
        return self.id

    @rpc(persisted=True, errors=[TooHeavyError])
    async def put(self, book: Book, *, place: int | None = None) -> Book:
        if book.pages > 9_000:
            raise TooHeavyError(book.title)
        return book

    @rpc(persisted=True, key="key")
    async def keyed(self, key: str, value: float) -> float:
        return value

    @rpc
    async def times(self, at: datetime, day: date, lasting: timedelta) -> tuple[datetime, date, timedelta]:
        return at, day, lasting

    @rpc
    async def kinds(self, id: UUID, data: bytes, price: Decimal, word: Literal["a", "b"], by: dict[int, bool]) -> bytes:
        return data

    @rpc
    async def anything(self, value: Any) -> Any:
        return value

    @rpc
    async def stream(self) -> AsyncIterator[int]:
        yield 1


@cluster.workflow
async def fill(workflow: Workflow, book: Book) -> Book:
    return book


if __name__ == "__main__":
    cluster.run()
