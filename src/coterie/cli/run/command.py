"""`coterie run`: runners of a program, in this process or in several."""

from __future__ import annotations

import asyncio
import os
import socket

import click

from coterie import main
from coterie.cli.client import WRONG, refuse
from coterie.cli.run.console import Console, log_to_console
from coterie.cli.run.load import LoadedProgram, Target, load, parse
from coterie.cli.run.reporter import Reporter, WorkerReporter, shown_database
from coterie.settings.parsers import split_address
from coterie.storage.engines import file_of

_URL, _HTTP, _NAME = "COTERIE_URL", "COTERIE_HTTP_LISTEN", "COTERIE_RUNNER_NAME"


@click.command()
@click.argument("target")
@click.option("--workers", type=click.IntRange(1, 256), help="Run this many runners, each in a process of its own.")
@click.option(
    "--port", type=click.IntRange(0, 65535), help="Port of probes and health; further workers use the next ports."
)
@click.option("--reload", is_flag=True, help="Drain and start again when the program's files change.")
@click.option("--url", metavar="URL", help="The database (default: COTERIE_URL, else ./coterie.db).")
@click.option("--no-wait", is_flag=True, help="Refuse a database that cannot be reached, instead of waiting for it.")
@click.option("--worker", hidden=True, help="The number of this worker, and its socket to the process that started it.")
def command(
    target: str,
    workers: int | None,
    port: int | None,
    reload: bool,
    url: str | None,
    no_wait: bool,
    worker: str | None,
) -> int:
    """Run runners of app.py or package.module:cluster.

    Without --workers and --reload the runner is this process. Ctrl-C and SIGTERM drain it: running work may finish,
    everything else is handed over. A second signal, half a second later or more, ends it at once.

    Waits for a database server that cannot be reached yet.

    \b
    Example:
      coterie run app.py --workers 4 --port 7650
    """
    place = parse(target)
    if url is not None:
        os.environ[_URL] = url
    if port is not None:
        os.environ[_HTTP] = _listen(port)
    if worker is not None:
        return _work(place, worker, wait=not no_wait)
    if workers is None and not reload:
        return _run_here(place, url=url, port=port, wait=not no_wait)
    from coterie.cli.run.supervisor import supervise

    many = workers or 1
    return asyncio.run(
        supervise(target, place, workers=many, reload=reload, wait=not no_wait, env=lambda number: _env(number, many))
    )


def _run_here(place: Target, *, url: str | None, port: int | None, wait: bool) -> int:
    loaded, console = load(place), Console()
    _refuse_vain_options(loaded, url=url, port=port)
    if loaded.cluster.settings.log_format == "json":  # for programs: everything is in the log
        loaded.cluster._run(wait=wait)
    else:
        log_to_console(console)
        loaded.cluster._run(reporter=Reporter(loaded, console.on_event), wait=wait)
    return 0


def _work(place: Target, worker: str, *, wait: bool) -> int:
    number, _, line = worker.partition(":")
    loaded = load(place)
    _refuse_memory(loaded)
    if loaded.cluster.settings.log_format == "json":
        main.configure_logs(loaded.cluster.settings)
    else:
        log_to_console(Console())
    with socket.socket(fileno=int(line)) as opened:
        opened.set_inheritable(False)
        loaded.cluster._run(reporter=WorkerReporter(loaded, opened), number=int(number), wait=wait)
    return 0


def _listen(port: int) -> str:
    before = os.environ.get(_HTTP, "")
    host = split_address(before)[0] if ":" in before else "127.0.0.1"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _env(number: int, workers: int) -> dict[str, str]:
    """The variables that differ by worker: a configured name would be that of all of them."""
    name = os.environ.get(_NAME, "")
    return {_NAME: f"{name}-{number}"} if name and workers > 1 else {}


def _refuse_vain_options(loaded: LoadedProgram, *, url: str | None, port: int | None) -> None:
    """Refuse options that the program overrides: they would have no effect."""
    settings = loaded.cluster.settings
    for option, given, setting in (("--url", url, "url"), ("--port", port, "http_listen")):
        if given is not None and settings.origin(setting) == "argument":
            hint = f"take {setting}= out of Cluster(…), or leave {option} out"
            refuse(
                f"{loaded.shown} sets {setting} itself: {option} {given} would change nothing", hint=hint, code=WRONG
            )


def _refuse_memory(loaded: LoadedProgram) -> None:
    settings = loaded.cluster.settings
    if settings.url.startswith("sqlite") and file_of(settings) is None:
        hint = "use a file (sqlite:///coterie.db) or PostgreSQL, or leave --workers and --reload out"
        refuse(
            f"{shown_database(settings)} is the memory of one process: workers cannot share it", hint=hint, code=WRONG
        )
