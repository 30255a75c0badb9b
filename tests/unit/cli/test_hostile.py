"""Names, values and errors that strangers have chosen reach no terminal as they are: every command that shows some."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from coterie import Cluster, Entity, Leader, Retry, Tick, Workflow, current, rpc
from coterie.cli.output import Screen, as_json, safe
from coterie.cli.run.console import Console, ConsoleOptions
from coterie.observe import logs
from coterie.tasks.task import Task
from tests.unit.cli.command_runner import SHARDS, coterie
from tests.unit.cli.stored_cluster import Stored

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "x\x1b]0;owned\x07\x1b[2J\x1b[31m\rFORGED\nFORGED \x9b5m\u202eevil\u2066\u200b\x7f"
"""A title, a cleared screen, a colour, a line overwritten, another line, C1, bidirectional marks, no width, DEL."""
ACTS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
CLI = Path(logs.__file__).parents[1] / "cli"


class Shop(Entity[dict[str, str]]):
    @rpc(persisted=True)
    async def keep(self, text: str) -> str:
        self.state[text] = text
        return text

    @rpc(persisted=True)
    async def fail(self, text: str) -> None:
        raise ValueError(text)


async def order(workflow: Workflow, text: str) -> str:
    async def failing() -> None:
        raise ValueError(text)

    await workflow.step("kept", _kept, text)
    await workflow.step(HOSTILE.replace("/", ""), failing)
    return text


async def _kept(text: str) -> str:
    return text


def program(url: str, name: str) -> Cluster:
    cluster = Cluster(url, runner_name=name, shards=SHARDS, http_listen=None, lease_ttl="30s")
    cluster.entity(retry=Retry(attempts=1))(Shop)
    cluster.workflow(order)

    @cluster.task(retry=Retry(attempts=1))
    async def refuse(text: str) -> None:
        current().progress(1, 2, text)
        raise ValueError(text)

    @cluster.singleton("importer", state=dict[str, str])
    async def importer(leader: Leader[dict[str, str]]) -> None:
        async with leader.update() as state:
            state[HOSTILE] = HOSTILE
        leader.heartbeat(HOSTILE)
        await asyncio.Event().wait()

    @cluster.cron("cleanup", "0 0 1 1 *")
    async def cleanup(_: Tick) -> None:
        raise TimeoutError(HOSTILE)

    return cluster


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stored]:
    running = Stored(f"sqlite:///{tmp_path_factory.mktemp('cli') / 'hostile.db'}", program)
    try:
        running.start("web-1")
        running.do(_fill(running))
        yield running
    finally:
        running.do(running._stop())


async def _fill(running: Stored) -> None:
    cluster = running.cluster
    shop = cluster.ref(Shop, HOSTILE)
    await cluster.send(shop.keep(HOSTILE))
    dead = await cluster.send(shop.fail(HOSTILE))
    await running.until(running._has_status(dead, "dead"))
    MESSAGES.append(dead)
    await cluster.schedules.put(HOSTILE, "0 0 1 1 *", shop.keep(HOSTILE))
    task: Task[..., Any, Any] = Task(cluster._program.tasks.named("refuse"), cluster._program.job_caller)
    job = await cluster.send(task.job(HOSTILE), key=HOSTILE, tags={HOSTILE: HOSTILE})

    async def is_dead() -> bool:
        return (await cluster.jobs.show(job)).state == "dead"

    await running.until(is_dead)
    MESSAGES.append(job)
    await cluster.kv.set(HOSTILE, HOSTILE)
    await cluster.crons.wait(await cluster.crons.trigger("cleanup"), timeout="2m")
    handle = await cluster.start_workflow(order, HOSTILE, id=HOSTILE)

    async def is_over() -> bool:
        return await handle.status() not in ("running", "suspended")

    await running.until(is_over)


MESSAGES: list[str] = []
COMMANDS = [
    ["status"],
    ["runners", "list"],
    ["runners", "show", "web-1"],
    ["runners", "show", HOSTILE],
    ["runners", "drain", HOSTILE, "--dry-run"],
    ["shards", "list"],
    ["shards", "map"],
    ["singletons", "list"],
    ["singletons", "show", "importer"],
    ["singletons", "history", "importer"],
    ["cron", "list"],
    ["cron", "show", "cleanup"],
    ["cron", "history", "cleanup"],
    ["entities", "list"],
    ["entities", "show", f"Shop/{HOSTILE}"],
    ["messages", "list"],
    ["messages", "list", "--state", "dead"],
    ["messages", "show", "<message>"],
    ["messages", "retry", "<message>", "--dry-run"],
    ["queues", "list"],
    ["queues", "show", HOSTILE],
    ["jobs", "list"],
    ["jobs", "list", "--filter", f"task:'{HOSTILE}'"],
    ["jobs", "show", "<job>"],
    ["jobs", "show", HOSTILE],
    ["jobs", "retry", "<job>", "--dry-run"],
    ["jobs", "cancel", "<job>", "--dry-run"],
    ["schedules", "list"],
    ["schedules", "show", HOSTILE],
    ["schedules", "preview", HOSTILE],
    ["schedules", "remove", HOSTILE, "--dry-run"],
    ["schedules", "pause", HOSTILE, "--yes"],
    ["schedules", "resume", HOSTILE, "--yes"],
    ["schedules", "show", f"no {HOSTILE}"],
    ["workflows", "list"],
    ["workflows", "show", f"order/{HOSTILE}"],
    ["kv", "list"],
    ["kv", "get", HOSTILE],
    ["kv", "get", f"no {HOSTILE}"],
    ["kv", "remove", HOSTILE, "--dry-run"],
    ["call", f"Shop/{HOSTILE}", "keep", json.dumps({"text": HOSTILE})],
    ["call", f"Shop/{HOSTILE}", "fail", json.dumps({"text": HOSTILE})],
    ["doctor"],
    ["check"],
]


@pytest.mark.parametrize("as_document", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(each for each in command if each.isalnum()))
def test_no_command_lets_names_act_on_a_terminal(
    command: list[str], as_document: bool, hostile: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [{"<message>": MESSAGES[0], "<job>": MESSAGES[-1]}.get(each, each) for each in command]
    options = ["--json"] if as_document else ["--color"]
    said = coterie(capsys, *given, *options, "--url", hostile.url)
    assert said.code in (0, 1), said
    for text in (said.out, said.err):
        assert not ACTS.search(re.sub(r"\x1b\[3[1-6]m.\x1b\[0m", "", text)), repr(text)
        assert not re.search(r"^FORGED", text, re.MULTILINE), text
    if as_document and said.out:
        json.loads(said.out)


def test_json_means_the_same() -> None:
    for text in (HOSTILE, "\U000e0001 tag", "grüße ✓"):
        document = as_json({"key": text})
        assert json.loads(document) == {"key": text}
        assert document.isprintable()
    assert "grüße ✓" in as_json("grüße ✓")


def test_glyphs_keep_their_colour_and_nothing_else_does() -> None:
    screen = Screen(colour=True)
    for how in ("good", "warn", "bad", "lead", "owned", "move", "none"):
        assert safe(f"{screen.glyph(how)} {how}\nnext") == f"{screen.glyph(how)} {how}\nnext"
    assert safe("\x1b[31mred\x1b[0m") == "\\x1b[31mred\\x1b[0m"
    assert safe("\x1b[32m✓\x1b[0m\x1b[2J") == "\x1b[32m✓\x1b[0m\\x1b[2J"


def test_what_coterie_run_says_is_safe_too(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ConsoleOptions(Console(workers=2))
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        log = logging.LogRecord("coterie", logging.ERROR, __file__, 1, "a task of %s", (HOSTILE,), _raised())
    shown.handle(log)
    said = capsys.readouterr().err
    assert not ACTS.search(said)
    assert not re.search(r"^FORGED", said, re.MULTILINE)


@pytest.mark.parametrize("as_document", [False, True], ids=["text", "json"])
def test_what_was_raised_reaches_no_log_as_it_is(as_document: bool, tmp_path: Path) -> None:
    """A line of its text must not look like another event either."""
    with (tmp_path / "log").open("w+") as stream:
        handler = logs.handler(as_json=as_document, runner="web-1", stream=stream)
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            handler.handle(logging.LogRecord("coterie", 40, __file__, 1, "%s failed", (HOSTILE,), _raised()))
        handler.flush()
        text = (tmp_path / "log").read_text()
    assert not ACTS.search(text)
    first, *rest = text.splitlines()
    assert "failed" in first
    assert all(line.startswith("  ") for line in rest)


def test_text_leaves_by_one_way() -> None:
    """Whoever prints elsewhere prints what strangers have written."""
    allowed = {"output.py", "console.py", "progress.py", "program.py"}  # the last one is the demo's, a user's program
    for file in CLI.rglob("*.py"):
        if file.name not in allowed:
            assert not re.search(r"click\.(echo|secho)\(|(?<![\w.])print\(", file.read_text()), file


def _raised() -> Any:
    import sys

    return sys.exc_info()
