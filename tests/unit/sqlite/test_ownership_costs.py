"""What ownership costs with many seats, counted in steps of SQLite's machine: linear, never quadratic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.storage import migrations
from coterie.storage.interface import Registration, SeatDeclaration
from coterie.storage.sqlite import seats
from coterie.storage.sqlite.database import open_file
from coterie.storage.sqlite.store import Scope

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import apsw

NOW = Scope("default", 1_800_000_000_123_456_789)
STEPS = 100


def steps(connection: apsw.Connection, work: Callable[[], object]) -> int:
    """About how many steps of the machine a piece of work takes."""
    counted = 0

    def count() -> bool:
        nonlocal counted
        counted += STEPS
        return False

    connection.set_progress_handler(count, STEPS)
    try:
        work()
    finally:
        connection.set_progress_handler(None)
    return counted


def declared(count: int, version: str) -> list[SeatDeclaration]:
    return [SeatDeclaration(f"singleton:s{number}", "default", f"{version}{number}") for number in range(count)]


def register(connection: apsw.Connection, id: str, count: int, version: str) -> None:
    knows = {each.name: each.fingerprint for each in declared(count, version)}
    seats.register(
        connection, NOW, Registration(id=id, name=id, address="", host_id="", groups=("default",), knows=knows)
    )


def costs(path: Path, count: int) -> dict[str, int]:
    """Of the first program, of a newer one, and of the first again, which is not to take the seats back."""
    connection = open_file(path)
    for each in migrations.load("coterie.storage.sqlite.migrations"):
        connection.execute(each.sql)
    found = {}
    connection.execute("begin")
    for what, version in (("first", "a"), ("newer", "b"), ("older", "a")):
        found[what] = steps(connection, lambda v=version: seats.declare(connection, NOW, declared(count, v)))  # type: ignore[misc]
        if what != "older":
            register(connection, version * 32, count, version)
    connection.execute("commit")
    ((newer,),) = connection.execute("select count(*) from seats where fingerprint like 'b%'")
    assert newer == count
    connection.close()
    return found


def test_defining_thousands_of_singletons_and_crons_is_never_quadratic(tmp_path: Path) -> None:
    few, many = costs(tmp_path / "few.db", 500), costs(tmp_path / "many.db", 5_000)
    for what, cost in many.items():
        assert cost <= 15 * few[what], f"{what}: {few[what]} steps for 500, {cost} for 5,000"
