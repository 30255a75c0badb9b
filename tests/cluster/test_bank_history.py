"""The judge of the bank's books accepts what is right and rejects what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.bank_history import PaymentReply, Records, judge
from tests.cluster.bank_program import OPENING, Book

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """Payment 1 was sent, 2 was refused, and the client of 3 died."""
    records = Records(tmp_path)
    records.tried |= {1, 2, 3}
    records.told = {1: PaymentReply("sent", 0.0, 0.1), 2: PaymentReply("refused", 0.0, 0.1)}
    return records


def books(*, paid: list[int], got: list[int], cents: int = 0, early: list[int] | None = None) -> dict[str, Book]:
    """Two accounts: one has paid a cent each time, and the other has got it."""
    one = Book(OPENING - len(paid), paid=paid, early=early or [])
    return {"one": one, "other": Book(OPENING + len(got) + cents, got=got)}


@pytest.mark.parametrize("made", [[1], [1, 3]])
def test_a_payment_without_an_answer_was_made_or_not(records: Records, made: list[int]) -> None:
    assert judge(records, books(paid=made, got=made))["made"] == len(made)


@pytest.mark.parametrize(
    ("paid", "got", "problem"),
    [
        ([1, 1], [1], "doubled"),
        ([1], [1, 1], "doubled"),
        ([1, 3], [1], "by half"),
        ([1], [1, 3], "by half"),
        ([3], [3], "lost"),
        ([1, 2], [1, 2], "refused and made"),
        ([1, 4], [1, 4], "asked for by nobody"),
    ],
)
def test_inv_d2_what_is_lost_or_doubled_is_found(
    records: Records, paid: list[int], got: list[int], problem: str
) -> None:
    with pytest.raises(AssertionError, match=problem):
        judge(records, books(paid=paid, got=got))


def test_what_ran_early_and_what_was_made_of_nothing_is_found(records: Records) -> None:
    with pytest.raises(AssertionError, match="too early"):
        judge(records, books(paid=[1], got=[1], early=[1]))
    with pytest.raises(AssertionError, match="have become"):
        judge(records, books(paid=[1], got=[1], cents=1))
