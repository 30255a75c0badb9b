"""JSON that people write behind a command."""

from __future__ import annotations

from typing import Any

import msgspec

from coterie.cli.asking import WRONG, refuse


def read_json(text: str, *, what: str, hint: str) -> Any:
    """The value that a text holds; what is no JSON ends the command.

    Args:
        text: As it was written.
        what: What it is, for the error: `the value`.
        hint: What to write instead.
    """
    try:
        return msgspec.json.decode(text.encode())
    except (ValueError, RecursionError) as error:
        problem = str(error).removeprefix("JSON is malformed: ")
        return refuse(f"{what} is no JSON: {problem}", hint=hint, code=WRONG)
