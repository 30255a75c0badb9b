"""Run the benchmarks and print a table (or JSON): `python -m bench [--json] [--quick]`."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys

from bench import kv
from bench.measure import Row, fsync_per_s

HEADER = f"{'SCENARIO':<24}{'CALLERS':>8}{'COTERIE/S':>12}{'RAW/S':>12}{'RATIO':>8}{'GOAL':>8}"


def main() -> None:
    options = _options()
    rows = asyncio.run(
        _run(rounds=3 if options.quick else 7, seconds=0.3 if options.quick else 0.7, talk=not options.json)
    )
    floor = fsync_per_s()
    if options.json:
        print(json.dumps({"fsync_per_s": floor, "rows": [dataclasses.asdict(row) for row in rows]}))
    else:
        print(f"\nfdatasync of 8 KiB on this disk: {floor:,.0f}/s. RAW is the same driver with one commit each;")
        print(f"on PostgreSQL over {kv.RAW_CONNECTIONS} connections. Ratios are medians of alternating rounds.")
    if any(not row.met for row in rows):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, for a first look")
    return parser.parse_args()


async def _run(*, rounds: int, seconds: float, talk: bool) -> list[Row]:
    rows = []
    if talk:
        print(HEADER, flush=True)
    async for row in kv.run(rounds=rounds, seconds=seconds):
        rows.append(row)
        if talk:
            print(_line(row), flush=True)
    return rows


def _line(row: Row) -> str:
    goal = "" if row.goal is None else f"{row.goal:g}"
    mark = "" if row.goal is None else (" ✓" if row.met else " ✗")
    return (
        f"{row.scenario:<24}{row.callers:>8}{row.ours_per_s:>12,.0f}{row.raw_per_s:>12,.0f}"
        f"{row.ratio:>8.2f}{goal:>8}{mark}"
    )


if __name__ == "__main__":
    main()
