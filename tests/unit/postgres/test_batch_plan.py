"""Group commit's arithmetic: which writes share a statement, and who gets which result [M3]."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.storage.contracts.messages import Commit, Insert, Message, Receipt
from coterie.storage.contracts.ticks import ClaimResult, TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim, KvPut, KvRemove, KvSwap, StateSave, Write
from coterie.storage.postgres.batch.plan import FENCED, Bucket, fold, refused, results, values

if TYPE_CHECKING:
    from collections.abc import Sequence


def test_writes_of_one_kind_share_one_statement_in_key_order() -> None:
    writes = [KvPut(key, b"", stamp) for stamp, key in enumerate(["z", "é", "a", "\U0001f600", "Z"])]
    buckets = fold(writes)
    assert buckets == [Bucket("put", [0, 1, 2, 3, 4])]
    assert values(buckets[0], writes)[0] == ["Z", "a", "z", "é", "\U0001f600"]


def test_of_two_puts_of_one_key_the_last_is_written_and_both_are_acknowledged() -> None:
    writes = [KvPut("a", b"first", 1), KvPut("a", b"last", 2)]
    (bucket,) = fold(writes)
    assert values(bucket, writes) == [["a"], [b"last"], [2], [None]]
    assert results(bucket, writes, []) == [None, None]


def test_of_two_swaps_for_an_absent_key_the_first_wins() -> None:
    writes = [KvSwap("a", None, b"first", 1), KvSwap("a", None, b"second", 2)]
    (bucket,) = fold(writes)
    assert values(bucket, writes)[2] == [1]
    assert results(bucket, writes, [(1,)]) == [True, False]


def test_of_two_removes_of_one_key_the_first_finds_it() -> None:
    writes = [KvRemove("a"), KvRemove("a"), KvRemove("b")]
    (bucket,) = fold(writes)
    assert results(bucket, writes, [("a",)]) == [True, False, False]


def test_a_key_that_comes_back_in_another_shape_waits_for_the_next_statement() -> None:
    writes: list[Write] = [KvPut("a", b"", 1), KvRemove("a"), KvPut("a", b"", 2), KvRemove("b")]
    assert fold(writes) == [Bucket("put", [0]), Bucket("remove", [3]), Bucket("remove", [1]), Bucket("put", [2])]


def save(key: str, version: int = 0, *, runner: str = "me", seat: str = "s", epoch: int = 1) -> StateSave:
    return StateSave(Claim(runner, seat, epoch), key, b"new", version)


def test_saves_share_one_statement_in_key_order_each_with_its_own_claim() -> None:
    writes = [save("z", 4, seat="s2", epoch=7), save("a", seat="s1"), save("é", 1, seat="s2", epoch=7)]
    (bucket,) = fold(writes)
    assert bucket == Bucket("write_states", [0, 1, 2])
    assert values(bucket, writes) == [
        "me",
        ["s1", "s2", "s2"],
        [1, 7, 7],
        ["a", "z", "é"],
        [b"new"] * 3,
        [0, 4, 1],
    ]


def test_every_save_gets_its_own_result_in_whatever_order_the_rows_come() -> None:
    """M3, M4."""
    writes = [save("a"), save("b"), save("c")]
    (bucket,) = fold(writes)
    rows = [("c", True, False), ("a", False, False), ("b", True, True)]
    assert results(bucket, writes, rows) == ["fenced", "written", "conflict"]


def test_a_second_save_of_a_key_waits_for_the_next_statement() -> None:
    """It builds on the version that the first one writes."""
    writes = [save("a", 0), save("b", 0), save("a", 1), save("a", 2)]
    assert [bucket.places for bucket in fold(writes)] == [[0, 1], [2], [3]]


def test_a_key_and_a_state_of_one_name_are_strangers() -> None:
    writes: list[Write] = [KvPut("a", b"", 1), save("a"), KvPut("a", b"", 2)]
    assert fold(writes) == [Bucket("put", [0, 2]), Bucket("write_states", [1])]


def test_saves_in_the_names_of_two_incarnations_go_in_statements_of_their_own() -> None:
    """A process that was evicted goes on as another one, while saves of the first still wait in the queue."""
    writes = [save("a", runner="old"), save("b", runner="new"), save("a", runner="new"), save("c", runner="old")]
    buckets = fold(writes)
    assert [bucket.places for bucket in buckets] == [[1], [0, 3], [2]]
    assert [values(bucket, writes)[0] for bucket in buckets] == ["new", "old", "new"]


def test_keys_in_the_name_of_a_seat_share_a_statement_of_their_own() -> None:
    """K1."""
    mine, theirs = Claim("me", "s1", 1), Claim("me", "s2", 2)
    writes: list[Write] = [KvPut("b", b"x", 1, 5.0, mine), KvPut("c", b"y", 2), KvPut("a", b"z", 3, None, theirs)]
    plain, fenced = fold(writes)
    assert (plain, fenced) == (Bucket("put", [1]), Bucket("put_kv", [0, 2]))
    assert values(fenced, writes) == ["me", ["s2", "s1"], [2, 1], ["a", "b"], [b"z", b"x"], [3, 1], [None, 5.0]]
    assert results(fenced, writes, [("a", False, False), ("b", True, True)]) == [None, "fenced"]
    assert refused(fenced, writes, [None, "fenced"]) == ["me", ["s2"], [2], ["a"]]


def test_puts_of_one_key_share_a_statement_only_in_the_name_of_one_seat() -> None:
    """K1: the last one stands for all, so all must prove the same."""
    mine, lost = Claim("me", "s1", 1), Claim("me", "s1", 2)
    same = [KvPut("a", b"", 1, None, mine), KvPut("a", b"", 2, None, mine)]
    assert [bucket.places for bucket in fold(same)] == [[0, 1]]
    other = [KvPut("a", b"", 1, None, mine), KvPut("a", b"", 2, None, lost), KvPut("a", b"", 3, None, mine)]
    assert [bucket.places for bucket in fold(other)] == [[0], [1], [2]]


def test_a_save_that_is_alone_and_follows_another_needs_no_arrays() -> None:
    mine = Claim("me", "s", 1)
    first, later, other = (
        StateSave(mine, key, b"v", version, 9.0, 20) for key, version in (("a", 0), ("a", 1), ("b", 7))
    )
    (lone,) = fold([later])
    assert lone == Bucket("save_state", [0])
    assert values(lone, [later]) == ("me", "s", 1, "a", b"v", 1, 9.0, 20)
    assert results(lone, [later], [("a", True, False)]) == ["conflict"]
    assert fold([later, other]) == [Bucket("save_states", [0, 1])]
    assert fold([first, later]) == [Bucket("save_states", [0]), Bucket("save_state", [1])]
    assert refused(lone, [later], ["fenced"]) == ["me", ["s"], [1], ["a"]]


def test_a_message_that_is_stored_or_ended_alone_needs_no_arrays() -> None:
    mine, at = Claim("me", "s", 1), datetime(2026, 1, 1, tzinfo=UTC)
    here = Message(id="m1", seat="s", entity_type="E", entity_id="e", method="m", payload=b"p", key="k", digest=b"d")
    insert, end = Insert(here), Commit(mine, "m1", b"reply")
    other, left = Insert(msgspec.structs.replace(here, id="m2", key=None)), Commit(mine, "m2", sends=(here,))
    lone, ended = fold([insert, end])  # in one transaction, one after the other
    assert {lone.shape, ended.shape} == {"insert_message", "end_message"}
    (lone,) = fold([insert])
    assert values(lone, [insert]) == ("m1", "s", "E", "e", "m", b"p", "k", b"d", None, None, 0.0, None, None)
    assert results(lone, [insert], [(at, at)]) == [Receipt("m1", True, at, at, "pending", b"d")]
    assert results(lone, [insert], []) == [None], "it is read back"
    (lone,) = fold([end])
    assert values(lone, [end]) == ("me", "s", 1, "m1", b"reply")
    assert results(lone, [end], [("fenced",)]) == ["fenced"]
    assert refused(lone, [end], ["fenced"]) == ["me", ["s"], [1], ["m1"]]
    assert fold([insert, other]) == [Bucket("insert_messages", [0, 1])]
    assert fold([end, Commit(mine, "m3")]) == [Bucket("end_messages", [0, 1])]
    assert fold([left]) == [Bucket("commit_handlers", [0])]


def test_the_audit_is_given_what_the_fence_refused_and_nothing_else() -> None:
    writes: list[Write] = [KvPut("k", b"", 1), save("a", seat="s1", epoch=3), save("b"), save("c", seat="s2", epoch=4)]
    put, saves = fold(writes)
    assert refused(put, writes, [None]) == []
    assert refused(saves, writes, ["written", "conflict", "written"]) == []
    assert refused(saves, writes, ["fenced", "written", "fenced"]) == ["me", ["s1", "s2"], [3, 4], ["a", "c"]]


NOW = datetime(2026, 3, 1, tzinfo=UTC)


def claim(name: str, *verdicts: Verdict, runner: str = "me", epoch: int = 1) -> TickClaim:
    ticks = verdicts or (Verdict(NOW, NOW),)
    return TickClaim(Claim(runner, f"cron:{name}", epoch), name, "s", None, ticks, 2.0)


def note(name: str, attempt: int = 1, **values: Any) -> TickNote:
    return TickNote(Claim("me", f"cron:{name}", 1), name, "scheduled", NOW, 0, attempt, **values)


def test_claims_of_many_crons_share_one_statement_in_the_order_of_their_names() -> None:
    later = NOW + timedelta(minutes=5)
    skipped, runs = Verdict(NOW, later, 6, "missed"), Verdict(later, later)
    writes = [claim("b", skipped, runs, epoch=7), claim("a", runs)]
    (bucket,) = fold(writes)
    assert bucket == Bucket("claim_ticks", [0, 1])
    assert values(bucket, writes) == [
        *("me", ["cron:a", "cron:b"], [1, 7], ["a", "b"], ["s", "s"], [None, None], [2.0, 2.0]),
        ["cron:a", "cron:b", "cron:b"],
        *([later, NOW, later], [later, later, later], [1, 6, 1], ["", "missed", ""]),
    ]
    rows = [("cron:a", "early", NOW), ("cron:b", "written", later)]
    assert results(bucket, writes, rows) == [ClaimResult("written", later), ClaimResult("early", NOW)]


def test_a_claim_and_notes_of_one_cron_go_one_after_another() -> None:
    """Each may build on what the one before it wrote; those of other crons do not wait for them."""
    writes: list[Write] = [claim("a"), note("a"), note("a", 2), claim("b"), claim("a"), note("c"), save("cron:a")]
    assert fold(writes) == [
        Bucket("claim_ticks", [0, 3]),
        Bucket("note_ticks", [5]),
        Bucket("write_states", [6]),
        Bucket("note_ticks", [1]),
        Bucket("note_ticks", [2]),
        Bucket("claim_ticks", [4]),
    ]


def test_claims_in_the_names_of_two_incarnations_go_in_statements_of_their_own() -> None:
    writes = [claim("a", runner="old"), claim("b", runner="new"), claim("a", runner="new")]
    assert [bucket.places for bucket in fold(writes)] == [[1], [0], [2]]


def test_what_a_note_says_of_errors_can_be_stored_whatever_they_say() -> None:
    """Only an attempt that has failed has a new error for its cron, and the last one of all it is."""
    writes = [
        note("a", again=True, errors=("first", "nul \0 \ud800 'quoted'")),
        note("b", outcome="failed", errors=()),
        note("c", errors=("old",), note="half\0"),
        note("d", outcome="ran", errors=("old",), late_s=0.5, took_s=1.5, done=1, total=2),
    ]
    (bucket,) = fold(writes)
    given = values(bucket, writes)
    assert given[3:10] == [
        *(["a", "b", "c", "d"], ["scheduled"] * 4, [NOW] * 4, [0] * 4, [1] * 4),
        *([None, "failed", None, "ran"], [True, False, False, False]),
    ]
    assert given[10] == ['["first","nul \N{REPLACEMENT CHARACTER} ? \'quoted\'"]', "[]", '["old"]', '["old"]']
    assert given[11] == ["nul \N{REPLACEMENT CHARACTER} ? 'quoted'", None, None, None]
    assert given[12:] == [
        *([None] * 3 + [0.5], [None] * 3 + [1.5], ["", "", "half\N{REPLACEMENT CHARACTER}", ""]),
        *([None] * 3 + [1], [None] * 3 + [2], [""] * 4),
    ]


def test_the_audit_is_given_the_claims_and_notes_that_the_fence_refused() -> None:
    writes: list[Write] = [claim("a"), claim("b", epoch=3), note("c"), note("d")]
    claims, notes = fold(writes)
    assert refused(claims, writes, [ClaimResult("moved", NOW), ClaimResult("fenced", NOW)]) == [
        "me",
        ["cron:b"],
        [3],
        ["cron:b"],
    ]
    assert refused(notes, writes, ["fenced", "conflict"]) == ["me", ["cron:c"], [1], ["cron:c"]]
    assert {claims.shape, notes.shape} <= FENCED


State = dict[str, tuple[bytes, int]]
"""Values and stamps by key. States stand under `state of <key>`, with versions for stamps."""


def one_by_one(state: State, writes: Sequence[Write]) -> list[object]:
    """What the writes mean, one after another."""
    found: list[object] = []
    for write in writes:
        assert isinstance(write, KvPut | KvSwap | KvRemove | StateSave)
        if isinstance(write, StateSave):
            found.append(one_save(state, write.claim.seat, write.key, write.value, write.version))
            continue
        if write.claim is not None and write.claim.seat == "lost":
            found.append("fenced")
            continue
        stamp = state[write.key][1] if write.key in state else None
        if isinstance(write, KvPut):
            state[write.key] = (write.value, write.stamp)
            found.append(None)
        elif isinstance(write, KvRemove):
            found.append(state.pop(write.key, None) is not None)
        else:
            found.append(stamp == write.expected)
            if stamp == write.expected:
                state.pop(write.key, None)
                if write.value is not None:
                    state[write.key] = (write.value, write.stamp)
    return found


def one_save(state: State, seat: str, key: str, value: bytes, version: int) -> str:
    """What a save means. The seat "lost" is somebody else's."""
    name = f"state of {key}"
    if seat == "lost":
        return "fenced"
    if state.get(name, (b"", 0))[1] != version:
        return "conflict"
    state[name] = (value, version + 1)
    return "written"


