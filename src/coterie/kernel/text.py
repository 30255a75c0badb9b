"""Texts of strangers, errors and notes: whatever they say, what was to be told with them is told."""

from __future__ import annotations

import json

from coterie.errors import InvalidArgument

_COUNT_MOST = 2**63 - 1


def storable(text: str) -> str:
    """The same without what a database refuses: the character zero, and halves of surrogate pairs."""
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def visible(text: str, *, keep: str = "") -> str:
    """The same on one line, fit for a terminal.

    What moves the cursor, colours, turns text around or is not seen at all (controls, escape sequences, bidirectional
    marks, characters without width) is shown as an escape.

    Args:
        keep: What is left as it is: line ends, where a text is known to have several.

    >>> visible("a\x1b[2Jb\u202ec")
    'a\\x1b[2Jb\\u202ec'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode("ascii") for c in text)


def visible_json(document: str) -> str:
    """A JSON document that means the same, without such characters: JSON's own escapes stand for them."""
    if document.isprintable():
        return document
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in document)


def require_text(text: str, *, what: str) -> str:
    """A text that somebody gives as a name or an id, if every database can keep it and give it back.

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
    """The same, or the next number that a database can store."""
    return None if number is None else max(-_COUNT_MOST, min(number, _COUNT_MOST))


def said(error: BaseException) -> str:
    """What an error is and says, also where its own `__str__` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 a user's class may do anything
        return f"{type(error).__name__}, which raises when it is asked what it says"
