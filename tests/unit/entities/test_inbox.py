"""Stored messages in a runner's memory: what is begun, what is left, in which order, and who is told."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import ClassVar

import msgspec
import pytest

from coterie import Entity, Retry, rpc
from coterie.entities.calls.wire import LOOK
from coterie.entities.persisted import inbox
from coterie.entities.persisted.outcome import cancelled
from coterie.entities.persisted.receiver import HandoverKind, handover_of
from coterie.errors import NewerVersion
from tests.unit.entities.fake_storage import StoredLocalHost, now_at, occupant, stored, unknown, unreachable

pytestmark = pytest.mark.simulated(seeds=2)


class Diary(Entity):
    """Writes down who began and ended what, when."""

    began: ClassVar[list[tuple[str, int]]] = []
    ended: ClassVar[list[int]] = []
    gates: ClassVar[dict[str, asyncio.Event]] = {}
    at_s: ClassVar[dict[int, float]] = {}

    @rpc(persisted=True)
    async def note(self, number: int) -> int:
        self.began.append((self.id, number))
        self.at_s[number] = now_at().timestamp()
        if self.id in self.gates:
            await self.gates[self.id].wait()
        self.ended.append(number)
        return number

    @rpc(persisted=True)
    async def fail(self, number: int) -> int:
        self.began.append((self.id, number))
        raise ValueError(f"not {number}")

    @rpc(persisted=True)
    async def newer(self) -> None:
        raise NewerVersion(what="a state", found=2, known=1)

    @rpc(persisted=True)
    async def nothing(self) -> None:
        self.began.append((self.id, 0))

    @rpc
    async def ping(self) -> str:
        return "pong"


class Slow(Diary):
    """Its activation waits for the gate of its id."""

    async def on_activate(self) -> None:
        await self.gates[f"wake {self.id}"].wait()


@pytest.fixture(autouse=True)
def fresh() -> None:
    Diary.began, Diary.ended, Diary.gates, Diary.at_s = [], [], {}, {}


def numbers() -> list[int]:
    return [number for _, number in Diary.began]


async def passed(seconds: float = 0.1) -> None:
    await asyncio.sleep(seconds)


# What comes in


async def test_what_is_handed_over_runs_and_whoever_waits_is_told_once_after_the_commit() -> None:
    async with stored(Diary) as ground:
        gate = ground.messages.hold("commit")
        sent = ground.send("a", "note", 1)
        await passed()
        assert (numbers(), ground.told[sent]) == ([1], [])
        gate.set()
        await passed()
        assert ground.told[sent] == [b"\x01"]
        assert ground.status(sent) == ["done"]
        ground.bring(ground.message("a", "note", 1, id=sent), store=False)
        assert ground.told[sent] == [b"\x01", LOOK], "it has ended: storage knows more"
        assert numbers() == [1]


async def test_m5_a_shard_takes_hand_overs_only_behind_its_first_read() -> None:
    ground = StoredLocalHost(Diary)
    gate = ground.messages.hold("due")
    first, second = (ground.put("a", "note", number) for number in (1, 2))
    await passed()
    third = ground.send("a", "note", 3)
    await passed()
    assert numbers() == [], "nobody knows yet what was there before"
    gate.set()
    await passed()
    assert numbers() == [1, 2, 3]
    assert ground.status(first, second, third) == ["done"] * 3
    await ground.host.stop()


async def test_more_early_hand_overs_than_there_is_room_for_are_found_by_a_sweep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R2: what waits for the first read is bounded."""
    monkeypatch.setattr("coterie.entities.persisted.inbox._EARLY_MOST", 2)
    ground = StoredLocalHost(Diary)
    gate = ground.messages.hold("due")
    await passed()
    for number in range(1, 5):
        ground.send("a", "note", number)
    assert sum(len(shard.early) for shard in ground.inbox.shards.values()) == 2
    gate.set()
    await passed(3)
    assert numbers() == [1, 2, 3, 4]
    await ground.host.stop()


async def test_m5_a_hand_over_for_another_epoch_is_dropped_and_the_sweep_finds_the_row() -> None:
    async with stored(Diary) as ground:
        sent = ground.bring(ground.message("a", "note", 1), epoch=ground.epoch + 1)
        assert ground.told[sent] == [LOOK]
        assert numbers() == []
        await ground.poller.poll()
        await passed()
        assert numbers() == [1]
        also = ground.bring(ground.message("a", "note", 2), epoch=ground.epoch)
        await passed()
        assert ground.told[also] == [b"\x02"]


