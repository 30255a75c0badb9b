"""`coterie shards`: the map, the list, and one of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from coterie.cli.commands.shards import drawn
from coterie.observe.pages import shards
from coterie.storage.interface import ClusterSnapshot
from tests.unit.cli.command_runner import coterie, require_golden, screen, transcript
from tests.unit.observe import cluster_facts

if TYPE_CHECKING:
    import pytest

    from tests.unit.cli.command_runner import Served


def test_the_map_shows_who_holds_what_and_what_moves() -> None:
    """web-4 leaves, so that its shards are about to move; default:99 has no owner, and the group gpu no runner."""
    rows = [cluster_facts.row(f"web-{number}", leaving=number == 4) for number in (1, 2, 3, 4)]
    held = {"web-1": range(33), "web-2": range(33, 65), "web-3": range(65, 96), "web-4": range(96, 99)}
    seats = [seat for name, numbers in held.items() for seat in cluster_facts.shards(*numbers, holder=name)]
    seats += [*cluster_facts.shards(99, holder=None), *cluster_facts.shards(0, 1, holder=None, group="gpu")]
    require_golden("shards_map", drawn(screen(), shards(ClusterSnapshot(tuple(rows), tuple(seats), ""))) + "\n")


def test_a_long_row_is_folded() -> None:
    view = ClusterSnapshot((cluster_facts.row(),), tuple(cluster_facts.shards(*range(130))), "")
    shown = drawn(screen(), shards(view)).splitlines()[2:-1]
    assert [line.count("▪") for line in shown] == [87, 43], "as many as fit into the terminal"
    assert len({line.index("▪") for line in shown}) == 1


def test_shards_of_a_running_cluster(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    require_golden("shards_running", transcript(coterie(capsys, "shards", "--url", served.url)))
    require_golden("shards_list", transcript(coterie(capsys, "shards", "list", "--url", served.url)))
    require_golden("shards_show", transcript(coterie(capsys, "shards", "show", "default:7", "--url", served.url)))


def test_shards_for_programs(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(coterie(capsys, "shards", "--url", served.url, "--json").out)
    (group,) = told["groups"]
    assert (group["group"], group["shards"], group["owned"], group["runners"]) == ("default", 12, 12, {"web-1": 12})
    assert [each["shard"] for each in told["shards"]] == [f"default:{number}" for number in range(12)]
    listed = json.loads(coterie(capsys, "shards", "list", "--url", served.url, "--json").out)
    assert listed == told["shards"]
    shown = json.loads(coterie(capsys, "shards", "show", "default:7", "--url", served.url, "--json").out)
    assert shown == told["shards"][7]
    assert (shown["owner"], shown["state"]) == ("web-1", "owned")


def test_a_shard_that_is_not_there_and_one_that_is_none(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    said = coterie(capsys, "shards", "show", "default:42", "--url", served.url)
    require_golden("shards_unknown", transcript(said))
    assert said.code == 1
    assert coterie(capsys, "shards", "show", "42", "--url", served.url).code == 2
