"""A runner whose handlers block in threads: for ever in its first life, not at all in the next one.

python thread_program.py URL FOLDER
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

from coterie import Cluster, Entity, rpc


@dataclass
class Total:
    cents: int = 0


def program(url: str, folder: str) -> Cluster:
    cluster = Cluster(url, shards=4, drain="300ms", http_listen=None)

    @cluster.entity
    class Account(Entity[Total]):
        @rpc(persisted=True)
        def deposit(self, cents: int) -> int:
            begun = Path(folder, "begun")
            self.state.cents += cents
            if not begun.exists():
                begun.touch()
                time.sleep(3600)
            return self.state.cents

    cluster.account = Account  # type: ignore[attr-defined]
    return cluster


if __name__ == "__main__":
    program(*sys.argv[1:]).run()
