"""`coterie demo`: a cluster of real processes on this machine, under load, with keys that break it.

It measures in front of the user what is promised: how long a takeover takes, what was lost, what was doubled.

`program`       the program of its runners, written into the user's folder as coterie-demo.py
`load`          the calls that it makes, and the records by which lost and doubled deposits are counted
`cluster_view`  what a client sees: the leader, the holders of shards
`runners`       the processes, each with a network that can be cut
`actions`       kill, freeze, cut, add, deploy
`keyboard`      one key at a time
`demo`          the whole demo, from the first line to the verdict
"""

from __future__ import annotations

import asyncio
import signal
import sys

import click


@click.command()
@click.option("--script", is_flag=True, help="Kill, freeze and deploy without a terminal; exit 0 if nothing was lost.")
@click.option("--url", metavar="URL", help="The database (default: the file ./coterie-demo.db).")
def command(script: bool, url: str | None) -> int:
    """A cluster on this machine, with buttons to break it.

    Three runners on one file, accounts, a singleton and a cron. Keys kill, freeze, cut, add and deploy; after each you
    see how long it took, and what was lost or doubled. Without a terminal it is played as with --script.

    \b
    Example:
      coterie demo --url postgresql://app@db.internal/app
    """
    from coterie.cli.client import refuse
    from coterie.cli.demo.cluster_view import DemoFailed
    from coterie.cli.demo.demo import demo

    try:
        return asyncio.run(demo(url, script=script or not sys.stdin.isatty()))
    except DemoFailed as error:
        refuse(str(error), hint="this should not happen; coterie doctor looks at the machine")
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
