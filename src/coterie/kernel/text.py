"""Makes untrusted text, errors and notes safe to store, log and display."""

from __future__ import annotations

import json

from coterie.errors import InvalidArgument

_COUNT_MOST = 2**63 - 1


def storable(text: str) -> str:
    """The text without what a database refuses: the character zero, and halves of surrogate pairs."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def visible(text: str, *, keep: str = "") -> str:
    """The text on one line, fit for a terminal.

    What moves the cursor, colours, reverses text or is invisible (controls, escape sequences, bidirectional marks,
    characters without width) is shown as an escape.

    Args:
        keep: Characters left as they are: line ends, where a text is known to have several lines.

    >>> visible("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def visible_json(document: str) -> str:
    """An equivalent JSON document without such characters: JSON's own escapes stand for them."""
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)


def require_text(text: str, *, what: str) -> str:
    """Validate a text given as a name or an id: every database must be able to store and return it.

    Raises:
        InvalidArgument: It has a zero character, or half a surrogate pair.
    """
    if "\0" in text:
        raise InvalidArgument(what=what, value=ascii(text), problem="databases cannot store its zero character")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise not_unicode(text, what=what) from error
    return text


def not_unicode(text: str, *, what: str) -> InvalidArgument:
    """The error of a text that cannot be encoded."""
    return InvalidArgument(what=what, value=ascii(text), problem="it has half a surrogate pair, which is no text")


def countable(number: int | None) -> int | None:
    """The number, or the nearest one that a database can store."""
    return None if number is None else max(-_COUNT_MOST, min(number, _COUNT_MOST))


def said(error: BaseException) -> str:
    """The class and text of an error, also where its own `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 a user's class may do anything
        return f"{type(error).__name__}, which raises when it is asked what it says"
