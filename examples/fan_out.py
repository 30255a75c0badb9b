"""Five thousand pictures are scaled, fifty at a time, by one run that goes on where it was when its runner dies.

python examples/fan_out.py              # 500 of them
python examples/fan_out.py 5000
pytest examples/test_fan_out.py         # the same under simulated faults
"""

import asyncio
import sys
import time
from collections import Counter

from coterie import Cluster, Retry, Workflow

LIMIT = 50

cluster = Cluster("sqlite://")
at_once: list[int] = [0, 0]
"""How many are scaled now, and how many were at most."""
scaled: Counter[int] = Counter()


async def scale(picture: int) -> int:
    """Stands for a service that scales a picture. Returns its size."""
    at_once[0] += 1
    at_once[1] = max(at_once)
    try:
        await asyncio.sleep(0.005)
    finally:
        at_once[0] -= 1
    scaled[picture] += 1
    return picture % 100


@cluster.workflow(retry=Retry(5, base="10ms", on=[ConnectionError]))
async def album(workflow: Workflow, pictures: int) -> int:
    sizes = await workflow.map(scale, range(pictures), limit=LIMIT)  # each is a step, stored when it is done
    return sum(sizes)


async def main(pictures: int) -> None:
    async with cluster:
        began = time.perf_counter()
        run = await cluster.start_workflow(album, pictures, id="holidays")
        total = await run.result(timeout="10m")
        print(f"{pictures} pictures in {time.perf_counter() - began:.1f} s, at most {at_once[1]} at once")
    assert total == sum(picture % 100 for picture in range(pictures))
    assert at_once[1] <= LIMIT


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 500))
