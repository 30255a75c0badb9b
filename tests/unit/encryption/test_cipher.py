"""One value, encrypted (O6): its format, and what does not decrypt."""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.errors import UnreadablePayload
from coterie.kernel.random import Random
from coterie.storage.encryption import places
from coterie.storage.encryption.cipher import COMPRESSED_MAGIC, MAGIC, Keyring, head_of, key_of, text_head_of

if TYPE_CHECKING:
    from coterie.storage.encryption.cipher import Place

KEYS = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}
PLACE: Place = ("messages", "payload", "m1", "Account", "alice", "deposit")
GOLDEN = (
    "c1637001" "02" "6b31"  # magic and version; the id's length, the id
    "cd613e30d8f16adf91b7584a2265b1f5" "e3286bd8a8e6afc6743c01d8"  # salt, nonce
    "959af5481723" "c76e969e2093cb5a0abb3e254715f9be"  # ciphertext, tag
)  # fmt: skip


def ring(*ids: str, current: str | None = "k1", seed: int | None = 1, **options: Any) -> Keyring:
    given = {"cluster": "default", "reads_plain": False, **options}
    keys = {name: KEYS[name] for name in ids or ("k1",)}
    return Keyring(keys, current=current, chance=Random(seed), **given)


def test_the_format_stays_what_it_is() -> None:
    """What is stored today is read by all later versions: change this only together with a new version in the magic."""
    sealed = ring().seal(b"secret", PLACE)
    assert sealed.hex() == GOLDEN
    assert ring(seed=2).open(bytes.fromhex(GOLDEN), PLACE) == b"secret"
    assert head_of("k1") == sealed[:7]
    assert key_of(sealed[:100]) == "k1"


@given(data=st.binary(), key=st.text(st.characters(codec="utf-8")))
def test_what_is_encrypted_is_decrypted_by_another_process(data: bytes, key: str) -> None:
    place = places.entry(key, 7)
    sealed = ring().seal(data, place)
    assert ring(seed=2).open(sealed, place) == data
    assert len(data) < 8 or data not in sealed


def test_an_empty_value_stays_empty() -> None:
    """So a column that is empty without keys is empty with them: statements ask for that."""
    assert ring().seal(b"", PLACE) == b""
    assert ring().seal_text("", PLACE) == ""
    assert ring().open(b"", PLACE) == b""


def test_the_same_write_has_the_same_bytes_and_any_other_has_others() -> None:
    """A write whose outcome is unknown is tried again: the engines recognise it by its bytes."""
    mine = ring()
    sealed = mine.seal(b"secret", PLACE)
    assert mine.seal(b"secret", PLACE) == sealed
    others = [
        mine.seal(b"secreT", PLACE),
        mine.seal(b"secret", (*PLACE[:2], "m2", *PLACE[3:])),
        ring(seed=2).seal(b"secret", PLACE),
        ring("k2", current="k2").seal(b"secret", PLACE),
    ]
    nonces = {each[23:35] for each in (sealed, *others)}
    assert len({sealed, *others}) == len(nonces) == 5


@pytest.mark.parametrize("field", range(len(PLACE)))
def test_it_does_not_decrypt_in_another_place(field: int) -> None:
    sealed = ring().seal(b"secret", PLACE)
    moved = (*PLACE[:field], "other", *PLACE[field + 1 :])
    with pytest.raises(UnreadablePayload, match="changed or moved") as told:
        ring().open(sealed, moved)
    assert told.value.key == "k1"


def test_nor_in_another_cluster() -> None:
    sealed = ring().seal(b"secret", PLACE)
    with pytest.raises(UnreadablePayload):
        ring(cluster="other").open(sealed, PLACE)


@pytest.mark.parametrize("at", [7, 20, 24, 34, 36, -1])
def test_nor_when_a_bit_of_it_is_changed(at: int) -> None:
    sealed = bytearray(ring().seal(b"secret", PLACE))
    sealed[at] ^= 1
    with pytest.raises(UnreadablePayload):
        ring().open(bytes(sealed), PLACE)


@given(cut=st.integers(0, 56))
def test_nor_when_it_is_cut_off(cut: int) -> None:
    sealed = ring().seal(b"secret", PLACE)[:cut]
    with pytest.raises(UnreadablePayload):
        ring().open(sealed or b"x", PLACE)


def test_a_missing_key_is_named() -> None:
    sealed = ring("k2", current="k2").seal(b"secret", PLACE)
    with pytest.raises(UnreadablePayload, match="'k2', which this process does not have") as told:
        ring().open(sealed, PLACE)
    assert (told.value.key, told.value.outcome) == ("k2", "refused")


def test_a_wrong_key_is_named() -> None:
    sealed = ring().seal(b"secret", PLACE)
    wrong = Keyring({"k1": KEYS["k2"]}, current="k1", reads_plain=False, cluster="default", chance=Random(1))
    with pytest.raises(UnreadablePayload, match="does not decrypt with key 'k1'"):
        wrong.open(sealed, PLACE)