async def test_a_shard_that_is_not_ours_or_lost_says_look() -> None:
    async with stored(Diary) as ground:
        stray = ground.message("a", "note", 1, seat="shard:elsewhere:1")
        assert ground.told[ground.bring(stray)] == [LOOK]
        occupant(ground, "a").tenure.ended = True
        assert ground.told[ground.send("a", "note", 2)] == [LOOK]
        assert numbers() == []


async def test_what_was_brought_before_runs_only_if_storage_has_it_pending() -> None:
    """It may have run since: a message asked after is looked for, never begun from what its sender remembers."""
    async with stored(Diary) as ground:
        ended = ground.put("a", "note", 1)
        ground.messages.end(ended, "done", b"\x01")
        ground.bring(ground.message("a", "note", 1, id=ended), again=True, store=False)
        pending = ground.put("a", "note", 2)
        ground.bring(ground.message("a", "note", 2, id=pending), again=True, store=False)
        assert numbers() == []
        await passed()
        assert numbers() == [2]
        assert (ground.told[ended], ground.told[pending]) == ([], [b"\x02"])


async def test_what_is_in_memory_is_not_begun_again_and_all_who_wait_are_told() -> None:
    async with stored(Diary) as ground:
        Diary.gates["a"] = asyncio.Event()
        sent = ground.send("a", "note", 1)
        ground.bring(ground.message("a", "note", 1, id=sent), store=False)
        ground.bring(ground.message("a", "note", 1, id=sent), again=True, store=False)
        await ground.poller.poll()
        Diary.gates["a"].set()
        await passed()
        assert numbers() == [1]
        assert ground.told[sent] == [b"\x01"] * 3


async def test_whoever_leaves_is_not_told_and_the_message_stays() -> None:
    async with stored(Diary) as ground:
        Diary.gates["a"] = asyncio.Event()
        message, heard = ground.message("a", "note", 1), list[bytes]()
        row = ground.messages.add(message)
        handover = handover_of(HandoverKind.NEW, message, due_s=row.due_at.timestamp())
        ground.inbox.hand_over(handover, waiter=heard.append)
        ground.inbox.remove_waiter(message.id, heard.append)
        ground.inbox.remove_waiter(message.id, heard.append)
        Diary.gates["a"].set()
        await passed()
        assert (heard, ground.status(message.id)) == ([], ["done"])


async def test_m5_what_ended_while_a_sweep_asked_is_not_taken_for_new() -> None:
    async with stored(Diary) as ground:
        for verb in ("due", "fetch"):
            Diary.began.clear()
            gate = ground.messages.hold(verb)
            ground.put("b", "note", 5)  # something to fetch
            message = ground.message("a", "note", 1)
            ground.messages.add(message)
            ground.host.wake()
            await passed()
            ground.bring(message, store=False)
            await passed()
            assert ground.status(message.id) == ["done"], verb
            gate.set()
            ground.messages.gates.clear()
            await ground.poller.poll()
            await passed()
            assert numbers().count(1) == 1, verb


# Order


async def test_m5_once_one_is_left_in_storage_later_ones_of_that_entity_are_left_too() -> None:
    async with stored((Diary, {"mailbox": 2})) as ground:
        Diary.gates["a"] = asyncio.Event()
        for number in range(1, 7):
            ground.send("a", "note", number)
        await passed(0.01)
        Diary.gates["a"].set()
        await passed(0.01)
        assert numbers() == [1, 2, 3], "there is room again, but 4 was left"
        late = ground.send("a", "note", 7)
        neighbour = ground.send("b", "note", 100)
        await passed(0.01)
        assert ground.status(late, neighbour) == ["pending", "done"], "a neighbour is not concerned"
        await passed(4)
        assert [number for number in numbers() if number != 100] == [1, 2, 3, 4, 5, 6, 7]


async def test_d1_a_steady_sender_does_not_keep_what_was_left_in_storage_there() -> None:
    async with stored((Diary, {"mailbox": 1})) as ground:
        Diary.gates["a"] = asyncio.Event()
        for number in range(1, 5):
            ground.send("a", "note", number)
        await passed(0.01)
        Diary.gates["a"].set()
        for number in range(5, 100):
            ground.send("a", "note", number)
            await passed()
        assert numbers()[:4] == [1, 2, 3, 4]
        assert len(numbers()) > 80
        assert numbers() == sorted(numbers())
        await passed(3)
        assert numbers() == list(range(1, 100))


