"""SQL statements by name, read from `.sql` files: each begins with `-- name:` and one line that describes it."""

from __future__ import annotations

import re
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_HEAD = re.compile(r"^-- name: (?P<name>[a-z_0-9]+)\n-- (?P<about>.+)\n", re.MULTILINE)


def load(package: str, file: str) -> Mapping[str, str]:
    """The statements of one file, by name."""
    text = (resources.files(package) / file).read_text("utf-8")
    heads = list(_HEAD.finditer(text))
    assert heads, f"{package}/{file} has no `-- name:` lines"
    ends = [head.start() for head in heads[1:]] + [len(text)]
    statements = {}
    for head, end in zip(heads, ends, strict=True):
        assert head["name"] not in statements, f"{head['name']} stands twice in {package}/{file}"
        statements[head["name"]] = text[head.end() : end].strip().rstrip(";")
    return statements
