"""Activation: the beginning of a life. An entity that cannot begin keeps its own callers waiting, and nobody else's."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from coterie.entities.driving import first_step
from coterie.entities.entity import activated
from coterie.entities.kept import Kept, key_of
from coterie.errors import PersistenceError
from coterie.kernel.coroutines import coroutine_of, remaining_steps
from coterie.storage.interface import StateLoaded
from coterie.work.limits import STUBBORN_S, settled

if TYPE_CHECKING:
    from coterie.entities.residents import Hosted, Resident
    from coterie.entities.work import Work
    from coterie.kernel.random import Chance

_PAUSE_S, _PAUSE_MOST_S = 0.02, 0.5
"""Between two tries to load a state while the database is away."""


class NotHeld(Exception):
    """The seat is not held any more: nothing was loaded, and the calls belong elsewhere."""


class ActivationFailed(Exception):
    """Carries what kept an entity from beginning, so that it is not taken for an error of the handler."""

    def __init__(self, cause: BaseException) -> None:
        super().__init__(repr(cause))
        self.cause = cause


def awaken_at_once(resident: Resident, now_s: float) -> bool:
    """Begin a life that needs nothing to wait for; false if this one does.

    Raises:
        ActivationFailed: Its `initial_state` raised.
    """
    hosted = resident.hosted
    if hosted.wakes or resident.id in hosted.leaving or resident.after or resident.shard.former:
        return False
    if resident.not_before_s > now_s or (hosted.type.state is not None and resident.shard.storage is not None):
        return False
    _begin(resident, _instance(resident))
    return True


async def awaken(resident: Resident, work: Work) -> None:
    """Begin a life for the sake of a call, which bounds it: whoever drives this cancels it at the call's deadline.

    First what was there before has to be gone: handlers of an earlier tenure, the life of this entity that ended,
    the one that makes room. After failures it waits for the pause of the retry policy.

    Raises:
        ActivationFailed: It did not work. Resources that it opened are closed.
    """
    try:
        await _room(resident)
        pause_s = resident.not_before_s - asyncio.get_running_loop().time()
        if pause_s > 0:
            await asyncio.sleep(pause_s)
        entity = _instance(resident, await _loaded(resident))
        if resident.hosted.wakes:
            await _on_activate(resident, entity, work)
    except (Exception, asyncio.CancelledError, SystemExit) as error:
        await _give_up(resident)
        if isinstance(error, ActivationFailed):
            raise
        raise ActivationFailed(error) from error
    _begin(resident, entity)


def backoff_s(hosted: Hosted, failures: int, chance: Chance) -> float:
    """How long to leave an entity alone that could not begin so often: by its policy, the last pause for ever."""
    last = max(1, hosted.retry.attempts - 1)
    return hosted.retry.delay_s(min(failures, last), chance) or 0.0


async def _room(resident: Resident) -> None:
    """Wait until what was there before is gone."""
    shard, hosted = resident.shard, resident.hosted
    if shard.former is not None:
        await shard.former.wait_quiet(STUBBORN_S)
        shard.former = None
    await settled(each for each in (resident.after, hosted.leaving.get(resident.id)) if each is not None)
    resident.after = None


async def _loaded(resident: Resident) -> StateLoaded:
    """What is stored of its state. A database that is away is asked again: whoever waits bounds that.

    Raises:
        NotHeld: The seat is lost.
    """
    storage, claim = resident.shard.storage, resident.shard.tenure.claim
    if storage is None or resident.hosted.type.state is None:
        return StateLoaded(None, 0)
    pause_s = _PAUSE_S
    while True:
        try:
            loaded = await storage.states.load(claim, key_of(resident.hosted.type.name, resident.id))
        except PersistenceError as error:
            if error.outcome == "refused":
                raise
            if not resident.shard.tenure.held:
                raise NotHeld from error
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _PAUSE_MOST_S)
        else:
            if loaded is None:
                raise NotHeld
            return loaded


def _instance(resident: Resident, loaded: StateLoaded | None = None) -> Any:
    """A new instance with its state: the stored one, or the initial one.

    Raises:
        ActivationFailed: The state cannot be read, or `initial_state` raised.
    """
    entity, codec = activated(resident.hosted.type.cls, resident.id, resident), resident.hosted.type.state
    if codec is None:
        return entity
    key = key_of(resident.hosted.type.name, resident.id)
    try:
        if loaded is not None and loaded.value is not None:
            entity.state = codec.decode(loaded.value)
            # Not what is stored: a state that was migrated, or has a new default, has not changed by being read.
            resident.kept = Kept(codec, key, codec.encode(entity.state), loaded.version)
        else:
            entity.state = entity.initial_state()
            resident.kept = Kept(codec, key, codec.encode(entity.state), 0 if loaded is None else loaded.version)
    except Exception as error:  # a user's method or migration, or bytes that do not fit
        raise ActivationFailed(error) from error
    return entity


async def _on_activate(resident: Resident, entity: Any, work: Work) -> None:
    """In a context of its own: what it sets there, no handler sees."""
    context = resident.shard.context.copy()
    coroutine = coroutine_of(entity.on_activate())
    has_ended, waits_for = context.run(first_step, work, coroutine)
    if not has_ended:
        await remaining_steps(context, coroutine, waits_for)


def _begin(resident: Resident, entity: Any) -> None:
    resident.entity = entity
    resident.limit = resident.hosted.concurrency
    resident.failures = 0
    if resident.hosted.failing:
        resident.hosted.failing.pop(resident.id, None)
    resident.shard.counts.activations += 1
    resident.hosted.lives.value += 1


async def _give_up(resident: Resident) -> None:
    resources, resident.resources = resident.resources, None
    if resources is not None:
        await resident.shard.farewells.within_limit(resources.close(), what=f"the resources of {resident.address}")
