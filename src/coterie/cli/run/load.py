"""Loads the program named on the command line of `coterie run` and finds its cluster."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from coterie.cli.client import WRONG, refuse
from coterie.cli.output import echo
from coterie.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from typing_extensions import Buffer

_FORMS = "write app.py, app.py:cluster or package.module:cluster"


class Target(NamedTuple):
    """A program as named on the command line."""

    place: str
    """A file, or a module by its dotted name."""
    name: str
    """The name of the cluster in it; empty: the only one."""

    @property
    def is_file(self) -> bool:
        """Whether it is a file, not a module."""
        return self.place.endswith(".py") or "/" in self.place

    @property
    def folder(self) -> Path:
        """The folder of the program."""
        return Path(self.place).resolve().parent if self.is_file else Path.cwd()


class LoadedProgram(NamedTuple):
    """A program's cluster, and its name there."""

    cluster: Cluster
    shown: str
    """`app.py: cluster`."""


def parse(text: str) -> Target:
    """Parse the argument of the command."""
    place, separator, name = text.partition(":")
    if not place or (separator and not name.isidentifier()):
        refuse(f'cannot read "{text}"', hint=_FORMS, code=WRONG)
    return Target(place, name)


def load(target: Target) -> LoadedProgram:
    """Import the program and find its cluster. Any failure ends the command, in two lines."""
    sys.path.insert(0, str(target.folder))  # its neighbours can be imported, as with `python app.py`
    module = _module_of_file(target) if target.is_file else _module_of_name(target)
    name = target.name or _only_cluster(module, target)
    return LoadedProgram(_named(module, name, target), f"{target.place}: {name}")


def _module_of_file(target: Target) -> ModuleType:
    path = Path(target.place)
    if not path.is_file():
        there = sorted(each.name for each in target.folder.glob("*.py")) if target.folder.is_dir() else []
        refuse(f"there is no file {target.place}", hint=_meant(path.name, there) or _FORMS, code=WRONG)
    # A name in use (json.py) would replace another module by the program.
    name = path.stem if path.stem not in sys.modules else f"program_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        refuse(f"{target.place} is no Python file", hint=_FORMS, code=WRONG)
    if isinstance(spec.loader, SourceFileLoader):
        spec.loader = _Program(name, spec.loader.path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # noqa: BLE001 whatever a program may raise
        _blame(target, error)
    return module


class _Program(SourceFileLoader):
    """Loads a program's own file: as with `python app.py`, without writing bytecode beside it."""

    def set_data(self, path: str, data: Buffer, *, _mode: int = 0o666) -> None:
        """Do nothing, where other loaders write bytecode."""


def _module_of_name(target: Target) -> ModuleType:
    try:
        return importlib.import_module(target.place)  # noqa: TID251 the user chooses the program
    except ModuleNotFoundError as error:
        if error.name is None or not f"{target.place}.".startswith(f"{error.name}."):
            _blame(target, error)  # it exists, and one of its own imports is missing
        hint = f"it is searched for from {Path.cwd()}; {_FORMS}"
        refuse(f"there is no module {target.place}", hint=hint, code=WRONG)
    except Exception as error:  # noqa: BLE001 whatever a program may raise
        _blame(target, error)


def _only_cluster(module: ModuleType, target: Target) -> str:
    found: dict[int, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Cluster):
            found.setdefault(id(value), name)  # a second name of the same object is not another cluster
    if not found:
        hint = "write cluster = Cluster() at its top level, not inside of a function"
        refuse(f"{target.place} has no Cluster", hint=hint, code=WRONG)
    names = list(found.values())
    if len(names) > 1:
        hint = f"name one: coterie run {target.place}:{names[0]}"
        refuse(f"{target.place} has several clusters: {', '.join(names)}", hint=hint, code=WRONG)
    return names[0]


def _named(module: ModuleType, name: str, target: Target) -> Cluster:
    found = getattr(module, name, None)  # a module may make it when it is asked for
    if isinstance(found, Cluster):
        return found
    return _refuse_other(name, found, target, vars(module))


def _refuse_other(name: str, found: object, target: Target, names: Mapping[str, object]) -> NoReturn:
    clusters = [each for each, value in names.items() if isinstance(value, Cluster)]
    hint = f"its clusters are {', '.join(clusters)}" if clusters else "write cluster = Cluster() at its top level"
    if name not in names:
        refuse(f'{target.place} has no "{name}"', hint=_meant(name, clusters) or hint, code=WRONG)
    refuse(f'"{name}" in {target.place} is of type {type(found).__name__}, no Cluster', hint=hint, code=WRONG)


def _meant(wrong: str, right: list[str]) -> str:
    close = get_close_matches(wrong, right, n=1)
    return f"did you mean {close[0]}?" if close else ""


def _blame(target: Target, error: Exception) -> NoReturn:
    """The program itself has failed: show where, without our own part of the stack."""
    stack = error.__traceback__
    while stack is not None and _is_ours(stack.tb_frame.f_code.co_filename):
        stack = stack.tb_next
    echo("".join(traceback.format_exception(error.with_traceback(stack))), err=True, nl=False)
    refuse(f"{target.place} cannot be loaded: {type(error).__name__}", hint="the lines above say where", code=WRONG)


def _is_ours(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")
