"""Builds a `Singleton` from a function. All validation happens here, when the program is loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict, TypeVar

from coterie.errors import MalformedMessage
from coterie.kernel.durations import Duration, seconds_or_none
from coterie.kernel.ids import Seat
from coterie.kernel.serialization.versions import Versioned
from coterie.ownership.admission import Definition
from coterie.settings import parsers
from coterie.work.definition import refusal, refuse_unknown, require_body, require_name, retry_of, takes_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from coterie.kernel.retry import Retry
    from coterie.kernel.serialization.versions import Migrations
    from coterie.singletons.leader import Leader

    SingletonBody = Callable[[Leader[Any]], Coroutine[Any, Any, None]]
    Hook = Callable[[Leader[Any]], Awaitable[None]]

S = TypeVar("S")

PREFIX = "singleton-state:"
"""The prefix of the keys under which states of singletons are stored (S10)."""


class StatelessOptions(TypedDict, Generic[S], total=False):
    """The options of `@cluster.singleton(name, …)` that do not concern its state."""

    group: str
    """The group whose runners may lead it. Default: `default`."""
    every: Duration | None
    """Run the body repeatedly at this interval, from start to start. Default: it runs for as long as it likes."""
    expected_interval: Duration | None
    """How often progress is expected. Default: `every`."""
    retry: Retry | None
    """How often and when a body that raises is run again. Once used up, another runner leads; with `every`, the next
    run comes at its time. Default: for ever; with `every`, the setting `retry`."""
    takeover_delay: Duration | None
    """How long to wait after a leader was lost without deregistering: gives effects that cannot be fenced time to
    end."""
    on_become_leader: Callable[[Leader[S]], Awaitable[None]] | None
    """Awaited before the body of each leadership; if it fails, another runner leads."""
    on_lose_leadership: Callable[[Leader[S]], Awaitable[None]] | None
    """Awaited after the body, also when the lease is lost and when the runner stops."""


class SingletonOptions(StatelessOptions[S], total=False):
    """The options of `@cluster.singleton(name, …)`."""

    state: Required[type[S] | Callable[[], S]]
    """The class of its state, or a function that makes the initial state. Default: no state."""
    ttl: Duration | None
    """The stored state is deleted after this long without a save."""
    version: int
    """The version of its state. Default: 1."""
    migrations: Migrations | None
    """Functions from each earlier version of the state to the next."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Singleton(Generic[S]):
    """The definition of one singleton, made once."""

    name: str
    body: SingletonBody
    group: str
    codec: Versioned[Any] | None
    """The codec of its state; None if it has none."""
    initial: Callable[[], S]
    every_s: float | None
    """From the start of one execution to that of the next; None: the body runs for as long as it likes."""
    ttl_s: float | None
    expected_s: float | None
    """How often progress is expected; None: unknown, and being alive is enough."""
    retry: Retry | None
    takeover_delay_s: float
    on_become_leader: Hook | None
    on_lose_leadership: Hook | None

    @property
    def seat(self) -> str:
        """The name of its seat."""
        return Seat.singleton(self.name)

    @property
    def key(self) -> str:
        """The key under which its state is stored."""
        return PREFIX + self.name

    @property
    def definition(self) -> Definition:
        """Its declaration to the cluster. Programs whose declarations differ do not take turns [M8]."""
        version = 0 if self.codec is None else self.codec.version
        facts = repr((version, self.every_s, self.ttl_s, self.expected_s))
        fingerprint = hashlib.sha256(facts.encode()).hexdigest()[:16]
        return Definition(
            seat=self.seat, group=self.group, fingerprint=fingerprint, takeover_delay_s=self.takeover_delay_s
        )


_INSTEAD = "a leader ends when its seat moves, and a thread need not: await blocking functions as steps of a unit"


def define(name: str, body: SingletonBody, options: SingletonOptions[Any]) -> Singleton[Any]:
    """Build the singleton that a function describes.

    Raises:
        ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
    """
    name = require_name(name, kind="singleton")
    what = f"singleton {name!r}"
    refuse_unknown(options, dict.fromkeys(("state", *SingletonOptions.__annotations__)), what=what)
    require_body(body, what=what, argument="leader", instead=_INSTEAD)
    every_s = seconds_or_none(options.get("every"), what=f"every of {what}")
    expected_s = seconds_or_none(options.get("expected_interval"), what=f"expected_interval of {what}")
    codec, initial = _state(name, options)
    return Singleton(
        name=name,
        body=body,
        group=parsers.name().read(options.get("group", "default"), what=f"group of {what}"),
        codec=codec,
        initial=initial,
        every_s=every_s,
        ttl_s=seconds_or_none(options.get("ttl"), what=f"ttl of {what}"),
        expected_s=every_s if expected_s is None else expected_s,
        retry=retry_of(options.get("retry"), what=what, by_class=False),
        takeover_delay_s=seconds_or_none(options.get("takeover_delay"), what=f"takeover_delay of {what}") or 0.0,
        on_become_leader=_hook(options, "on_become_leader", what),
        on_lose_leadership=_hook(options, "on_lose_leadership", what),
    )


def _hook(options: SingletonOptions[Any], name: str, what: str) -> Hook | None:
    hook: Any = options.get(name)
    hint = f"write async def {name}(leader)"
    if hook is not None and not callable(hook):
        raise refusal(f"{name} of {what} is {hook!r}, expected a function", hint=hint)
    if hook is not None and not takes_one(hook):
        raise refusal(f"{name} of {what} does not take one argument, its leader", hint=hint)
    return hook  # type: ignore[no-any-return]


def _state(name: str, options: SingletonOptions[Any]) -> tuple[Versioned[Any] | None, Callable[[], Any]]:
    given: Any = options.get("state")
    version, migrations = options.get("version", 1), options.get("migrations")
    if given is None or given is type(None):
        if version != 1 or migrations or options.get("ttl") is not None:
            raise refusal(
                f"singleton {name!r} has a version, migrations or a ttl, and no state", hint="add state=, its class"
            )
        return None, lambda: None
    if not callable(given):
        raise refusal(
            f"state of singleton {name!r} is {given!r}, expected its class or a function that makes the first one",
            hint="write state=Progress, or state=lambda: Progress(last_id=7)",
        )
    try:
        first = given()
    except Exception as error:
        raise refusal(
            f"the first state of singleton {name!r} cannot be made: {type(error).__name__}: {error}",
            hint="give its fields defaults, or state=lambda: Progress(last_id=7)",
        ) from error
    codec: Versioned[Any] = Versioned(
        given if isinstance(given, type) else type(first), version, migrations, what=f"state of {name!r}"
    )
    try:
        codec.encode(first)
    except MalformedMessage as error:
        raise refusal(f"the first state of singleton {name!r} cannot be stored: {error.message}") from error
    return codec, given
