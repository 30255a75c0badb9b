"""`coterie bench`: numbers for this machine, and for its database."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from coterie.cli.benching import NAME, SCENARIOS, TOGETHER, measure
from coterie.cli.options import settings_for
from coterie.cli.progress import Progress
from coterie.cli.showing import Screen, as_json, tell
from coterie.settings.secret import redacted_url

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from coterie.cli.benching import Figures

_COLUMNS = ("SCENARIO", "P50", "P99", "CALLERS", "PER S", "WHAT")
_RIGHT = ("P50", "P99", "CALLERS", "PER S")


@click.command()
@click.argument("scenario", required=False, type=click.Choice([*SCENARIOS]))
@click.option("--seconds", type=click.FloatRange(0.05, 600), default=2.0, show_default=True, help="For each scenario.")
@click.option("--color/--no-color", "colour", default=None, help="Colours (default: on a terminal).")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
@click.option("--url", metavar="URL", help="The database (default: a temporary SQLite file).")
def command(scenario: str | None, seconds: float, url: str | None, is_json: bool, colour: bool | None) -> None:
    """Numbers for this machine: commits, keys, calls and persisted calls.

    With --url they are measured there, in a cluster of the name coterie-bench: others in the same database are not
    touched, but share its load. A database without a schema gets one.

    \b
    Example:
      coterie bench persisted --url postgresql://app@db.internal/app --seconds 5
    """
    chosen = [scenario] if scenario else [*SCENARIOS]
    with _database(url) as (where, shown), Progress("measuring", total=len(chosen), json=is_json) as progress:

        def begins(name: str) -> None:
            progress.at(chosen.index(name))
            progress.phase(name)

        found = asyncio.run(measure(where, chosen, seconds=seconds, begins=begins))
        if is_json:
            tell(as_json({"database": shown, "seconds": seconds, "figures": found}))
        else:
            tell(f"cluster {NAME} on {shown}\n\n{_table(Screen(colour=colour), found)}")
            tell(f"\nP50 and P99 of one at a time; PER S with CALLERS at once ({TOGETHER}, but for commit)", err=True)


@contextmanager
def _database(url: str | None) -> Iterator[tuple[str, str]]:
    """Where to measure, and how to call it."""
    if url is not None:
        yield url, redacted_url(settings_for(url).url)
        return
    with tempfile.TemporaryDirectory(prefix="coterie-bench-") as folder:
        where = f"sqlite:///{folder}/bench.db"
        yield where, f"{where} (temporary)"


def _table(screen: Screen, found: Sequence[Figures]) -> str:
    rows = [(f.scenario, _ms(f.p50_s), _ms(f.p99_s), f"{f.callers:,}", f"{f.per_s:,.0f}", f.what) for f in found]
    return screen.table(_COLUMNS, rows, right=_RIGHT)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.3f} ms"
