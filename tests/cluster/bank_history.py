"""What a bank's journals and accounts say, read together and judged: no payment lost, none doubled, no cent made."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple, get_args

from tests.cluster.bank_client import How
from tests.cluster.bank_program import OPENING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.cluster.bank_program import Book

ACKNOWLEDGED = get_args(How)


class PaymentReply(NamedTuple):
    """What a client was told of a payment."""

    what: str
    """How it was paid; or "refused", or "dead"."""
    at_s: float
    took_s: float


class Records:
    """The journals of all processes in a folder, read as they grow."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tried: set[int] = set()
        self.told: dict[int, PaymentReply] = {}
        self.began: Counter[int] = Counter()
        """How often a handler began with a payment."""
        self.by: dict[str, int] = defaultdict(int)
        """How many of those on which process."""
        self.failed: Counter[str] = Counter()
        """Errors of clients, by their codes: they asked again."""
        self.halted: list[str] = []
        """What came of statements in which a process was frozen."""
        self._read: dict[Path, int] = {}

    def refresh(self) -> Records:
        """Read what is new."""
        for path in self.folder.glob("*.jsonl"):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                self._take(path.name.partition(".")[0], json.loads(line))
        return self

    def _take(self, process: str, line: dict[str, object]) -> None:
        what, number = str(line["what"]), int(str(line.get("number", 0)))
        if what == "up":
            pass
        elif what == "halted":
            self.halted.append(str(line["outcome"]))
        elif what == "began":
            self.began[number] += 1
            self.by[process] += 1
        elif what == "tried":
            self.tried.add(number)
        elif what == "failed":
            self.failed[str(line["code"])] += 1
        else:
            self.told[number] = PaymentReply(what, float(str(line["at_s"])), float(str(line["took_s"])))


def judge(records: Records, books: Mapping[str, Book]) -> Counter[str]:
    """Raise an AssertionError if a payment was lost or doubled; how many there were of each kind.

    Nothing may be under way any more. A payment of a client that died without an answer was made, or not: but whole.
    """
    paid = Counter(number for book in books.values() for number in book.paid)
    got = Counter(number for book in books.values() for number in book.got)
    _require_none("was doubled", [number for each in (paid, got) for number, times in each.items() if times > 1])
    _require_none("was made by half", list(paid.keys() ^ got.keys()))
    _require_none("was asked for by nobody", list(paid.keys() - records.tried))
    told = records.told
    _require_none(
        "was acknowledged and is lost", [n for n, each in told.items() if each.what in ACKNOWLEDGED and n not in paid]
    )
    refused = [number for number, each in told.items() if each.what == "refused" and number in paid]
    _require_none("was refused and made", refused)
    _require_none("ran too early", [number for book in books.values() for number in book.early])
    total = sum(book.cents for book in books.values())
    assert total == OPENING * len(books), f"{OPENING * len(books)} cents have become {total}"
    counts = Counter(each.what for each in told.values())
    again = sum(times > 1 for times in records.began.values())
    return counts + Counter(made=len(paid), unanswered=len(records.tried - told.keys()), begun_again=again)


def _require_none(problem: str, numbers: list[int]) -> None:
    assert not numbers, f"{len(numbers)} times a payment {problem}, such as {sorted(numbers)[:5]}"