def test_a_plain_value_is_read_only_if_that_is_allowed() -> None:
    """Else whoever can write to the database could put plain values in the place of encrypted ones."""
    with pytest.raises(UnreadablePayload, match="not encrypted") as told:
        ring().open(b"secret", PLACE)
    assert "payload_plain" in told.value.hint
    assert ring(reads_plain=True).open(b"secret", PLACE) == b"secret"


def test_without_a_current_key_it_decrypts_and_does_not_encrypt() -> None:
    sealed = ring().seal(b"secret", PLACE)
    reader = ring(current=None, reads_plain=True)
    assert (reader.open(sealed, PLACE), reader.seal(b"secret", PLACE)) == (b"secret", b"secret")


def test_texts_are_base64_with_the_id_of_the_key_before_them() -> None:
    sealed = ring().seal_text("it broke \0 here", PLACE)
    assert sealed.startswith("encrypted:k1:")
    assert base64.b64decode(sealed.removeprefix("encrypted:k1:"), validate=True).startswith(head_of("k1"))
    assert text_head_of("k1") == "encrypted:k1:"
    assert key_of(sealed) == "k1"
    assert ring(seed=2).open_text(sealed, PLACE).startswith("it broke")
    assert ring().open_text("its runner was lost", PLACE) == "its runner was lost"


@pytest.mark.parametrize("text", ["encrypted:k1:AAAA", "encrypted:k1:?", "encrypted:", "encrypted:k2:wWNwAQJrMg=="])
def test_a_text_that_cannot_be_read_says_so_to_people(text: str) -> None:
    with pytest.raises(UnreadablePayload):
        ring().open_text(text, PLACE)
    assert ring().shown_text(text, PLACE).startswith("(it ")


LONG = b"the same words, again and again; " * 40
COMPRESSED_GOLDEN = (
    "wWNwAgJrMc1hPjDY8WrfkbdYSiJlsfXZINoHT9sIyYFYqEU1qUL34JDCq6ejQKo6eo9QzFpXDB/AYxW0"
    "rucpZdw34RXYK/KDV6gIUg5lUDkT1rbXXqrdJvZVIjh9riWCqpoN3WNQX+k="
)


def test_the_compressed_format_stays_what_it_is_and_every_process_reads_it() -> None:
    assert ring(seed=2).open(base64.b64decode(COMPRESSED_GOLDEN), PLACE) == LONG


@given(data=st.binary() | st.binary(max_size=64).map(lambda piece: piece * 40))
def test_what_is_compressed_is_decrypted_by_a_process_that_does_not_compress(data: bytes) -> None:
    sealed = ring(compresses=True).seal(data, PLACE)
    assert ring(seed=2).open(sealed, PLACE) == data
    assert len(sealed) <= len(ring().seal(data, PLACE))


def test_a_long_value_is_compressed_only_if_that_is_asked_for() -> None:
    compressed = ring(compresses=True).seal(LONG, PLACE)
    assert compressed.startswith(COMPRESSED_MAGIC)
    assert len(compressed) < len(LONG) // 4
    assert key_of(compressed[:100]) == "k1"
    assert len(ring().seal(LONG, PLACE)) > len(LONG)


def test_what_is_short_or_would_be_longer_is_not_compressed() -> None:
    for data in (b"a" * 255, Random(3).token(1000)):
        assert ring(compresses=True).seal(data, PLACE) == ring().seal(data, PLACE)


def test_a_long_text_is_compressed_too() -> None:
    text = LONG.decode()
    sealed = ring(compresses=True).seal_text(text, PLACE)
    assert len(sealed) < len(text) // 2
    assert ring(seed=2).open_text(sealed, PLACE) == text


def test_the_same_write_has_the_same_bytes_when_it_is_compressed() -> None:
    mine = ring(compresses=True)
    assert mine.seal(LONG, PLACE) == mine.seal(LONG, PLACE)


def test_a_compressed_value_and_a_plain_one_of_the_same_bytes_share_no_nonce() -> None:
    """Else their tags, over different associated data, would give the authentication key away."""
    mine = ring(compresses=True)
    packed = zlib.compress(LONG, 1)
    assert mine.seal(LONG, PLACE)[23:35] != mine.seal(packed, PLACE)[23:35]


def test_a_compressed_value_is_not_taken_for_a_plain_one() -> None:
    sealed = ring(compresses=True).seal(LONG, PLACE)
    with pytest.raises(UnreadablePayload, match="changed or moved"):
        ring().open(MAGIC + sealed[len(MAGIC) :], PLACE)


def test_thousands_of_processes_have_written_what_is_read() -> None:
    reader = ring(seed=0)
    for seed in range(5000):
        sealed = ring(seed=seed).seal(b"secret", PLACE)
        assert reader.open(sealed, PLACE) == b"secret"
    assert len(reader._subkeys) <= 4096
