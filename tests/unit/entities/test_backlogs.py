"""A backlog of any size beside hand-overs at any moment: each entity's messages run in order, as soon as they can [M5].

What is drawn is what a bug may hide behind: how many messages there are in relation to a page, to the pages of a sweep,
to the mailbox and to the room for early hand-overs, of how many entities, and when others are handed over.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar
from unittest.mock import patch

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from coterie import Entity, rpc
from coterie.entities.persisted import inbox, poller
from coterie.entities.persisted.receiver import HandoverKind, handover_of
from coterie.testing import run_simulation
from tests.unit.entities.fake_storage import StoredLocalHost, now_at
from tests.unit.entities.test_poller import same_shard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from coterie.storage.contracts.messages import Due, Mark, Message

SAMPLE = settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Queue(Entity):
    """Writes down what it began, and when."""

    began: ClassVar[defaultdict[str, list[int]]] = defaultdict(list)
    sent_s: ClassVar[dict[tuple[str, int], float]] = {}
    late_s: ClassVar[list[float]] = []
    """How long after its send each message began."""
    takes_s: ClassVar[float] = 0.0

    @rpc(persisted=True)
    async def note(self, number: int) -> int:
        self.began[self.id].append(number)
        self.late_s.append(now_at().timestamp() - self.sent_s[self.id, number])
        if self.takes_s:
            await asyncio.sleep(self.takes_s)
        return number


@dataclass(frozen=True)
class Backlog:
    """What is stored before a shard is taken, and what is handed over while it is read."""

    page: int
    pages_most: int
    early_most: int
    mailbox: int
    entities: int
    stored: int
    handed_over: tuple[tuple[int, int], ...]
    """After which question for what is due, and of which entity."""
    takes_s: float = 0.0


@st.composite
def backlogs(draw: st.DrawFn) -> Backlog:
    page = draw(st.integers(1, 4))
    pages = draw(st.integers(0, 4))
    entities = draw(st.integers(1, 3))
    moments = st.tuples(st.integers(1, 5), st.integers(0, entities - 1))
    return Backlog(
        page=page,
        pages_most=draw(st.integers(1, 3)),
        early_most=draw(st.sampled_from([1, 2, 1000])),
        mailbox=draw(st.sampled_from([1, 2, 3, 1000])),
        entities=entities,
        stored=max(pages * page + draw(st.integers(-1, 1)), 0),
        handed_over=tuple(draw(st.lists(moments, max_size=6))),
        takes_s=draw(st.sampled_from([0.0, 0.03])),
    )


def handed_over(ground: StoredLocalHost, message: Message) -> str:
    """Store a message that is due at once, and bring it as its sender does."""
    due_s = ground.messages.add(message).due_at.timestamp()
    ground.inbox.hand_over(handover_of(HandoverKind.NEW, message, due_s=due_s))
    return message.id


def played(backlog: Backlog, *, seed: int = 0) -> tuple[dict[str, list[int]], dict[str, int]]:
    """What each entity began, and how many messages it had."""
    Queue.began, Queue.sent_s, Queue.late_s, Queue.takes_s = defaultdict(list), {}, [], backlog.takes_s
    given: defaultdict[str, int] = defaultdict(int)

    async def main() -> None:
        ground = StoredLocalHost((Queue, {"mailbox": backlog.mailbox}))
        who = same_shard(ground, backlog.entities)
        sent: list[str] = []

        def next_of(entity: str) -> int:
            given[entity] += 1
            Queue.sent_s[entity, given[entity]] = now_at().timestamp()
            return given[entity]

        for number in range(backlog.stored):
            entity = who[number % len(who)]
            sent.append(ground.put(entity, "note", next_of(entity)))
        read, asked = ground.messages.due, 0

        async def due(after: Mapping[str, Mark | None], **more: Any) -> Due:
            nonlocal asked
            answer = await read(after, **more)
            asked += 1
            await asyncio.sleep(0.001)
            for moment, place in backlog.handed_over:
                if moment == asked:  # the answer knows nothing of it
                    sent.append(handed_over(ground, ground.message(who[place], "note", next_of(who[place]))))
            await asyncio.sleep(0.001)
            return answer

        ground.messages.due = due  # type: ignore[method-assign]
        loop = asyncio.get_running_loop()
        while asked < 6 or ground.status(*sent) != ["done"] * len(sent):
            assert loop.time() < 30, (Queue.began, ground.status(*sent))
            await asyncio.sleep(0.01)
        await ground.host.stop()

    limits = patch.object(poller, "_PAGE", backlog.page), patch.object(poller, "_PAGES_MOST", backlog.pages_most)
    with limits[0], limits[1], patch.object(inbox, "_EARLY_MOST", backlog.early_most):
        run_simulation(main, seed=seed)
    return Queue.began, given


@SAMPLE
@given(backlogs())
@example(Backlog(2, 3, 1000, 1000, 1, 4, ((1, 0),)))  # the first page is full, and not the last
@example(Backlog(2, 3, 1000, 1000, 1, 2, ((1, 0),)))  # it is full, and the last
@example(Backlog(1, 3, 1, 1000, 1, 0, ((1, 0), (1, 0), (2, 0))))  # more early ones than there is room for
def test_m5_each_entity_begins_its_messages_in_the_order_of_their_sends(backlog: Backlog) -> None:
    began, given = played(backlog)
    assert began == {entity: list(range(1, count + 1)) for entity, count in given.items()}


@SAMPLE
@given(backlogs().filter(lambda backlog: backlog.early_most == 1000 and not backlog.takes_s))
@example(Backlog(2, 1, 1000, 1, 2, 8, ()))  # several sweeps, and a mailbox that is full after each
@example(
    Backlog(3, 1, 1000, 1, 1, 0, ((1, 0),) * 5)
)  # the mailbox is empty again when the round has passed the last one
def test_r2_what_is_stored_begins_when_its_shard_is_taken_not_when_somebody_looks_again(backlog: Backlog) -> None:
    """A sweep that stops half-way goes on at once, and a mailbox that is empty again has the next ones fetched."""
    played(backlog)
    sweeps = backlog.stored + len(backlog.handed_over) + 1  # at most: one for each message
    assert max(Queue.late_s, default=0.0) < sweeps * 0.03, "what the pause between two, and a question, take"
