"""The table in docs/metrics.md, made from the declarations. `python -m tests.unit.observe.metrics_page` writes it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from coterie.kernel import metrics

if TYPE_CHECKING:
    from coterie.kernel.metrics import Meter

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
BEGIN, END = "<!-- made from the declarations -->\n", "<!-- until here -->\n"


def table() -> str:
    """A row for each metric."""
    rows = [_row(meter) for meter in metrics.ALL]
    return "\n".join(["| Metric | Kind | Labels | What it says |", "|---|---|---|---|", *rows, ""])


def parts(page: str) -> tuple[str, str, str]:
    """What stands before the table, the table, and what stands after it."""
    before, _, rest = page.partition(BEGIN)
    found, _, after = rest.partition(END)
    return before, found, after


def _row(meter: Meter) -> str:
    labels = ", ".join(f"`{label}`" for label in meter.labels)
    return f"| `{meter.name}` | {meter.kind} | {labels} | {meter.help} |"


if __name__ == "__main__":
    before, _, after = parts(PAGE.read_text())
    PAGE.write_text(f"{before}{BEGIN}{table()}{END}{after}")
