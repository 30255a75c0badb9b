"""Which statement writes and locks which table, read from the `.sql` files; and which of them meet in the catalogue."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, Literal

from tests.support.interleaving import COMMIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tests.support.interleaving import Pair, Script

Deed = Literal["insert", "update", "delete", "lock", "key lock"]
Meeting = tuple[str, str, str]
"""A table, and two statements that touch it, in alphabetical order."""

_WRITE = re.compile(r"\b(?P<deed>insert into|update|delete from)\s+coterie\.(?P<table>\w+)")
_LOCK = re.compile(r"\bfor (?P<mode>no key update|update|key share|share)\b(?:\s+of\s+(?P<alias>\w+))?")
_SOURCE = re.compile(r"\b(?:from|join)\s+coterie\.(?P<table>\w+)(?:\s+as\s+(?P<alias>\w+))?")
_BEHIND: Mapping[str, Mapping[str, Deed]] = {
    # foreign keys: on delete cascade, on delete set null; and a trigger
    "delete runners": {"leases": "delete", "seats": "update", "jobs": "update"},
    "insert messages": {"message_tags": "insert"},  # triggers
    "delete messages": {"message_tags": "delete"},
    "insert units": {"unit_tags": "insert"},
    "update units": {"unit_tags": "update"},
    "delete units": {"unit_tags": "delete"},
    "call forget_units": {"steps": "delete", "deferreds": "delete"},
    "call forget_runs": {"run_inboxes": "delete", "run_messages": "delete", "published": "delete"},
}
"""What the schema does for a statement, beside what stands in it."""


@dataclass(frozen=True, slots=True)
class Touch:
    """A statement does something with a table."""

    statement: str
    table: str
    deeds: frozenset[Deed]

    @property
    def writes(self) -> bool:
        """Whether it changes rows."""
        return bool(self.deeds & {"insert", "update", "delete"})

    def meets(self, other: Touch) -> bool:
        """Whether the two can want the same row, one of them to change it."""
        if self.writes and other.writes:
            return True
        writer, locker = (self, other) if self.writes else (other, self)
        if not writer.writes:
            return False
        # A key lock is in the way of a deletion only, and nobody locks what is just being inserted.
        return bool(writer.deeds & ({"update", "delete"} if "lock" in locker.deeds else {"delete"}))


def writes(text: str) -> Iterator[re.Match[str]]:
    """The places in a statement where it writes."""
    return _WRITE.finditer(text)


def behind(cause: str) -> Mapping[str, Deed]:
    """What the schema does for a statement that does this, by table."""
    return _BEHIND.get(cause, {})


def touches(sql: Mapping[str, str]) -> list[Touch]:
    """What each statement does with each table that it changes or locks rows of."""
    found = []
    for name, text in sql.items():
        deeds = _deeds(re.sub(r"--.*", "", text))
        found += [Touch(name, table, frozenset(kinds)) for table, kinds in sorted(deeds.items())]
    return found


def meetings(sql: Mapping[str, str]) -> set[Meeting]:
    """All pairs of statements, also of two sessions that run the same one, that can want the same row of a table."""
    found: set[Meeting] = set()
    for one, other in combinations_with_replacement(touches(sql), 2):
        if one.table == other.table and one.meets(other):
            found.add(meeting(one.table, one.statement, other.statement))
    return found


def meeting(table: str, one: str, other: str) -> Meeting:
    """In the order in which they are kept."""
    first, second = sorted((one, other))
    return table, first, second


def played(pairs: Iterable[Pair], sql: Mapping[str, str]) -> set[tuple[str, str]]:
    """Which statements play against each other somewhere in the catalogue, in alphabetical order."""
    names: dict[str, str] = {}
    for name, text in sql.items():
        assert text not in names, f"{name} and {names[text]} are the same statement"
        names[text] = name
    found: set[tuple[str, str]] = set()
    for pair in pairs:
        a, b = (statements_of(script, names) for script in (pair.a, pair.b))
        found |= {(min(one, other), max(one, other)) for one in a for other in b}
    return found


def statements_of(script: Script, names: Mapping[str, str]) -> set[str]:
    """The statements of a script; of a step that chooses one by what was read, those that it may choose."""
    texts = {text for step in script.steps if step is not COMMIT for text in _texts(step.sql)}
    return {names[text] for text in texts if text in names}


def _texts(sql: object) -> Iterator[str]:
    if not callable(sql):
        yield str(sql)
        return
    for rows in ((), ({"stamp": 1, "value": b"1"},)):
        try:
            yield sql(dict.fromkeys(("get", "add", "end"), rows))
        except AssertionError:  # it was read before, and would have stopped
            continue


def _deeds(text: str) -> dict[str, set[Deed]]:
    deeds: dict[str, set[Deed]] = {}
    for match in writes(text):
        deed = match["deed"].split()[0]
        _add(deeds, match["table"], deed)
        if deed == "insert" and re.match(r"[^;]*?\bdo update\b", _part(text, match.start())):
            _add(deeds, match["table"], "update")
    for match in _LOCK.finditer(text):
        inside = _enclosing(text, match.start())
        sources = [source for source in _SOURCE.finditer(inside) if match["alias"] in (None, source["alias"])]
        for source in sources:
            _add(deeds, source["table"], "key lock" if match["mode"] == "key share" else "lock")
    causes = [f"{kind} {table}" for table, kinds in deeds.items() for kind in ("insert", "delete") if kind in kinds]
    causes += [f"call {name}" for name in ("forget_units", "forget_runs") if f"coterie.{name}" in text]
    for cause in causes:
        for table, deed in behind(cause).items():
            _add(deeds, table, deed)
    return deeds


def _add(deeds: dict[str, set[Deed]], table: str, deed: str) -> None:
    deeds.setdefault(table, set()).add(deed)  # type: ignore[arg-type]  # as the patterns have it


def _part(text: str, begin: int) -> str:
    """From a place to the end of its part: the parenthesis that closes it, or the end of the statement."""
    depth = 0
    for at in range(begin, len(text)):
        depth += (text[at] == "(") - (text[at] == ")")
        if depth < 0:
            return text[begin:at]
    return text[begin:]


def _enclosing(text: str, at: int) -> str:
    """The select that a lock ends, without what stands in parentheses in it."""
    depth, kept = 0, []
    for place in range(at - 1, -1, -1):
        depth += (text[place] == ")") - (text[place] == "(")
        if depth < 0:
            break
        if depth == 0:
            kept.append(text[place])
    return "".join(reversed(kept))
