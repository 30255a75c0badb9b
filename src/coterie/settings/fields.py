"""Declares settings: their description, the origin of their values, and the generated pages.

A frozen dataclass declares its fields with `setting(…)` and calls `take_values` in `__post_init__`. The
fields then hold values parsed by their `Parser`, and each knows its origin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

from coterie.errors import ConfigurationError, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from coterie.settings.parsers import Parser

Scope = Literal["process", "cluster"]

PREFIX = "COTERIE_"
_OURS = "COTERIE_TEST_"  # variables that belong to our own tests and are not settings

# What Kubernetes injects into pods beside a Service named "coterie", or "coterie-…".
_SERVICE_LINK = re.compile(
    rf"{PREFIX}(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
_SERVICE_PORT = re.compile(rf"{PREFIX}(\w+_)?PORT")  # a URL such as tcp://10.0.0.1:7650, or a user's mistake


@dataclass(frozen=True, slots=True)
class GivenValue:
    """A value on its way into a field, and its origin: "argument", a variable's name, or "default"."""

    value: Any
    origin: str


@dataclass(frozen=True, slots=True)
class Setting:
    """The declaration of one setting. `why` is the reason for the default."""

    kind: Parser
    default: Any
    about: str
    why: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One setting as help, documentation and `coterie config` show it. Secrets and passwords are hidden."""

    name: str
    variable: str
    default: str
    about: str
    why: str
    accepts: str
    scope: Scope
    value: str
    origin: str


def setting(kind: Parser, default: Any, about: str, *, why: str, scope: Scope = "process") -> Any:
    """Declare a field of a dataclass as a setting."""
    declared = Setting(kind, default, about, why, scope)
    return field(default_factory=lambda: GivenValue(default, "default"), metadata={"setting": declared})


def declarations(kind: type) -> Mapping[str, Setting]:
    """The declarations of a dataclass, by the name of the field."""
    return {one.name: one.metadata["setting"] for one in fields(kind)}


def variable(name: str) -> str:
    """The environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def take_values(target: Any) -> dict[str, str]:
    """Parse the values given to a dataclass under construction, in place. Returns: their origins."""
    origins = {}
    for name, declared in declarations(type(target)).items():
        given = getattr(target, name)
        given = given if isinstance(given, GivenValue) else GivenValue(given, "argument")
        object.__setattr__(target, name, _read(name, declared, given))
        origins[name] = given.origin
    return origins


def gather(
    kind: type, arguments: Mapping[str, Any], environ: Mapping[str, str], *, where: str
) -> dict[str, GivenValue]:
    """The value given for each field: the argument, else the variable. Unknown ones are refused.

    An empty variable counts as not set. So does an argument of None where None is not a valid value.
    """
    known = declarations(kind)
    _refuse_unknown(arguments, known, where)
    variables = {variable(name): name for name in known}
    ours = [key for key in environ if key in variables or _is_meant(key, environ[key])]
    _refuse_unknown(ours, variables, "the environment")
    given = {variables[key]: GivenValue(environ[key], key) for key in ours if environ[key].strip()}
    for name, value in arguments.items():
        if value is not None or known[name].kind.optional:
            given[name] = GivenValue(value, "argument")
    return given


def _is_meant(key: str, value: str) -> bool:
    """Whether a variable that is not a setting was meant as one."""
    if not key.startswith(PREFIX) or key.startswith(_OURS):
        return False
    return not _SERVICE_LINK.fullmatch(key) and not (_SERVICE_PORT.fullmatch(key) and "://" in value)


def rows(kind: type, values: object, origins: Mapping[str, str]) -> list[SettingRow]:
    """All facts about every setting, with the values of `values`."""
    return [
        SettingRow(
            name=name,
            variable=variable(name),
            default=_default_text(declared),
            about=declared.about,
            why=declared.why,
            accepts=declared.kind.expected,
            scope=declared.scope,
            value=declared.kind.text(getattr(values, name)),
            origin=origins[name],
        )
        for name, declared in declarations(kind).items()
    ]


def markdown_table(table: Iterable[SettingRow]) -> str:
    """The settings as a table of a documentation page."""
    lines = [
        "| setting | variable | default | what it is | why this default | accepted |",
        "|---|---|---|---|---|---|",
    ]
    for row in table:
        about = f"{row.about} (the same on all runners)" if row.scope == "cluster" else row.about
        cells = (f"`{row.name}`", f"`{row.variable}`", f"`{row.default}`", about, row.why, row.accepts)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def env_lines(table: Iterable[SettingRow]) -> str:
    """The settings as a file of variables, all commented out."""
    return "\n".join(f"# {row.about}\n# {row.why}\n#{row.variable}={row.default}\n" for row in table)


def _read(name: str, declared: Setting, given: GivenValue) -> Any:
    what = given.origin if given.origin.startswith(PREFIX) else name
    try:
        return declared.kind.read(given.value, what=what)
    except ConfigurationError as error:
        hint = error.hint or f"the default is {_default_text(declared)}"
        raise ConfigurationError(problem=error.problem, hint=hint) from None


def _default_text(declared: Setting) -> str:
    return declared.kind.text(declared.kind.read(declared.default, what="the default"))


def _refuse_unknown(names: Iterable[str], known: Mapping[str, object], where: str) -> None:
    unknown = next((name for name in names if name not in known), None)
    if unknown is None:
        return
    import difflib  # only here: errors are rare, and the command line has to start fast

    close = difflib.get_close_matches(unknown, known, n=1)
    meant = f"did you mean {quoted(close[0])}? " if close else ""
    raise ConfigurationError(
        problem=f"unknown setting {quoted(unknown)} in {where}",
        hint=f"{meant}coterie config lists all {len(known)}",
    )
