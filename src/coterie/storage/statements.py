"""SQL statements by name, read from `.sql` files.

Each begins with `-- name:` and lines that describe it. Text that many statements share stands once, in
`fragments.sql` beside them: `/* include fence (s.name, s.epoch) */` stands for the fragment `fence` with these columns.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

FRAGMENTS = "fragments.sql"

_HEAD = re.compile(r"^-- name: (?P<name>[a-z_0-9]+)\n(?:-- .+\n)+", re.MULTILINE)
_INCLUDE = re.compile(r"/\* include (?P<name>[a-z_0-9]+)(?: \(\s*(?P<columns>[^*]+?)\s*\))? \*/")
_COLUMNS = "/* columns */"


def load(package: str, file: str) -> Mapping[str, str]:
    """The statements of one file, by name."""
    return {name: expand(text, package) for name, text in texts(package, file).items()}


@cache
def texts(package: str, file: str) -> Mapping[str, str]:
    """The statements of one file as they are written, by name."""
    text = (resources.files(package) / file).read_text("utf-8")
    heads = list(_HEAD.finditer(text))
    assert heads, f"{package}/{file} has no `-- name:` lines"
    ends = [head.start() for head in heads[1:]] + [len(text)]
    statements = {}
    for head, end in zip(heads, ends, strict=True):
        assert head["name"] not in statements, f"{head['name']} stands twice in {package}/{file}"
        statements[head["name"]] = text[head.end() : end].strip().rstrip(";")
    return statements


def expand(text: str, package: str) -> str:
    """A statement with its fragments in place."""

    def fragment(include: re.Match[str]) -> str:
        name, columns = include["name"], include["columns"]
        body = texts(package, FRAGMENTS).get(name, "")
        assert body, f"{package}/{FRAGMENTS} has no fragment {name}"
        assert columns is None or _COLUMNS in body, f"the fragment {name} has no columns"
        return expand(body, package).replace(f" {_COLUMNS}", f" {columns}" if columns else "")

    return _INCLUDE.sub(fragment, text)
