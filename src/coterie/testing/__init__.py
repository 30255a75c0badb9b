"""Tools for testing clusters, one's own and coterie itself: virtual time, seeds, faults.

A simulation runs everything in virtual time, one thing at a time, in an order that a seed decides, and so repeats
exactly. Plain functions of the program have threads, which take turns with the loop (`threads`).

Promise:
    The same seed and the same code give the same run, in any process.

In which order to read: `simulation` and `runner` (the verbs) with `lease_thread`, `threads`, `database`, `witness` and
`faults`; `run` (one seed, one run); `loop/` (virtual time, tasks, the order that a seed decides, the end of a run);
`network/`; `chaos`; `plugin` for pytest. `probe` tests one entity, without any of this. `replay` calls a workflow
with the history of a run.

Real processes have the same verbs: `processes` with `proxy`; `postgres` for a PostgreSQL server of the test's own.
"""

from coterie.errors import ReplayDiverged
from coterie.testing.faults import (
    EVERYTHING,
    Blackouts,
    Blocks,
    ClockSteps,
    Fault,
    Freezes,
    Kills,
    PeerCuts,
    SlowStorage,
    Stops,
    StorageClockSteps,
    StorageCuts,
    StorageErrors,
    StorageRestarts,
    TaskFailures,
)
from coterie.testing.loop.deadlock import Deadlock, StepLimit
from coterie.testing.postgres import Server
from coterie.testing.probe import probe
from coterie.testing.processes import Process, Processes, processes
from coterie.testing.replay import replay
from coterie.testing.run import run_simulation
from coterie.testing.runner import Runner
from coterie.testing.simulation import NobodyHolds, Simulation, simulate

__all__ = [
    "EVERYTHING",
    "Blackouts",
    "Blocks",
    "ClockSteps",
    "Deadlock",
    "Fault",
    "Freezes",
    "Kills",
    "NobodyHolds",
    "PeerCuts",
    "Process",
    "Processes",
    "ReplayDiverged",
    "Runner",
    "Server",
    "Simulation",
    "SlowStorage",
    "StepLimit",
    "Stops",
    "StorageClockSteps",
    "StorageCuts",
    "StorageErrors",
    "StorageRestarts",
    "TaskFailures",
    "probe",
    "processes",
    "replay",
    "run_simulation",
    "simulate",
]
