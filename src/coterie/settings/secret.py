"""Values that must not be displayed: secrets that hide themselves, URLs without their password."""

from __future__ import annotations

import re

_HIDDEN = "***"

# Greedy up to the last "@": a password may contain any character, and hiding too much is better than showing it.
_PASSWORD = re.compile(r"^([^:/?#]*://[^:@/]*):(?:.*)@", re.DOTALL)
_PARAMETER = re.compile(r"([?&][^=&#]*(?:pass|secret|token|key)[^=&#]*)=[^&#]*", re.IGNORECASE)


class Secret:
    """A text that is shown only on request.

    >>> Secret("correct horse battery")
    Secret(***)
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """The text itself. Keep it out of logs and errors."""
        return self._text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __repr__(self) -> str:
        return f"Secret({_HIDDEN})"

    def __str__(self) -> str:
        return _HIDDEN


def redacted_url(url: str) -> str:
    """The URL without its password, safe to print. Never raises.

    >>> redacted_url("postgresql://app:hunter2@db.internal/app")
    'postgresql://app:***@db.internal/app'
    """
    return _PARAMETER.sub(rf"\1={_HIDDEN}", _PASSWORD.sub(rf"\1:{_HIDDEN}@", url))