async def test_a_backlog_of_an_entity_with_a_small_mailbox_drains_as_fast_as_its_handler() -> None:
    async with stored((Diary, {"mailbox": 3})) as ground:
        for number in range(1, 200):
            ground.send("a", "note", number)
        await passed(5)
        assert numbers() == list(range(1, 200))


async def test_after_a_round_has_caught_up_hand_overs_are_taken_at_once_again() -> None:
    async with stored((Diary, {"mailbox": 1})) as ground:
        Diary.gates["a"] = asyncio.Event()
        for number in range(1, 5):
            ground.send("a", "note", number)
        Diary.gates.pop("a").set()
        await passed(5)
        sent = ground.send("a", "note", 5)
        await passed(0.001)
        assert ground.status(sent) == ["done"]


async def test_mbox_09_a_message_to_an_entity_that_has_no_room_waits_in_storage() -> None:
    async with stored(Diary, resident_entities=1) as ground:
        Diary.gates["a"] = asyncio.Event()
        ground.send("a", "note", 1)
        other = ground.send("b", "note", 2)
        await passed(5)
        assert (numbers(), ground.status(other), ground.told[other]) == ([1], ["pending"], [])
        Diary.gates["a"].set()
        await passed(3)
        assert numbers() == [1, 2]
        assert ground.told[other] == [b"\x02"], "whoever waits for it goes on waiting"


async def test_memory_is_bounded_and_what_is_beyond_it_waits_in_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    """R1."""
    monkeypatch.setattr(inbox, "MEMORY_MOST", 3)
    monkeypatch.setattr("coterie.entities.persisted.poller.MEMORY_MOST", 3)
    async with stored(Diary) as ground:
        for who in "abcdef":
            Diary.gates[who] = asyncio.Event()
            ground.send(who, "note", ord(who))
        await passed(3)
        assert len(ground.inbox.works) == 3
        for gate in Diary.gates.values():
            gate.set()
        await passed(5)
        assert sorted(numbers()) == [ord(who) for who in "abcdef"]


# What is due later


async def test_d5_what_is_due_later_runs_in_order_of_time_and_never_early() -> None:
    async with stored(Diary) as ground:
        due_s = {}
        for number, delay_s in ((1, 3.0), (2, 0.5), (3, 2.0), (4, 2.0), (5, 59.0)):
            due_s[number] = now_at().timestamp() + delay_s
            ground.bring(ground.message("a", "note", number, delay_s=delay_s))
        await passed(70)
        assert numbers() == [2, 3, 4, 1, 5]
        late_s = [Diary.at_s[number] - due_s[number] for number in due_s]
        assert all(0 <= each < 0.05 for each in late_s), late_s


async def test_d5_what_is_due_after_the_next_window_stays_in_storage_until_then() -> None:
    """m13: the heap holds a window, not the future. Incident 28: a delay longer than any internal timeout."""
    async with stored(Diary) as ground:
        sent = ground.send("a", "note", 1, delay_s=300.0)
        due_s = now_at().timestamp() + 300
        await passed(100)
        assert sent not in ground.inbox.works
        await passed(160)
        assert sent in ground.inbox.works
        await passed(60)
        assert numbers() == [1]
        assert 0 <= Diary.at_s[1] - due_s < 0.05
        assert ground.told[sent] == [b"\x01"]


async def test_a_delay_reckoned_before_the_database_was_asked_is_not_from_1970() -> None:
    ground = StoredLocalHost(Diary)
    assert ground.inbox.now_s() == ground.clock.wall_ns() / 1e9
    await ground.host.stop()


async def test_a_clock_that_turns_out_to_be_behind_lets_nothing_run_early() -> None:
    async with stored(Diary) as ground:
        due_at = now_at() + timedelta(seconds=2)
        ground.send("a", "note", 1, due_at=due_at)
        ground.inbox.set_clock(now_at().timestamp() - 5)
        await passed(3)
        assert Diary.at_s == {} or Diary.at_s[1] >= due_at.timestamp()
        await passed(5)
        assert numbers() == [1]


