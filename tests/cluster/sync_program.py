"""Blocking programs, one for each way in which they end or fork: `python sync_program.py <what>`.

Each prints what it saw. The cluster is named by COTERIE_URL; `run` is a runner of it.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import warnings

from coterie import Cluster, CoterieError, Entity, rpc

FAR = "60s"


class Echo(Entity[None]):
    """What is called."""

    @rpc
    async def echo(self, number: int) -> int:
        """Return it."""
        return number


cluster = Cluster(shards=3)
cluster.entity(Echo)


def echo(number: int) -> object:
    """The reply, or the name of the error."""
    try:
        with cluster.sync() as c:
            return c.call(c.ref(Echo, "a", timeout=FAR).echo(number))
    except CoterieError as error:
        return type(error).__name__


def use() -> None:
    """End with the main thread, as a script does."""
    print(echo(1))


def unused() -> None:
    """End without a call."""
    with cluster.sync():
        print("nothing")


def beside() -> None:
    """End while daemon threads are calling."""

    def call() -> None:
        while True:
            echo(2)

    print(echo(1))
    for _ in range(4):
        threading.Thread(target=call, daemon=True).start()


def outlive() -> None:
    """End in another thread, after the main one."""

    def call() -> None:
        threading.main_thread().join()
        print(echo(2))

    print(echo(1))
    threading.Thread(target=call).start()


def raise_error() -> None:
    """End by an exception."""
    print(echo(1), flush=True)
    sys.exit(3)


def fork() -> None:
    """Fork after use, while other threads are calling; each child uses it, too, and ends by itself."""
    warnings.filterwarnings("ignore", "This process", DeprecationWarning)  # since 3.12, of forks beside threads
    print(echo(0), flush=True)
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            assert echo(7) == 7

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    children = []
    for number in range(1, 6):
        child = os.fork()
        if child == 0:
            over.set()
            print(echo(number), flush=True)
            sys.exit(0)  # not os._exit: what it inherited is finalized, or not
        children.append(child)
        time.sleep(0.01)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    over.set()
    for thread in threads:
        thread.join()
    print(codes, echo(9))


if __name__ == "__main__":
    what = sys.argv[1] if len(sys.argv) > 1 else "run"
    if what == "run":
        cluster.run()
    else:
        logging.getLogger("coterie").setLevel(logging.ERROR)  # the server of the tests is one to warn about
        globals()[what]()
