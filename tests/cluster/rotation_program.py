"""`coterie payloads rotate`, which dies by SIGKILL: `python rotation_program.py "during payloads.rewrite 2"`.

The moments are those of `kill_points`; without one it runs to its end.
"""

from __future__ import annotations

import sys

from coterie.cli import main as coterie
from tests.cluster import kill_points

if __name__ == "__main__":
    if moment := sys.argv[1]:
        kill_points.install(moment)
    sys.argv[1:] = ["payloads", "rotate", "--yes"]
    coterie()
