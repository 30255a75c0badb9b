"""`CoterieError`, the root of all errors: facts, from which text and advice are filled, and how they cross the wire."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def quoted(text: str) -> str:
    """A user's text as our messages show it: in double quotes, on one line, whatever it contains."""
    safe = text.replace("\\", "\\\\").replace('"', '\\"')
    if safe.isprintable():
        return f'"{safe}"'
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in safe)
    return f'"{"".join(shown)}"'


class _Shown(str):
    """A fact as `text` and `advice` see it: `{key!r}` gives the quotes of our messages, not Python's."""

    __slots__ = ()

    def __repr__(self) -> str:
        return quoted(self)


@dataclass_transform(kw_only_default=True)
class _Declared(Exception):
    """Tells checkers that annotations make the signature. Apart: the class so marked has no fields itself."""


class CoterieError(_Declared):
    """The root of everything that coterie raises on purpose."""

    text: ClassVar[str] = "{problem}"
    advice: ClassVar[str] = ""
    code: ClassVar[str] = "coterie_error"
    retryable: ClassVar[bool] = False

    _facts: ClassVar[tuple[str, ...]] = ()
    _known: ClassVar[dict[str, type[CoterieError]]] = {}

    hint: str = ""
    stored: Sequence[str] = ()  # raised by `cluster.send_many`: the ids of the messages that are stored nevertheless

    if not TYPE_CHECKING:  # checkers derive the signature from the annotations

        def __init__(self, **facts: Any) -> None:
            unknown = [name for name in facts if name not in self._facts and name != "hint"]
            missing = [name for name in self._facts if name not in facts and not hasattr(type(self), name)]
            if unknown or missing:
                raise TypeError(f"{type(self).__name__}: unknown {unknown}, missing {missing}")
            for name, value in facts.items():
                setattr(self, name, value)
            if not self.hint:
                self.hint = self._fill(self.advice)
            super().__init__(self.message)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        declared = [name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]
        cls._facts = (*cls._facts, *(name for name in declared if name not in cls._facts and name != "hint"))
        if "code" not in cls.__dict__:
            cls.code = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()
        if cls.__module__ == __package__:  # what arrives over the wire can only name errors of ours
            CoterieError._known[cls.code] = cls

    @property
    def facts(self) -> dict[str, Any]:
        """What the text is made of, by name."""
        return {name: getattr(self, name) for name in self._facts}

    @property
    def message(self) -> str:
        """What happened to what, with the figures."""
        return self._fill(self.text)

    def _fill(self, template: str) -> str:
        facts = self.facts.items()
        return template.format(**{name: _Shown(v) if isinstance(v, str) else v for name, v in facts})

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {**self.facts, "hint": self.hint})

    def to_wire(self) -> tuple[str, dict[str, Any]]:
        """The code, and the facts with the finished text, for `from_wire` at the other end."""
        return self.code, {**self.facts, "hint": self.hint, "message": self.message}

    @staticmethod
    def from_wire(code: str, facts: Mapping[str, Any]) -> CoterieError:
        """The error that `to_wire` described.

        What a program of another version cannot rebuild (a code it does not know, facts that do not fit)
        becomes a `RemoteError` with the sender's text. Never raises, whatever arrived.
        """
        kind = CoterieError._known.get(code)
        if kind is not None:
            try:
                known = (*kind._facts, "hint")  # noqa: SLF001 a subclass of ours
                return _rebuild(kind, {name: facts[name] for name in known if name in facts})
            except (AttributeError, TypeError, ValueError, LookupError):
                pass  # facts are missing, or of types that the text cannot show
        problem = facts.get("message")
        remote_error: type[Any] = CoterieError._known["remote_error"]
        error: CoterieError = remote_error(
            type_name=code, problem=problem if isinstance(problem, str) else "", remote_traceback=""
        )
        return error


def _rebuild(kind: type[CoterieError], facts: dict[str, Any]) -> CoterieError:
    return kind(**facts)
