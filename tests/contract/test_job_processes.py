"""Bodies of tasks with `pool="process"`: in processes of their own, which can crash and be ended (T6, T7)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from coterie.errors import Discarded
from coterie.tasks.frames import JobCancel, SlotsQuestion
from coterie.tasks.worker.processes import ProcessPool
from tests.contract import process_program
from tests.contract.jobs import CANCELLED, ONE, Desk, desk
from tests.contract.test_job_worker import Workshop, failure, opened, until, until_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from coterie.storage.interface import Storage

__all__ = ["desk"]  # fixtures

WORK, SLOW = process_program.work.type, process_program.slow.type


@pytest.fixture
async def shop(storage: Storage, desk: Desk) -> AsyncIterator[Workshop]:
    shop = Workshop(storage, desk, processes=1)
    shop.use(ProcessPool(shop.settings))
    shop.known |= {"work": WORK, "slow": SLOW}
    async with opened(shop):
        yield shop


def words(reply: bytes | None) -> list[str]:
    return str(WORK.result.decode(reply or b"", "a reply")).split()


async def test_a_body_runs_in_another_process_which_stays(shop: Workshop, capfd: pytest.CaptureFixture[str]) -> None:
    one = words((await shop.ended(WORK, what="a")).reply)
    two = words((await shop.ended(WORK, what="b")).reply)
    assert [one[0], *one[2:]] == ["a", "work", "1"]
    assert one[1] == two[1] != str(os.getpid())
    assert capfd.readouterr().out == "a line for stdout\n" * 2


async def test_a_program_finds_the_arguments_of_its_runner_there(shop: Workshop) -> None:
    reply = (await shop.ended(WORK, what="arguments")).reply
    assert WORK.result.decode(reply or b"", "a reply") == repr(sys.argv)


async def test_what_it_raises_is_treated_as_that_of_any_body(shop: Workshop) -> None:
    """T5: the class decides, in the process that knows it."""
    row = await shop.ended(WORK, what="declared")
    assert (row.state, repr(failure(row, TooDeep=process_program.TooDeep))) == ("done", "TooDeep('a mine')")
    row = await shop.ended(WORK, what="discard")
    assert (row.state, isinstance(failure(row), Discarded)) == ("discarded", True)
    row = await shop.ended(WORK, what="snooze")
    assert (row.state, row.failures) == ("later", 0)
    row = await shop.ended(WORK, what="fail")
    assert (row.state, row.errors[0].error.partition("\n")[0]) == ("later", "ValueError: a wrong value")
    assert "process_program.py" in row.errors[0].error
    row = await shop.ended(WORK, what="never again")
    assert (row.state, row.errors[0].error.partition("\n")[0]) == ("dead", "KeyError: 'a wrong key'")
    row = await shop.ended(WORK, what="exit")
    assert (row.state, row.errors[0].error.partition("\n")[0]) == ("later", "SystemExit: 3")


async def test_a_crash_fails_the_attempt_and_the_next_body_gets_a_new_process(shop: Workshop) -> None:
    row = await shop.ended(WORK, what="crash")
    assert (row.state, row.failures) == ("later", 1)
    problem = "the process that ran it ended before it did: signal 11 (SIGSEGV)"
    assert row.errors[0].error.startswith(f"BodyProcessDied: {problem}")
    assert (await shop.ended(WORK, what="a")).state == "done"


async def test_a_process_that_ended_while_it_was_idle_is_not_used_again(shop: Workshop) -> None:
    pid = int(words((await shop.ended(WORK, what="a")).reply)[1])
    (process,) = shop.runner.processes._all
    os.kill(pid, signal.SIGKILL)
    await until(lambda: process.has_ended)
    assert (await shop.ended(WORK, what="b")).state == "done"


@pytest.mark.parametrize("ignores", [False, True])
async def test_a_cancelled_body_is_told_and_ended_after_a_grace(
    shop: Workshop, ignores: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T6."""
    if ignores:
        monkeypatch.setattr("coterie.tasks.worker.processes.GRACE_S", 0.2)
    delivery = await shop.begin(SLOW, ignores=ignores)

    async def begun() -> bool:
        return (await shop.row(delivery)).progress is not None

    await until_async(begun)
    progress = (await shop.row(delivery)).progress
    assert progress is not None
    assert (progress.done, progress.total) == (1, 2)
    await shop.storage.jobs.cancel(delivery.id, reply=CANCELLED)
    shop.worker.look(JobCancel(delivery.id, delivery.claim))
    await shop.over(delivery)
    assert (await shop.row(delivery)).state == "cancelled"
    assert shop.worker.slots("h", SlotsQuestion(ONE, 1)).processes.free == 1
    after = words((await shop.ended(WORK, what="a")).reply)
    assert (after[1] == progress.note) is not ignores, "it is the same process, unless that was ended"


PROGRAM = """
import asyncio
from types import SimpleNamespace
from coterie import Cluster
from coterie.settings import Settings
from coterie.tasks.worker.processes import ProcessPool

cluster = Cluster("sqlite://")

@cluster.task(pool="process")
def double(number: int) -> int:
    return 2 * number

async def main() -> None:
    pool = ProcessPool(Settings())
    work = SimpleNamespace(message_id="j", attempt=1, runner="r", key=None, trace_id=None)
    try:
        print(await pool.run(double.type, double.type.arguments.encode((21,), {}), work))
    except Exception as error:
        print(error)
    finally:
        await pool.stop()

"""


def printed(*command: str, folder: Path) -> str:
    run = subprocess.run([sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=120)
    return run.stdout + run.stderr


def test_a_program_that_is_started_as_a_file_or_module_is_found(tmp_path: Path) -> None:
    (tmp_path / "doubles.py").write_text(f"{PROGRAM}\nif __name__ == '__main__':\n    asyncio.run(main())\n")
    assert printed("doubles.py", folder=tmp_path) == "42\n"
    assert printed("-m", "doubles", folder=tmp_path) == "42\n"


def test_a_program_that_starts_when_it_is_imported_is_told_what_to_write(tmp_path: Path) -> None:
    start = (
        "from coterie.tasks.worker import processes\nif processes.is_body_process:\n    cluster.run()\n"
        "asyncio.run(main())"
    )
    (tmp_path / "doubles.py").write_text(f"{PROGRAM}\n{start}\n")
    shown = printed("doubles.py", folder=tmp_path)
    assert 'write `if __name__ == "__main__":` before what starts it' in shown


def test_a_task_that_no_other_process_could_import_is_refused(tmp_path: Path) -> None:
    program = (
        "from coterie import Cluster\ncluster = Cluster('sqlite://')\n"
        "def double(n: int) -> int: return n\ncluster.task(pool='process')(double)"
    )
    assert "move it to a module, a file of its own" in printed("-c", program, folder=tmp_path)