async def test_what_was_due_when_it_was_stored_runs_at_once_whatever_is_believed_of_the_clock() -> None:
    async with stored(Diary) as ground:
        ground.inbox.set_clock(now_at().timestamp() - 1)  # a second behind
        for number, is_due in ((1, False), (2, True)):
            message = ground.message(str(number), "note", number)
            due_s = ground.messages.add(message).due_at.timestamp()
            handover = handover_of(HandoverKind.NEW, message, due_s=due_s)
            ground.inbox.hand_over(msgspec.structs.replace(handover, is_immediate=is_due))
            await passed(0.01)
            assert numbers() == ([2] if is_due else [])
            assert message.is_immediate


async def test_m5_what_came_before_the_first_read_is_not_overtaken_though_our_clock_is_behind() -> None:
    async with stored(Diary) as ground:
        messages = [ground.message("a", "note", number) for number in (1, 2)]
        shard = ground.inbox.shards[messages[0].seat]
        shard.is_read = False
        ground.inbox.set_clock(now_at().timestamp() - 1)  # a second behind
        for message in messages:
            due_s = ground.messages.add(message).due_at.timestamp()
            ground.inbox.hand_over(handover_of(HandoverKind.NEW, message, due_s=due_s))
            if not shard.is_read:
                ground.inbox.read(shard)
        await passed(2)
        assert numbers() == [1, 2]


# Suspects


def suspected(ground: StoredLocalHost, *names: str, suspicion: int = 1, losses: int = 0) -> list[str]:
    """A suspect of each of these entities, which goes on when its gate is opened."""
    ids = []
    for who in names:
        Diary.gates[who] = asyncio.Event()
        row = ground.messages.add(ground.message(who, "note", ord(who)), suspicion=suspicion, losses=losses)
        ids.append(row.id)
    return ids


def marks(ground: StoredLocalHost) -> list[tuple[str, int]]:
    """How the suspects were noted to begin, by entity."""
    return [(ground.messages.rows[id_].entity_id, int(mark)) for id_, mark in ground.messages.asked["mark"]]


@pytest.mark.parametrize("clean", [False, True])
async def test_c5_suspects_run_one_at_a_time_and_others_beside_them(clean: bool) -> None:
    """Whoever took over last: that a message was begun alone is stored before it begins."""
    async with stored(Diary, clean=clean) as ground:
        gate = ground.messages.hold("mark")
        suspected(ground, "a", "b")
        ground.put("c", "note", 3)
        await ground.poller.poll()
        await passed()
        assert (numbers(), marks(ground)) == ([3], [("a", 2)])
        gate.set()
        await passed()
        assert sorted(numbers()) == [3, ord("a")], "b waits for a"
        Diary.gates["a"].set()
        await passed()
        assert sorted(numbers()) == [3, ord("a"), ord("b")]
        Diary.gates["b"].set()
        await passed()
        assert marks(ground) == [("a", 2), ("b", 2)], "an end needs no further note"


async def test_c5_a_suspect_that_goes_on_running_keeps_the_next_one_waiting_for_some_seconds_only() -> None:
    """From then on nobody knows of which one the process would die."""
    async with stored(Diary, clean=False) as ground:
        suspected(ground, "a", "b")
        await ground.poller.poll()
        await passed(1)
        assert numbers() == [ord("a")]
        await passed(6)
        assert numbers() == [ord("a"), ord("b")]
        assert marks(ground) == [("a", 2), ("a", 3), ("b", 2)]


async def test_c5_what_was_begun_before_or_has_losses_comes_last() -> None:
    async with stored(Diary, clean=False) as ground:
        suspected(ground, "a", suspicion=3)
        suspected(ground, "b", losses=1)
        suspected(ground, "c", "d")
        for gate in Diary.gates.values():
            gate.set()
        await ground.poller.poll()
        await passed()
        assert [chr(number) for number in numbers()] == ["c", "d", "b", "a"]


async def test_c5_a_suspect_that_fails_or_that_this_program_cannot_run_is_none_any_more() -> None:
    """Its process has survived it; what waits for a newer program is never counted."""
    async with stored((Diary, {"retry": Retry(3, base="20s")}), clean=False) as ground:
        calls = [ground.message("a", "fail", 1), ground.message("b", "vanished"), ground.message("c", "newer")]
        ids = [ground.messages.add(call, suspicion=1).id for call in calls]
        await ground.poller.poll()
        await passed()
        assert [ground.messages.suspicions[each] for each in ids] == [0, 0, 0]
        assert ground.status(*ids) == ["pending"] * 3