def statement(state: State, bucket: Bucket, arrays: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """What the statements of kv.sql and fenced_writes.sql do, on a dict."""
    found: list[tuple[Any, ...]] = []
    if bucket.shape == "write_states":
        assert len(set(arrays[3])) == len(arrays[3])
        for seat, _, key, value, version in zip(*arrays[1:], strict=True):
            told = one_save(state, seat, key, value, version)
            found.append((key, told != "fenced", told == "written"))
        return found
    if bucket.shape in FENCED:
        return fenced_statement(state, bucket, arrays)
    assert len(set(arrays[0])) == len(arrays[0]) or bucket.shape in ("replace", "discard")
    before = dict(state)
    for key, *row in zip(*arrays, strict=True):
        stamp = before[key][1] if key in before else None
        if bucket.shape == "put" or (bucket.shape == "insert" and stamp is None):
            state[key] = (row[0], row[1])
            found.append((row[1],))
        elif bucket.shape == "replace" and stamp == row[0]:
            state[key] = (row[1], row[2])
            found.append((row[2],))
        elif bucket.shape == "discard" and stamp == row[0]:
            del state[key]
            found.append((key, stamp))
        elif bucket.shape in ("remove", "present") and stamp is not None:
            found.append((key,))
            if bucket.shape == "remove":
                del state[key]
    return found


def fenced_statement(state: State, bucket: Bucket, arrays: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """The same of the key-value store under the fence: keys come once each."""
    assert len(set(arrays[3])) == len(arrays[3])
    found: list[tuple[Any, ...]] = []
    for seat, epoch, key, *row in zip(*arrays[1:], strict=True):
        assert epoch == 1
        stamp = state[key][1] if key in state else None
        held = seat != "lost"
        written = held and (stamp == row[0] if bucket.shape == "swap_kv" else True)
        if bucket.shape == "put_kv" and held:
            state[key] = (row[0], row[1])
        elif bucket.shape == "remove_kv" and held:
            written = state.pop(key, None) is not None
        elif written:
            state.pop(key, None)
            if row[1] is not None:
                state[key] = (row[1], row[2])
        found.append((key, held, written))
    return found


def groups() -> st.SearchStrategy[list[Write]]:
    keys = st.sampled_from("abc")
    expected = st.sampled_from([None, 1, 2, 3])
    value = st.sampled_from([None, b"x", b"y"])
    kinds = st.one_of(
        st.tuples(st.just("put"), keys, expected, st.just(b"p")),
        st.tuples(st.just("swap"), keys, expected, value),
        st.tuples(st.just("remove"), keys, expected, value),
        st.tuples(
            st.sampled_from([f"{kind} {seat}" for kind in ("put", "swap", "remove") for seat in ("s1", "s2", "lost")]),
            keys,
            expected,
            value,
        ),
        st.tuples(st.sampled_from(["s1", "s2", "lost"]), keys, st.sampled_from([0, 1, 2]), st.just(b"s")),
    )
    return st.lists(kinds, max_size=12).map(_numbered)


def _numbered(kinds: list[tuple[str, str, int | None, bytes | None]]) -> list[Write]:
    writes: list[Write] = []
    for number, (kind, key, expected, value) in enumerate(kinds, start=100):
        kind, _, seat = kind.partition(" ")
        claim = Claim("me", seat, 1) if seat else None
        if kind == "put":
            writes.append(KvPut(key, value or b"", number, claim=claim))
        elif kind == "remove":
            writes.append(KvRemove(key, claim))
        elif kind != "swap":
            writes.append(
                StateSave(Claim("old" if kind == "lost" else "me", kind, 1), key, b"%d" % number, expected or 0)
            )
        else:
            writes.append(KvSwap(key, expected, value, number, claim=claim))
    return writes


@settings(max_examples=1000, deadline=None)
@given(groups())
def test_a_group_has_the_effect_of_its_members_one_after_another(writes: list[Write]) -> None:
    """M3."""
    start: State = {"a": (b"old", 1), "b": (b"old", 2)}
    serial, folded = dict(start), dict(start)
    wanted = one_by_one(serial, writes)
    found: list[object] = [None] * len(writes)
    for bucket in fold(writes):
        rows = statement(folded, bucket, values(bucket, writes))
        for place, result in zip(bucket.places, results(bucket, writes, rows), strict=True):
            found[place] = result
    assert (found, folded) == (wanted, serial)
