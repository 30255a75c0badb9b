"""Findings of a command that examines: what was looked at, whether it is well, and what to do if not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from coterie.cli.showing import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cli.showing import Screen

How = Literal["good", "warn", "bad"]
_WORDS: dict[How, str] = {"good": "good", "warn": "remark", "bad": "problem"}
_WIDE = 14
_LINE = 79


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found out about one thing.

    Args:
        what: The thing, a word.
        says: What was found, with figures.
        how: Good, something to know, or a problem.
        hint: What to do.
    """

    what: str
    says: str
    how: How = "good"
    hint: str = ""


def shown(screen: Screen, findings: Sequence[Finding]) -> str:
    """A line for each, and what to do about it in the next ones."""
    lines: list[str] = []
    for each in findings:
        head = f"{screen.glyph(each.how)} {each.what:<{_WIDE}}"
        texts = [f"{each.says}:" if each.hint else each.says, *each.hint.splitlines()]
        lines.append(f"{head}{safe(texts[0], keep='')}")
        lines += [f"{'':<{_WIDE + 2}}{text}" for text in texts[1:]]
    return "\n".join(lines)


def concluded(findings: Sequence[Finding], code: int) -> str:
    """The last line: `1 problem, 1 remark`, and the exit code if it is not 0."""
    problems, remarks = counts(findings)
    parts = [_counted(problems, "problem")] if problems else []
    parts += [_counted(remarks, "remark")] if remarks else []
    text = ", ".join(parts) or "no problems"
    return f"{text:<{_LINE}}exit {code}" if code else text


def counts(findings: Sequence[Finding]) -> tuple[int, int]:
    """How many problems and remarks."""
    return len([f for f in findings if f.how == "bad"]), len([f for f in findings if f.how == "warn"])


def as_objects(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """For a program."""
    return [{"check": f.what, "status": _WORDS[f.how], "says": f.says, "hint": f.hint or None} for f in findings]


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
