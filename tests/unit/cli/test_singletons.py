"""`coterie singletons`: who leads what, and what was saved. Resigning is with the tests of runners, which have two."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.unit.cli.command_runner import coterie, require_golden, transcript

if TYPE_CHECKING:
    from tests.unit.cli.command_runner import Served


@pytest.mark.parametrize(
    ("golden", "args"),
    [
        ("singletons_list", []),
        ("singletons_show", ["show", "importer"]),
        ("singletons_history", ["history", "importer"]),
        ("singletons_resign_dry", ["resign", "importer", "--dry-run"]),
        ("singletons_resign_refused", ["resign", "importer"]),
        ("singletons_unknown", ["show", "exporter"]),
    ],
    ids=["list", "show", "history", "dry run", "nobody to ask", "unknown"],
)
def test_singletons_of_a_running_cluster(
    served: Served, capsys: pytest.CaptureFixture[str], golden: str, args: list[str]
) -> None:
    said = coterie(capsys, "singletons", *args, "--url", served.url)
    require_golden(golden, transcript(said))
    assert said.code == (1 if golden.endswith(("refused", "unknown")) else 0)


def test_singletons_for_programs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = json.loads(coterie(capsys, "singletons", "--url", served.url, "--json").out)
    assert (line["name"], line["leader"], line["note"], line["problem"]) == ("importer", "web-1", "rows", "")
    shown = json.loads(coterie(capsys, "singletons", "show", "importer", "--url", served.url, "--json").out)
    assert shown["state"] == {"last_id": 88_123}
    (saved,) = json.loads(coterie(capsys, "singletons", "history", "importer", "--url", served.url, "--json").out)
    assert (saved["number"], saved["value"], saved["runner"]) == (1, {"last_id": 88_123}, "web-1")


def test_what_is_not_there_is_a_no(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in (["history"], ["resign", "--yes"]):
        said = coterie(capsys, "singletons", verb[0], "exporter", *verb[1:], "--url", served.url)
        assert (said.code, said.out) == (1, "")
        assert "there is no singleton 'exporter'" in said.err
