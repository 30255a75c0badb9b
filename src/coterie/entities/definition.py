"""Makes an entity type of a class: all checks of a definition run here, when the program is loaded."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict, Unpack, cast

from coterie.entities.arguments import codec_of
from coterie.entities.entity import E, Entity, state_type_of
from coterie.entities.reference import Reference, Sender, reference_type
from coterie.entities.rpc import Rpc, make_rpc, options_of
from coterie.errors import ConfigurationError, MalformedMessage
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.ids import EntityAddress
from coterie.kernel.serialization.versions import Versioned
from coterie.settings import parsers
from coterie.work.definition import refusal, refuse_unknown, retry_of

if TYPE_CHECKING:
    from coterie.kernel.retry import Retry
    from coterie.kernel.serialization.versions import Migrations

_MOST_MAILBOX = 1_000_000
_MOST_CONCURRENCY = 10_000
_OURS = frozenset(name for name in (*vars(Entity), *Entity.__annotations__) if not name.startswith("_"))


class EntityOptions(TypedDict, total=False):
    """The options of `@cluster.entity(…)`."""

    name: str | None
    """Its name in the cluster and in the database. Default: the name of the class."""
    group: str
    """The shard group whose runners serve it. Default: `default`."""
    mailbox: int
    """How many calls of one entity may wait. Default: 1000, which is seconds of work, not minutes of silence."""
    concurrency: int
    """How many calls of one entity run at once. Default: 1, so that a handler has exclusive use of the state."""
    max_idle: Duration | None
    """An entity without calls for this long is deactivated. Default: the setting `max_idle`."""
    retry: Retry | None
    """How often and when a crashed handler, or an activation, is retried. Default: the setting `retry`."""
    version: int
    """The version of its state. Default: 1."""
    migrations: Migrations | None
    """Functions from each earlier version of the state to the next."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EntityType(Generic[E]):
    """One entity type, created once. None for `max_idle_s` and `retry`: the setting's default."""

    name: str
    cls: type[E]
    group: str
    mailbox: int
    concurrency: int
    max_idle_s: float | None
    retry: Retry | None
    rpcs: dict[str, Rpc]
    state: Versioned[Any] | None
    """Encodes its stored state; None if it has none."""
    references: type[Reference]

    def ref(self, id: str, sender: Sender, *, timeout_s: float | None = None) -> E:
        """A reference, typed as the entity.

        Args:
            id: The id of the entity.
            sender: Sends its calls.
            timeout_s: The timeout of its calls, instead of that of their rpcs.

        Raises:
            ValueError: The id is empty, too long or not storable.
        """
        return cast("E", self.references(id, sender, timeout_s))


def define(cls: type[E], /, **options: Unpack[EntityOptions]) -> EntityType[E]:
    """The entity type of a class.

    Args:
        cls: A class that derives from `Entity`. It is not changed, so that several clusters may share it.
        options: By name:
            name: The name in the cluster and in the database; the class's own name if left out.
            group: The shard group whose runners serve it.
            mailbox: How many calls of one entity may wait. 1000: seconds of work, not minutes of silence.
            concurrency: How many calls run at once. One: then a handler has exclusive access to the state.
            max_idle: After how long without calls an instance is deactivated.
            retry: How often and when a crashed handler is tried again.
            version: The version of its state.
            migrations: From each earlier version of its state to the next.

    Raises:
        ConfigurationError: The class or an option is invalid; which part, and what to write instead.
    """
    _require_entity_class(cls)
    refuse_unknown(options, EntityOptions.__annotations__, what=f"the entity {cls.__name__}")
    given = options.get("name")
    name = _name(cls.__name__ if given is None else given)
    rpcs = _rpcs(cls, name)
    concurrency = _whole(options.get("concurrency", 1), _MOST_CONCURRENCY, what=f"concurrency of {name}")
    return EntityType(
        name=name,
        cls=cls,
        group=parsers.name().read(options.get("group", "default"), what=f"group of {name}"),
        mailbox=_whole(options.get("mailbox", 1000), _MOST_MAILBOX, what=f"mailbox of {name}"),
        concurrency=concurrency,
        max_idle_s=seconds_or_none(options.get("max_idle"), what=f"max_idle of {name}"),
        retry=retry_of(options.get("retry"), what=name),
        rpcs=rpcs,
        state=_state(cls, name, options, concurrency=concurrency),
        references=reference_type(name, rpcs),
    )


