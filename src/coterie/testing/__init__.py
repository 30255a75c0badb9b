"""Tools for testing clusters, one's own and coterie itself: virtual time, seeds, faults.

A simulation runs everything in one thread, in virtual time, in an order that a seed decides, and so repeats exactly.

Promise:
    The same seed and the same code give the same run, in any process.

In which order to read: `running` (one seed, one run), `loop` with `nodes`, `handles`, `scheduling` and `queueing`,
`disposal` (the end of a run), `guards`, `trace`, `stuck`; then `network` with `transports` and `pipes`; `chaos`;
`plugin` for pytest.
"""

from coterie.testing.running import run_simulation
from coterie.testing.stuck import Deadlock, StepLimit

__all__ = ["Deadlock", "StepLimit", "run_simulation"]
