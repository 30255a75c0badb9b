"""Run the benchmarks and print a table (or JSON): `python -m bench [kv] [transport] … [--json] [--quick]`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from bench import (
    assignment,
    calls,
    crons,
    http_calls,
    kv,
    messages,
    ownership,
    page,
    payloads,
    schedules,
    singletons,
    sql,
    sync,
    tasks,
    telemetry,
    transport,
    via,
    workflows,
)
from bench.measure import Row, fsync_per_s
from bench.peers import run

HEADER = f"{'SCENARIO':<28}{'CALLERS':>8}{'COTERIE/S':>12}{'RAW/S':>12}{'RATIO':>8}{'GOAL':>8}"


SUITES = {
    "kv": kv.run,
    "transport": transport.run,
    "assignment": assignment.run,
    "ownership": ownership.run,
    "calls": calls.run,
    "sync": sync.run,
    "http_calls": http_calls.run,
    "messages": messages.run,
    "sql": sql.run,
    "payloads": payloads.run,
    "via": via.run,
    "singletons": singletons.run,
    "crons": crons.run,
    "schedules": schedules.run,
    "tasks": tasks.run,
    "workflows": workflows.run,
    "telemetry": telemetry.run,
    "page": page.run,
}


def main() -> None:
    options = _options()
    rounds, seconds = (3, 0.3) if options.quick else (7, 0.7)
    rows = run(_run(options.suite or list(SUITES), rounds=rounds, seconds=seconds, talk=not options.json))
    floor = fsync_per_s()
    if options.json:
        print(json.dumps({"fsync_per_s": floor, "rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        print(f"\nfdatasync of 8 KiB on this disk: {floor:,.0f}/s. RAW is what stands behind the slash, or the same")
        print(f"driver with one commit each (PostgreSQL: over {kv.RAW_CONNECTIONS} connections).")
        print("Ratios are medians of alternating rounds.")
    if any(not row.met for row in rows):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", nargs="*", choices=[[], *SUITES], help="which figures (default: all)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, for a first look")
    return parser.parse_args()


async def _run(suites: list[str], *, rounds: int, seconds: float, talk: bool) -> list[Row]:
    rows = []
    if talk:
        print(HEADER, flush=True)
    for suite in suites:
        async for row in SUITES[suite](rounds=rounds, seconds=seconds):
            rows.append(row)
            if talk:
                print(_line(row), flush=True)
    return rows


def _line(row: Row) -> str:
    if isinstance(row, ownership.Limit):
        return row.line()
    goal = "" if row.goal is None else f"{row.goal:.2g}"
    mark = "" if row.goal is None else (" ✓" if row.met else " ✗")
    return (
        f"{row.scenario:<28}{row.callers:>8}{row.ours_per_s:>12,.0f}{row.raw_per_s:>12,.0f}"
        f"{row.ratio:>8.2f}{goal:>8}{mark}"
    )


if __name__ == "__main__":
    main()
