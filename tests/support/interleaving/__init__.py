"""All interleavings of two transactions on a real PostgreSQL, with sessions lost anywhere, also in COMMIT.

What only concurrent transactions show (a guard that reads but does not lock, two writers in opposite order) cannot
appear in a store that serialises writers, hence not in simulation [m16]. Here two sessions play two
scripts; after every statement the choice of who goes next is open, and all choices are tried. A statement that waits
for the other session stays waiting while that one goes on. The final tables, and what each session was told, are
judged.

    pair  = two scripts, the rows to begin with, and a judge
    order = who took each turn: "AABAB"; pair, loss and order repeat a run exactly

Read `scripts.py` (what is played), `orders.py` (which orders there are), `run.py` (how one run is played), `track.py`
and `sessions.py` (one side of it, and the database).
"""

from tests.support.interleaving.orders import Count, explore
from tests.support.interleaving.run import Run, SessionPair
from tests.support.interleaving.scripts import COMMIT, Loss, Pair, PairTables, Script, Step, atomic, losses
from tests.support.interleaving.track import SessionOutcome

__all__ = [
    "COMMIT",
    "Count",
    "Loss",
    "Pair",
    "PairTables",
    "Run",
    "Script",
    "SessionOutcome",
    "SessionPair",
    "Step",
    "atomic",
    "explore",
    "losses",
]