async def test_c5_a_suspect_whose_beginning_cannot_be_noted_is_found_again_by_a_sweep() -> None:
    async with stored(Diary, clean=False) as ground:
        ground.messages.failing["mark"] = [unreachable]
        ids = suspected(ground, "a", "b")
        for gate in Diary.gates.values():
            gate.set()
        await ground.poller.poll()
        await ground.poller.poll()
        await passed(2)
        assert ground.status(*ids) == ["done", "done"]


async def test_c5_a_shard_that_is_given_up_leaves_no_mark_of_what_did_not_begin() -> None:
    async with stored(Diary, clean=False) as ground:
        gate = ground.messages.hold("mark")
        (sent,) = suspected(ground, "a")
        await ground.poller.poll()
        await passed()
        for shard in list(ground.inbox.shards.values()):
            ground.inbox.close(shard.tenure)
        gate.set()
        await passed()
        assert (numbers(), ground.messages.suspicions[sent]) == ([], 1)


async def test_c5_after_a_clean_hand_over_nobody_is_suspected() -> None:
    async with stored(Diary) as ground:
        for who in "ab":
            Diary.gates[who] = asyncio.Event()
            ground.messages.add(ground.message(who, "note", ord(who)), attempts=1)
        await ground.poller.poll()
        await passed()
        assert sorted(numbers()) == [ord("a"), ord("b")]
        assert ground.messages.asked["suspect"] == ground.messages.asked["mark"] == []


# Failures


