"""What is sent to a run and received by it, and what it publishes (W6, W7). Both take a place like a step.

receive   stored? ──no──▶ take the oldest message, in one commit with the place ─▶ its value
                            └─ there is none: wait for a hint, the timeout, or the next poll ─▶ again
publish   stored? ──no──▶ store the value in one commit with the place
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from coterie.durable import failure
from coterie.durable.position import named
from coterie.durable.waits import POLL_S, Wait, WaitingWork, lane_here, require_open_lane
from coterie.entities.persisted.outcome import require_small
from coterie.errors import MalformedMessage, ReceiveTimeout
from coterie.kernel.serialization.codec import PLAIN, codec_for
from coterie.storage.contracts.run_messages import Publish, Receive

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from datetime import datetime

    from coterie.durable.position import Place
    from coterie.storage.contracts.units import StepRow

_LEAST_S = 0.01
"""The clock of the database may say that a wait is not over yet."""


class MessagingWork(WaitingWork):
    """The messages that a run receives, and the values that it publishes."""

    def receive(self, name: str, type: Any, timeout_s: float | None) -> Coroutine[Any, Any, Any]:
        """The next message of a name."""
        return self._receive(self.places.next_place("receive", named(name, "a message")), type, timeout_s)

    async def _receive(self, place: Place, type: Any, timeout_s: float | None) -> Any:
        await self.opened()
        row = self._row_at(place)
        if row is None:
            await self.may_go_on()
        if row is None or not row.done:
            row = await self._received(place, timeout_s)
        lane = lane_here()
        if lane is not None and row.error is None:
            lane.note_received(place)
        if row.error is not None:
            raise await self.after_others(failure.unpack(row.error), place)
        try:
            return codec_for(type).decode(row.value or b"", what=f"message {place.name!r} to {self.unit}")
        except MalformedMessage as error:
            raise await self.after_others(error) from None

    async def _received(self, place: Place, timeout_s: float | None) -> StepRow:
        late = ReceiveTimeout(unit=self.unit, name=place.name, waited_s=timeout_s or 0.0)
        write = Receive(
            claim=self._tenure.claim,
            unit=self.unit,
            branch=place.branch,
            position=place.position,
            name=place.name,
            due_s=timeout_s,
            late=failure.pack(late),
            runner=self._services.runner,
            life=self.life,
        )
        while True:
            require_open_lane()
            hints = self._hints.came  # a message may come while this one reads
            with self.at_work():
                row = await self._take(place, write)
            self._row_at(place)
            if row.done:
                return row
            await self._wait_for_message(place.name, row.due_at, hints)

    async def _take(self, place: Place, write: Receive) -> StepRow:
        """Receive, or wait. A side of a race that is cancelled meanwhile ends when it is known what it has received."""
        lane = lane_here()
        if lane is None:
            return await self._written(place, partial(self._services.storage.run_messages.receive, write))
        taking = self._spawn(
            self._written(place, partial(self._services.storage.run_messages.receive, write)), f"receive {place.name}"
        )
        try:
            row: StepRow = await asyncio.shield(taking)
        except asyncio.CancelledError:
            await asyncio.gather(taking, return_exceptions=True)
            if not taking.cancelled() and taking.exception() is None and taking.result().done:
                lane.note_received(place)
            raise
        return row

    async def _wait_for_message(self, name: str, due_at: datetime | None, hints: int) -> None:
        """Wait until there may be a message, or the wait is over."""
        left_s = POLL_S if due_at is None else max(self._dial.until_s(due_at), _LEAST_S)
        wait = Wait(None, due_at, inbox=name)
        self.waits[wait] = None
        self._notify_if_quiet()
        self._count_in()
        try:
            if self._hints.came == hints:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left_s, POLL_S)):
                        await self._hints.wait()
            self.require_held()
        finally:
            del self.waits[wait]
            self._count_out()
            self._notify_if_quiet()

    def publish(self, name: str, value: Any) -> Coroutine[Any, Any, None]:
        """Publish a value under a name, as it is now."""
        what = f"value {name!r} published by {self.unit}"
        data = PLAIN.checked(value, what=what)
        require_small(data, what=what, most_bytes=self._most_bytes)
        return self._publish(self.places.next_place("publish", named(name, "a published value")), data)

    async def _publish(self, place: Place, data: bytes) -> None:
        await self.opened()
        if self._row_at(place) is not None:
            return
        await self.may_go_on()
        write = Publish(
            claim=self._tenure.claim,
            unit=self.unit,
            branch=place.branch,
            position=place.position,
            name=place.name,
            value=data,
            runner=self._services.runner,
            life=self.life,
        )
        with self.at_work():
            await self._written(place, partial(self._services.storage.run_messages.publish, write))
        self._row_at(place)
