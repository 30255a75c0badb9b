"""Joining: only a runner that may be alive is a reason to refuse, and the error is the same as ever."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from coterie.errors import ConfigurationError
from coterie.ownership import admission
from coterie.settings import Settings
from coterie.storage.interface import Presences, Registration
from tests.unit.ownership.rows import runner, view

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from coterie.storage.interface import ClusterSnapshot, SeatDeclaration

ME = Registration(id="me", name="web-2", address="127.0.0.1:7651", host_id="boot 2", groups=("default",))
OLD = msgspec.structs.replace(runner("old"), name="web-1", address="127.0.0.1:7651", host_id="boot 1")
FREE = Presences("start", frozenset(), {"old": 7}, up_s=60.0)
HELD = msgspec.structs.replace(FREE, held=frozenset({"old"}))
OVER = msgspec.structs.replace(FREE, expired=frozenset({"old"}))
POOLED = Presences("", frozenset({"old"}), {"old": 7}, unwitnessed=frozenset({"old"}))


class Session:
    """Answers what it was given, one look after the other; the last one again and again."""

    def __init__(self, *looks: Presences) -> None:
        self.looks = list(looks)
        self.asked = 0
        self.registered = False

    async def ask(self, work: Callable[[Any], Awaitable[Any]]) -> Any:
        return await work(self)

    async def view(self) -> ClusterSnapshot:
        return view([OLD], [])

    async def presences(self, runners: Sequence[str]) -> Presences:
        assert list(runners) == ["old"]
        self.asked += 1
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    async def register(self, me: Registration, seats: Sequence[SeatDeclaration]) -> None:
        self.registered = True


async def join(*looks: Presences, me: Registration = ME) -> Session:
    """Join beside the row of an older runner; a look takes 5 ms, the second one comes after 15."""
    session: Any = Session(*looks)
    settings = Settings(lease_renew=timedelta(milliseconds=10))
    await admission.register(me, settings, session, [], lambda: session.asked * 5_000_000)
    return session  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([OVER], id="its lease is over"),
        pytest.param([msgspec.structs.replace(HELD, expired=OVER.expired)], id="its session was left behind"),
        pytest.param([msgspec.structs.replace(FREE, gone=frozenset({"old"}))], id="the kernel says so"),
        pytest.param([FREE, Presences("start", frozenset(), {})], id="it was evicted meanwhile"),
        pytest.param([FREE], id="its lock stays free"),
        pytest.param([POOLED, POOLED, msgspec.structs.replace(POOLED, expired=OVER.expired)], id="pooled"),
    ],
)
async def test_a_row_that_a_crash_has_left_behind_refuses_nobody(looks: list[Presences]) -> None:
    """After an unclean reboot another boot id stands in the row, for ever."""
    assert (await join(*looks)).registered


@pytest.mark.parametrize(
    "looks",
    [
        pytest.param([HELD], id="its session is there"),
        pytest.param([FREE, HELD], id="it comes back after a restart of the server"),
        pytest.param([FREE, msgspec.structs.replace(FREE, counters={"old": 8})], id="it renews"),
        pytest.param([POOLED, msgspec.structs.replace(POOLED, counters={"old": 8})], id="it renews behind a pooler"),
    ],
)
async def test_a_runner_that_may_be_alive_on_another_host_is_a_reason_to_refuse(looks: list[Presences]) -> None:
    with pytest.raises(ConfigurationError, match=r"web-2 listens on loopback .* and web-1 runs on another host"):
        await join(*looks)


async def test_on_the_same_host_nobody_is_asked() -> None:
    session = await join(HELD, me=msgspec.structs.replace(ME, host_id=OLD.host_id))
    assert session.registered
    assert session.asked == 0


def test_a_second_look_comes_later_than_the_next_renewal_of_a_living_runner() -> None:
    settings = Settings()
    rule = admission.rule(settings)
    assert rule.pause_ns == 1_500_000_000
    assert rule.ttl_s == settings.lease_ttl.total_seconds()
