"""Texts of strangers, errors and notes: whatever they say, what was to be told with them is told."""

from __future__ import annotations

_COUNT_MOST = 2**63 - 1


def storable(text: str) -> str:
    """The same without what a database refuses: the character zero, and halves of surrogate pairs."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def countable(number: int | None) -> int | None:
    """The same, or the next number that a database can store."""
    return None if number is None else max(-_COUNT_MOST, min(number, _COUNT_MOST))


def said(error: BaseException) -> str:
    """What an error is and says, also where its own `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 a user's class may do anything
        return f"{type(error).__name__}, which raises when it is asked what it says"
