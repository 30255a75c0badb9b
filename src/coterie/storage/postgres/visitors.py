"""SQL of users on our sessions: what is refused by its words, and what the server calls the rest. Pure.

This keeps from mistakes, not from intent: functions and the user's own search_path reach anything that the role may.
"""

from __future__ import annotations

import re

# What is text to the server, and not SQL. Of comments inside of comments an end is left over.
_TEXT = re.compile(
    r"--[^\n]*|/\*.*?\*/|\be'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'|\$(?P<tag>[a-z_]\w*|)\$.*?\$(?P=tag)\$",
    re.DOTALL | re.IGNORECASE,
)
_FIRST = re.compile(r"[\s(;]*(?P<first>\w+)(?:\s+(?P<second>\w+))?")
_OURS = re.compile(r"\bcoterie\"?\s*\.")
_CHANGED = re.compile(r"(?:INSERT \d+|UPDATE|DELETE|MERGE) (?P<rows>\d+)")

_ENDING = {"begin", "start", "commit", "end", "abort", "rollback", "savepoint", "release"}
_STAYING = {"set", "reset", "discard", "prepare", "deallocate", "listen", "unlisten", "load"}


def refused(sql: str) -> tuple[str, str]:
    """Why a statement is not run, and what to do instead; empty texts if it is."""
    words = _TEXT.sub(" ", sql).lower()
    found = _FIRST.match(words)
    first, second = (found["first"], found["second"]) if found else ("", "")
    if first in _ENDING or (first == "prepare" and second == "transaction"):
        return f"{first} inside of a transaction that coterie commits", "leave its block to end it"
    if first in _STAYING and not (first == "set" and second in ("local", "constraints")):
        return f"{first} would outlive the transaction", "use set local for settings"
    if first == "copy":
        return "copy has no place in it", "use insert, with arrays and unnest for many rows"
    if "*/" in words:
        return "it has comments inside of comments", "leave them out"
    if _OURS.search(words) or (first == "set" and "coterie" in words):
        return "the schema coterie is not for statements of users", "use tables in a schema of your own"
    return "", ""


def changed(tag: str) -> int:
    """How many rows a statement changed, as the server's word for it says."""
    found = _CHANGED.fullmatch(tag)
    return int(found["rows"]) if found else 0
