"""`coterie run` and `coterie demo` without their processes: what is loaded, what is refused, what is said."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import msgspec
import pytest

from coterie import Cluster
from coterie.cli.demo import load as demo_load
from coterie.cli.demo.cluster_view import moved
from coterie.cli.demo.demo import write_program
from coterie.cli.demo.load import DepositCount, DepositLoad
from coterie.cli.demo.program import Account
from coterie.cli.run import console
from coterie.cli.run.console import Console, announcement, drain_line, left_line
from coterie.cli.run.events import ProgramLoaded, RunnerDraining, RunnerLeft, decode, encode
from coterie.cli.run.load import load, parse
from coterie.cli.run.reporter import counted
from coterie.cli.run.supervisor import Watched
from coterie.cli.run.worker import Worker
from coterie.kernel.ids import ShardId
from tests.unit.cli.command_runner import coterie, require_golden, transcript

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ONE = "from coterie import Cluster\ncluster = Cluster('sqlite://')\nsame = cluster\nother_thing = 7\n"
TWO = ONE + "second = Cluster('sqlite://')\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own, and nothing of what is loaded there stays."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COTERIE_URL", "")  # --url sets it: it is as before afterwards
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


# Loading


def test_nothing_is_left_beside_a_program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (folder / "app.py").write_text(ONE)
    load(parse("app.py:cluster"))
    assert [path.name for path in folder.iterdir()] == ["app.py"]


def test_a_file_and_a_module_lead_to_their_cluster(folder: Path) -> None:
    (folder / "shop").mkdir()
    (folder / "shop" / "app.py").write_text("from shop.base import cluster, twice\n")
    (folder / "shop" / "base.py").write_text(ONE + "twice = same\n")
    (folder / "app.py").write_text("from shop.base import cluster\n")
    found = [load(parse(text)) for text in ("app.py", "app.py:cluster", "shop.app:cluster", "shop.base:same")]
    assert {id(each.cluster) for each in found} == {id(found[0].cluster)}
    assert [each.shown for each in found] == [
        "app.py: cluster",
        "app.py: cluster",
        "shop.app: cluster",
        "shop.base: same",
    ]


def test_a_file_named_like_a_module_that_is_loaded_takes_nobodys_place(folder: Path) -> None:
    (folder / "json.py").write_text(ONE)
    import json

    assert isinstance(load(parse("json.py")).cluster, Cluster)
    assert sys.modules["json"] is json


def test_main_is_not_run(folder: Path) -> None:
    (folder / "app.py").write_text(ONE + "if __name__ == '__main__':\n    raise SystemExit(9)\n")
    assert load(parse("app.py")).cluster.settings.url == "sqlite://"


def test_refusals_say_what_to_write(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "one.py").write_text(ONE)
    (folder / "two.py").write_text(TWO)
    (folder / "none.py").write_text("def main(): ...\n")
    (folder / "broken.py").write_text("def f():\n    return 1 / 0\nf()\n")
    (folder / "lacking.py").write_text("import nothing_of_this_name\n")
    asked = [
        ["ones.py"],
        ["elsewhere/app.py"],
        ["no.such.module"],
        ["none.py"],
        ["two.py"],
        ["one.py:clustr"],
        ["one.py:other_thing"],
        ["none.py:cluster"],
        ["one.py:"],
        ["one.py:f()"],
        ["broken.py"],
        ["lacking"],
        ["one.py", "--url", "sqlite:///other.db"],
    ]
    lines = []
    for arguments in asked:
        said = coterie(capsys, "run", *arguments)
        assert said.code == 2, said
        lines += [f"$ coterie run {' '.join(arguments)}", *transcript(said).splitlines(), ""]
    text = "\n".join(line for line in lines if line.strip(" ~^") or not line)  # marks differ by Python's version
    require_golden("run-refused", text.replace(str(folder), "<folder>"))


# What is said

FOUND = ProgramLoaded(
    runner="laptop-4711",
    cluster="default",
    app="app.py: cluster",
    defines="1 entity, 1 singleton, 1 cron",
    database="coterie.db",
    database_from="default; set COTERIE_URL for PostgreSQL",
    served="http://127.0.0.1:7650",
    moved_from=None,
    drain_s=20.0,
)
DRAINING = RunnerDraining(runner="laptop-4711", shards=34, given=21, calls=12, oldest_s=4.1, left_s=12.4)
LEFT = RunnerLeft(runner="laptop-4711", shards=34, given=34, took_s=8.3, returned=0)


def test_the_announcement_and_the_drain() -> None:
    moved_on = msgspec.structs.replace(FOUND, served="http://127.0.0.1:7651", moved_from=7650)
    kept = msgspec.structs.replace(LEFT, runner="laptop-4712", given=30)
    lines = [
        *announcement(FOUND),
        "",
        *announcement(moved_on, workers=4),
        "",
        *announcement(msgspec.structs.replace(FOUND, served=None)),
        "",
        drain_line([DRAINING]),
        drain_line([DRAINING, msgspec.structs.replace(DRAINING, calls=0, oldest_s=0.0, given=34)]),
        drain_line([msgspec.structs.replace(DRAINING, calls=0)]),
        left_line([LEFT], 8.3),
        left_line([LEFT, kept], 20.0),
        left_line([LEFT], 2.0, failed=["laptop-4712 was ended by SIGKILL"]),
    ]
    require_golden("run", "\n".join(line.replace("0.1.0", "<version>") for line in lines) + "\n")


def test_a_drain_of_several_is_one_line_that_redraws(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A drain: said once, then how far all of them are together, then one line that stays."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    voice = Console(workers=2)
    voice.begin_drain(20.0)
    voice.begin_drain(20.0)
    voice.on_event(DRAINING)
    voice.on_event(msgspec.structs.replace(DRAINING, runner="laptop-4712", shards=33, given=0, calls=0, left_s=12.0))
    voice.on_event(LEFT)
    voice.on_event(msgspec.structs.replace(LEFT, runner="laptop-4712", shards=33, given=33, returned=2))
    voice.end_drain(8.3)
    clear = "\r\x1b[K    "
    assert capsys.readouterr().err == (
        "  draining (limit 20s; press again to stop at once)\n"
        f"{clear}readiness is off · 21 of 34 shards handed over · 12 calls in flight, oldest 4.1s · 12s left"
        f"{clear}readiness is off · 21 of 67 shards handed over · 12 calls in flight, oldest 4.1s · 12s left"
        f"{clear}left cleanly in 8.3s: 67 shards handed over, 2 messages returned to storage\n"
    )


def test_without_a_terminal_a_drain_says_how_far_it_is_each_five_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now_s = 0.0
    monkeypatch.setattr(console, "steady_s", lambda: now_s)
    voice = Console()
    for now_s in (0.0, 1.0, 5.0, 6.0, 9.0, 10.0):  # noqa: B007 the clock that is read above
        voice.on_event(DRAINING)
    voice.on_event(LEFT)
    said = [line.partition("  ")[2].split()[0] for line in capsys.readouterr().err.splitlines()]
    assert said == ["draining", "readiness", "readiness", "left"]


def test_what_a_program_defines_is_counted() -> None:
    assert counted({"entity": ["A", "B"], "singleton": ["x"], "cron": []}) == "2 entities, 1 singleton"
    assert counted({"entity": []}) == "defines nothing yet"


@pytest.mark.parametrize("event", [FOUND, DRAINING, LEFT], ids=lambda event: type(event).__name__)
def test_events_survive_the_line(event: ProgramLoaded | RunnerDraining | RunnerLeft) -> None:
    line = encode(event)
    assert line.count(b"\n") == 1
    assert decode(line) == event


# Files


async def test_changes_of_files_are_noticed_and_those_of_others_are_not(folder: Path) -> None:
    for name in ("app.py", ".hidden/a.py", "venv/lib/b.py", "shop/c.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("1")
    (folder / "venv" / "pyvenv.cfg").write_text("")
    watched = Watched(folder)
    for name in (".hidden/a.py", "venv/lib/b.py", "notes.txt"):
        (folder / name).write_text("222")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await watched.changed()
    (folder / "shop" / "d.py").write_text("new")
    assert await watched.changed() == "shop/d.py"
    (folder / "shop" / "c.py").unlink()
    (folder / "shop" / "d.py").unlink()
    assert await watched.changed() == "shop/c.py and 1 more"


# The demo


def test_the_demos_program_is_written_once(folder: Path) -> None:
    path = folder / "coterie-demo.py"
    assert write_program(path)
    assert load(parse("coterie-demo.py")).cluster._program.names() == {
        "entity": ["Account"],
        "singleton": ["importer"],
        "cron": ["heartbeat"],
    }
    path.write_text("mine")
    assert not write_program(path)
    assert path.read_text() == "mine"


def test_shards_that_moved_are_counted() -> None:
    before = {ShardId("default", number): "a" if number < 2 else "b" for number in range(4)}
    after = {**before, ShardId("default", 0): "c", ShardId("default", 1): "b"}
    assert moved(before, after) == (2, ["b", "c"])
    assert moved(before, before) == (0, [])


async def test_the_books_notice_what_is_lost_and_what_is_doubled(folder: Path) -> None:
    """The demo's verdict must be able to be no."""
    cluster = Cluster(f"sqlite:///{folder}/books.db", shards=4, http_listen=None)
    cluster.entity(Account)
    async with cluster:
        await cluster.ready(timeout="2m")
        senders = DepositLoad(cluster, run="r")
        senders.start()
        try:
            async with asyncio.timeout(120):
                while senders.deposits < 20:
                    await asyncio.sleep(0.01)
            count = await senders.check()
            assert count.is_right
            assert count.deposits >= 20
            await cluster.ref(Account, "r-1").deposit("somebody else's", 2)
            await cluster.ref(Account, "r-2").deposit("taken away", -1)
            count = await senders.check(everything=True)
            assert (count.lost, count.doubled) == (1, 2)
            assert not count.is_right
            assert str(count) == "1 message lost, 2 doubled"
        finally:
            await senders.stop()
    assert not DepositCount(5, 0, 0, unanswered=1).is_right


