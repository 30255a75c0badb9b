"""Timers of entities: rows of schedules on the entity's own shard, set and cancelled with a handler's commit."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from coterie.entities.persisted.outcome import require_small
from coterie.kernel.durations import to_timedelta
from coterie.kernel.ids import EntityAddress, Seat, ShardId, shard_number
from coterie.storage.contracts.schedules import NewSchedule, ScheduleTerms, TimerChange, timer_key

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.entities.host.activation import Resident
    from coterie.entities.reference import Call
    from coterie.kernel.durations import Duration

_SECOND = timedelta(seconds=1)


def timer_of(
    resident: Resident, name: str, call: Call[Any], *, now: datetime, after: Duration | None, every: Duration | None
) -> TimerChange:
    """The row of a timer that a handler sets.

    Raises:
        TypeError: Neither or both of `after` and `every`, or the call has a key.
        ConfigurationError: The time is none.
    """
    require_timer_name(name)
    host, own = resident.shard.host, resident.hosted.type
    if call.rpc.key:
        raise TypeError(f"{call!r} has a key, so that each timer would run it once only: use an rpc without key=")
    terms, next_at = _terms(name, now, after=after, every=every)
    target = host.type_named(call.address.type)
    require_small(call.payload, what=call, most_bytes=host.settings.frame_limit)
    number = shard_number(call.address.type, call.address.id, host.settings.shards)
    timer = NewSchedule(
        key=timer_key(own.name, resident.id, name),
        seat=resident.shard.tenure.seat,
        life=1 + host.chance.bits(62),
        definition=terms.encode(),
        target=Seat.shard(ShardId(target.group, number)),
        entity_type=call.address.type,
        entity_id=call.address.id,
        method=call.rpc.name,
        payload=call.payload,
        since_at=now,
        next_at=next_at,
    )
    return TimerChange(timer.key, timer)


def require_timer_name(name: str) -> str:
    """The name of a timer, if both databases can return it exactly and it is no path.

    Raises:
        TypeError: It is no text.
        ValueError: It is empty, too long, has a slash, or cannot be stored.
    """
    if not isinstance(name, str):
        raise TypeError(f"the name of a timer is {name!r}, expected text")
    if "/" in name:
        raise ValueError(f'the name of timer {name!r} has a "/", which divides entity and timer')
    return EntityAddress("timer", name).id


def _terms(
    name: str, now: datetime, *, after: Duration | None, every: Duration | None
) -> tuple[ScheduleTerms, datetime]:
    if (after is None) == (every is None):
        raise TypeError(f"timer {name!r} has {'neither' if after is None else 'both'} of after= and every=: give one")
    if after is not None:
        at = now + to_timedelta(after, what=f"after of timer {name!r}", allow_zero=True)
        at = max(at, now + timedelta(microseconds=1))
        return ScheduleTerms(at=at), at
    assert every is not None
    interval = to_timedelta(every, what=f"every of timer {name!r}")
    if interval % _SECOND:
        raise TypeError(f"every of timer {name!r} is {every!r}: write whole seconds")
    since = now.replace(microsecond=0)
    return ScheduleTerms(schedule=f"@every {interval // _SECOND}s", overlap="skip"), since + interval