async def test_d7_a_defect_is_counted_tried_again_after_a_pause_and_dead_after_its_attempts(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """GAP-13: bounded attempts, then a dead letter with each error, neighbours unaffected."""
    retry = Retry(3, base="2s", factor=2, jitter=0)
    async with stored((Diary, {"retry": retry})) as ground:
        poison = ground.send("a", "fail", 1)
        await passed()
        good = ground.send("a", "note", 2)
        await passed()
        assert ground.status(good) == ["done"], "a neighbour does not wait for its pause"
        assert numbers() == [1, 2]
        await passed(1.5)
        assert numbers() == [1, 2]
        await passed(0.5)
        assert numbers() == [1, 2, 1]
        await passed(4.2)
        assert numbers() == [1, 2, 1, 1]
        row = ground.messages.rows[poison]
        assert (row.status, row.attempts) == ("dead", 3)
        assert [(each.number, each.error.splitlines()[0]) for each in row.errors] == [
            (number, "ValueError: not 1") for number in (1, 2, 3)
        ]
        assert ground.told[poison] == [LOOK], "storage knows of what it died"
        assert f"Diary/a.fail is dead: message {poison}" in caplog.text
        await passed(10)
        assert numbers() == [1, 2, 1, 1]


async def test_a_setback_that_cannot_be_saved_is_tried_again_and_not_called_dead(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with stored((Diary, {"retry": Retry.never})) as ground:
        ground.messages.failing["setback"] = [unreachable, unknown]
        sent = ground.send("a", "fail", 1)
        await passed(0.01)
        assert ground.told[sent] == [LOOK]
        assert "is dead" not in caplog.text
        await passed(1.1)
        assert numbers() == [1, 1]
        assert "is dead" not in caplog.text
        await passed(2)
        assert numbers() == [1, 1, 1]
        assert ground.status(sent) == ["dead"]
        assert "is dead" in caplog.text


async def test_d7_a_payload_that_cannot_be_read_is_set_aside_at_once_and_nothing_runs() -> None:
    async with stored(Diary) as ground:
        bad = [ground.send("a", method, 1, payload=b"\xc1junk") for method in ("note",)]
        bad += [ground.bring(ground.message("a", "nothing", payload=b"\xc1junk"))]
        good = ground.send("a", "note", 2)
        await passed()
        assert ground.status(*bad, good) == ["dead", "dead", "done"]
        assert numbers() == [2]
        assert [len(ground.messages.rows[each].errors) for each in bad] == [1, 1]
        assert [write.message for write in ground.messages.asked["commit"]] == [good], "an end is written once"
        assert ground.host.counts.activations == 1, "no instance is dropped for it"


async def test_reg_02_a_type_that_nobody_knows_waits_and_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    async with stored(Diary) as ground:
        foreign = ground.put("a", "note", 1, entity_type="Novelty")
        brought = ground.send("a", "note", 1, entity_type="Novelty")
        method = ground.send("b", "unheard", 2)
        known = ground.send("c", "note", 3)
        await passed(10)
        assert ground.status(foreign, brought, method, known) == ["pending"] * 3 + ["done"]
        assert ground.messages.asked["setback"] == []
        assert caplog.text.count("messages for entity type Novelty stay pending") == 1
        assert caplog.text.count("messages for entity type Diary stay pending") == 1


# A shard is given up


async def test_what_has_not_begun_is_given_up_with_its_shard_and_what_runs_may_end() -> None:
    async with stored(Diary) as ground:
        Diary.gates["a"] = asyncio.Event()
        first, second, later = (
            ground.send("a", "note", 1),
            ground.send("a", "note", 2),
            ground.send("a", "note", 3, delay_s=1.0),
        )
        await passed()
        draining = asyncio.create_task(ground.drain())
        await passed()
        assert (ground.told[second], ground.told[later]) == ([LOOK], [LOOK])
        Diary.gates["a"].set()
        await draining
        await passed(2)
        assert ground.status(first, second, later) == ["done", "pending", "pending"]
        assert numbers() == [1]
        assert ground.inbox.works == {}


async def test_d1_a_message_whose_entity_still_wakes_when_its_shard_is_given_up_is_not_taken_for_done() -> None:
    """Also if its rpc returns nothing, as what did not run does."""
    for method in ("note", "nothing"):
        ground = StoredLocalHost(Slow)
        await ground.read()
        Diary.gates["wake a"] = asyncio.Event()
        sent = ground.send("a", method, *([1] if method == "note" else []))
        await passed()
        draining = asyncio.create_task(ground.drain())
        await passed(0.01)
        Diary.gates["wake a"].set()
        await draining
        assert (ground.status(sent), ground.told[sent]) == (["pending"], [LOOK])
        assert (numbers(), ground.messages.asked["commit"], ground.messages.asked["setback"]) == ([], [], [])
        await ground.host.stop()


async def test_a_message_taken_back_while_its_entity_wakes_neither_runs_nor_ends() -> None:
    async with stored(Slow) as ground:
        Diary.gates["wake a"] = asyncio.Event()
        sent = ground.bring(ground.message("a", "nothing"))
        await passed()
        assert await ground.host.cancel_stored(sent, ground.messages.rows[sent].seat) is True
        Diary.gates["wake a"].set()
        await passed()
        assert (numbers(), ground.messages.asked["commit"], ground.told[sent]) == ([], [], [LOOK])
        assert ground.messages.rows[sent].reply == cancelled(sent)
        after = ground.bring(ground.message("a", "nothing"))
        await passed()
        assert ground.status(after) == ["done"], "the entity that woke serves the next"


async def test_cancel_before_and_after_it_began() -> None:
    async with stored(Diary) as ground:
        Diary.gates["a"] = asyncio.Event()
        running, waiting = ground.send("a", "note", 1), ground.send("a", "note", 2)
        later = ground.send("b", "note", 3, delay_s=5.0)
        await passed()
        seats = {each: ground.messages.rows[each].seat for each in (running, waiting, later)}
        told = [await ground.host.cancel_stored(each, seat) for each, seat in seats.items()]
        assert told == [False, True, True]
        assert (ground.told[waiting], ground.told[later]) == ([LOOK], [LOOK])
        assert [ground.messages.rows[each].reply for each in seats] == [None, cancelled(waiting), cancelled(later)]
        assert await ground.host.cancel_stored(running, "shard:elsewhere:1") is None, "not ours to say"
        Diary.gates["a"].set()
        await passed(10)
        assert numbers() == [1]


async def test_a_cancellation_that_storage_does_not_know_of_leaves_the_message_to_run() -> None:
    async with stored(Diary) as ground:
        ground.messages.failing["cancel"] = [unknown]
        sent = ground.send("a", "note", 1, delay_s=1.0)
        with pytest.raises(type(unknown)):
            await ground.host.cancel_stored(sent, ground.messages.rows[sent].seat)
        await passed(2.5)
        assert ground.status(sent) == ["done"], "nobody deleted it"