def _require_entity_class(cls: Any) -> None:
    shown = getattr(cls, "__name__", repr(cls))
    if not (isinstance(cls, type) and issubclass(cls, Entity)):
        raise refusal(f"{shown} does not derive from Entity", hint=f"write class {shown}(Entity), with its rpcs in it")
    # Python itself gives each Protocol an `__init__`.
    written = (base for base in cls.__mro__ if base is not object and "_is_protocol" not in vars(base))
    initializing = next((base for base in written if "__init__" in vars(base)), None)
    if initializing is not None:
        raise refusal(
            f"{initializing.__name__} has an __init__ of its own, and entities are made by the runner, by id alone",
            hint="prepare what it needs in async def on_activate(self)",
        )
    for hook in ("on_activate", "on_deactivate"):
        if not inspect.iscoroutinefunction(inspect.unwrap(getattr(cls, hook))):
            raise refusal(
                f"{shown}.{hook} is a plain function, and it is awaited", hint=f"write async def {hook}(self)"
            )


def _rpcs(cls: type[Entity[Any]], entity: str) -> dict[str, Rpc]:
    members = {name: inspect.getattr_static(cls, name) for name in dir(cls)}
    marked = {name: options for name, member in members.items() if (options := options_of(member)) is not None}
    for name in marked:
        _require_rpc_name(name, members[name], what=f"{entity}.{name}")
    _refuse_lost_rpcs(cls, marked)
    return {
        name: make_rpc(members[name], options, cls, name=name, what=f"{entity}.{name}")
        for name, options in marked.items()
    }


def _require_rpc_name(name: str, member: object, *, what: str) -> None:
    if name.startswith("_"):
        raise refusal(
            f"{what} is an rpc with a private name", hint=f"name it {name.strip('_')}: rpcs are for everybody"
        )
    if name in _OURS:
        raise refusal(f"{what} is an rpc, and that name is part of every entity", hint="give it another name")
    if not inspect.isfunction(member):
        raise refusal(f"{what} is an rpc and a {type(member).__name__}", hint="an rpc is a method with self")


def _refuse_lost_rpcs(cls: type, marked: dict[str, Any]) -> None:
    """Refuse a plain method that overrides an rpc: it would remove the rpc silently."""
    for base in cls.__mro__:
        for name, member in vars(base).items():
            if options_of(member) is not None and name not in marked:
                raise refusal(
                    f"{cls.__name__}.{name} overrides an rpc of {base.__name__}, and is none itself",
                    hint=f"write @rpc before {name} in {cls.__name__} too",
                )


def _name(name: Any) -> str:
    try:
        return EntityAddress(name, "id").type
    except (ValueError, TypeError) as error:
        raise refusal(f"name of an entity is {name!r}: {error}") from error


def _whole(value: Any, most: int, *, what: str) -> int:
    found: int = parsers.whole(1, most).read(value, what=what)
    return found


def _state(cls: type[Entity[Any]], name: str, options: EntityOptions, *, concurrency: int) -> Versioned[Any] | None:
    kind, version, migrations = state_type_of(cls), options.get("version", 1), options.get("migrations")
    if kind is type(None):
        if version != 1 or migrations:
            raise refusal(f"{name} has a version or migrations, and no state", hint=f"write class {name}(Entity[…])")
        return None
    if concurrency > 1:
        raise refusal(
            f"{name} has state and concurrency {concurrency}: one handler would save what another has half done",
            hint="leave out concurrency, or keep what it needs outside of its state",
        )
    codec_of({"S": kind}, "S", what=name, part="its state", example="")
    stored = Versioned(kind, version, migrations, what=f"state of {name}")
    _require_initial_state(cls, kind, stored, name)
    return stored


def _require_initial_state(cls: type[Entity[Any]], kind: Any, stored: Versioned[Any], name: str) -> None:
    """Try the default `initial_state` once, so that no entity fails at its first call."""
    if cls.initial_state is not Entity.initial_state:
        return
    try:
        stored.encode(kind())
    except Exception as error:  # a user's class may raise anything
        problem = error.problem if isinstance(error, MalformedMessage | ConfigurationError) else str(error)
        shown = getattr(kind, "__name__", str(kind))
        raise refusal(
            f"{name} cannot begin with {shown}(): {problem}",
            hint=f"give all fields of {shown} a default, or override initial_state",
        ) from error