async def test_checks_that_follow_each_other_at_once_do_not_see_deposits_that_are_under_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender that was let go by the first check and stopped by the second must not begin: its deposit would be
    answered after the balance was read, and count as lost."""
    monkeypatch.setattr(demo_load, "ACCOUNTS", 60)
    cluster = Cluster(f"sqlite:///{folder}/books.db", shards=4, http_listen=None)
    cluster.entity(Account)
    async with cluster:
        await cluster.ready(timeout="2m")
        senders = DepositLoad(cluster, run="r")
        senders.start()
        try:
            async with asyncio.timeout(120):
                while senders.deposits < 70:
                    await asyncio.sleep(0.01)
            counts = [await senders.check(everything=True) for _ in range(20)]
        finally:
            await senders.stop()
    assert [count for count in counts if not count.is_right] == []
    assert len({count.deposits for count in counts}) == 1


async def test_a_worker_imports_nothing_of_ours_from_the_current_directory(folder: Path) -> None:
    """A file there that is called like one of our modules, or of those we use, is not taken for it."""
    for name in ("coterie", "click", "msgspec"):
        (folder / f"{name}.py").write_text("raise SystemExit(77)\n")
    worker = Worker("nowhere/app.py", number=1, on_event=lambda _: None, output=asyncio.subprocess.DEVNULL)
    assert await worker.live() == 2  # there is no such program
