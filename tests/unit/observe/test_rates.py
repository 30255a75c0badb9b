"""What happens in a second, from what runners have counted."""

from __future__ import annotations

import asyncio

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from coterie import Cluster, Entity, rpc
from coterie.kernel.metrics import SECONDS
from coterie.observe.rates import Rate, percentile, rate, rates, together
from tests.unit.observe.cluster_facts import local

SIZE = len(SECONDS) + 1


def times(**counts: int) -> tuple[int, ...]:
    """So many in these places: `times(_1=10)`."""
    return tuple(counts.get(f"_{place}", 0) for place in range(SIZE))


def test_a_rate_is_what_was_counted_between_two_moments() -> None:
    before = local(up_s=100.0, calls=1000, cpu_s=5.0, call_times=times(_0=900, _9=100))
    after = local(up_s=102.0, calls=1400, cpu_s=5.5, call_times=times(_0=1290, _9=110))
    found = rate(before, after)
    assert found == Rate(200.0, times(_0=390, _9=10), 0.25)
    assert found.p50_s is not None
    assert found.p50_s < 0.0005
    assert found.p99_s is not None
    assert 0.25 < found.p99_s <= 0.5


def test_who_was_not_asked_before_has_counted_since_its_start() -> None:
    assert rate(None, local(up_s=100.0, calls=1000, cpu_s=5.0)).calls_s == 10.0
    assert rate(None, local(up_s=0.001, calls=1)).calls_s == 1.0, "a start is no burst"


def test_two_looks_at_one_moment_tell_no_rate() -> None:
    facts = local(up_s=100.0, calls=1000, cpu_s=5.0)
    assert rate(facts, facts).calls_s == 10.0


def test_where_nothing_happened_meanwhile_times_are_those_since_the_start() -> None:
    idle = local(up_s=100.0, calls=10, call_times=times(_0=10))
    found = rate(idle, msgspec.structs.replace(idle, up_s=101.0))
    assert (found.calls_s, found.times) == (0.0, times(_0=10))


def test_all_together() -> None:
    told = {"a": local(up_s=10.0, calls=100, call_times=times(_0=1)), "b": None}
    assert list(rates({}, told)) == ["a"], "who did not answer has no rate"
    both = together([Rate(1.0, times(_0=1), 0.5), Rate(2.0, times(_3=3), 0.25), Rate(1.0, (7,), 0.0)])
    assert both == Rate(4.0, times(_0=1, _3=3), 0.75)
    assert together([]) is None
    assert percentile((), 0.5) is None
    assert percentile((7,), 0.5) is None, "of another version"


@given(st.lists(st.integers(0, 1000), min_size=SIZE, max_size=SIZE), st.floats(0.01, 1.0))
def test_a_percentile_lies_where_the_counts_are(counts: list[int], share: float) -> None:
    found = percentile(counts, share)
    if not sum(counts):
        assert found is None
        return
    assert found is not None
    edges = [0.0, *SECONDS, SECONDS[-1]]
    at_most = sum(count for place, count in enumerate(counts) if edges[place] <= found)
    assert at_most >= sum(counts) * share * 0.999
    later = percentile(counts, min(share + 0.1, 1.0))
    assert later is not None
    assert later >= found


async def test_stored_messages_are_part_of_what_a_runner_handles() -> None:
    """`status` and `top` said 0/s under 200 persisted messages a second."""
    cluster = Cluster("sqlite://", shards=2)

    class Ledger(Entity[None]):
        @rpc(persisted=True)
        async def book(self, number: int) -> int:
            return number

    cluster.entity(Ledger)
    async with cluster:
        await cluster.ready(timeout="2m")
        here = cluster._acting()
        before = here.facts()
        sent = [await cluster.send(cluster.ref(Ledger, str(number)).book(number)) for number in range(20)]
        assert [await cluster.result(each) for each in sent] == list(range(20))
        await asyncio.sleep(0)
        after = here.facts()
        assert before is not None
        assert after is not None
        assert after.calls - before.calls == 20
        apart = msgspec.structs.replace(after, up_s=before.up_s + 0.1)
        assert round(rate(before, apart).calls_s) == 200
