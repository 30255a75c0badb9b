"""Tools for testing clusters, one's own and coterie itself: virtual time, seeds, faults.

A simulation runs everything in one thread, in virtual time, in an order that a seed decides, and so repeats exactly.

Promise:
    The same seed and the same code give the same run, in any process.

In which order to read: `simulation` (the verbs) with `database` and `faults`; `running` (one seed, one run); `loop`
with `nodes`, `handles`, `scheduling` and `queueing`; `disposal` (the end of a run), `guards`, `trace`, `stuck`;
`network` with `transports` and `pipes`; `chaos`; `checkers`; `campaign` for many seeds; `plugin` for pytest.
`interleaving` stands apart: all orders of two transactions on a real PostgreSQL.
"""

from coterie.testing.faults import (
    EVERYTHING,
    Fault,
    Freezes,
    Kills,
    PeerCuts,
    SlowStorage,
    Stops,
    StorageCuts,
    StorageErrors,
    StorageRestarts,
)
from coterie.testing.running import run_simulation
from coterie.testing.simulation import Runner, Simulation, simulate
from coterie.testing.stuck import Deadlock, StepLimit

__all__ = [
    "EVERYTHING",
    "Deadlock",
    "Fault",
    "Freezes",
    "Kills",
    "PeerCuts",
    "Runner",
    "Simulation",
    "SlowStorage",
    "StepLimit",
    "Stops",
    "StorageCuts",
    "StorageErrors",
    "StorageRestarts",
    "run_simulation",
    "simulate",
]
