"""Tags of what is sent: short names with short values, by which it is found again. Their bounds are checked here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coterie.errors import InvalidArgument, quoted
from coterie.kernel.text import require_text

if TYPE_CHECKING:
    from typing import Any

TAGS_MOST = 10
"""How many tags one message may have: each is a row of its own."""
NAME_MOST_BYTES, VALUE_MOST_BYTES = 100, 500
"""Together they fit into one entry of an index."""

Tag = tuple[str, str]
"""A name and a value."""


def tags_of(given: Mapping[str, str] | None, *, what: object) -> tuple[Tag, ...]:
    """The tags as pairs, in the order of their names.

    Args:
        given: As the user wrote them.
        what: What has them, for errors; formatted only then.

    Raises:
        TypeError: It is no mapping, or has a name or value that is no text.
        InvalidArgument: There are too many, or one is empty, too long or not storable.
    """
    if not given:
        return ()
    if not isinstance(given, Mapping):
        raise TypeError(f'tags of {what} are {given!r}: write a mapping of texts, as in tags={{"order": "7"}}')
    if len(given) > TAGS_MOST:
        raise InvalidArgument(
            what=f"tags of {what}",
            value=f"{len(given)} tags",
            problem=f"there may be {TAGS_MOST}",
            hint="keep what you search by, and give the rest as arguments",
        )
    return tuple(sorted(tag_of(each, what=what) for each in given.items()))


def tag_of(given: tuple[Any, Any], *, what: object = "the filter") -> Tag:
    """One tag, checked. Raises what `tags_of` raises."""
    try:
        name, value = given
    except (TypeError, ValueError):
        raise TypeError(f'tag of {what} is {given!r}: write a name and a value, as in tag=("order", "7")') from None
    for text, kind, most in ((name, "name", NAME_MOST_BYTES), (value, "value", VALUE_MOST_BYTES)):
        if not isinstance(text, str):
            raise TypeError(f"{kind} of a tag of {what} is {text!r}: tags are texts, so write {quoted(str(text))}")
        require_text(text, what=f"{kind} of a tag of {what}")
        size = len(text.encode())
        if size > most or (kind == "name" and not size):
            problem = f"it may have {most} bytes, and has {size}" if size else "it is empty"
            raise InvalidArgument(what=f"{kind} of a tag of {what}", value=quoted(text[:60]), problem=problem)
    return name, value
