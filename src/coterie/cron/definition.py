"""Builds a `Cron` from a function. All validation happens here, when the program is loaded."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, get_args

import msgspec

from coterie.cron.decide import CatchUp, Overlap, TickPolicy, jitter_of
from coterie.cron.schedule import Schedule
from coterie.kernel.durations import Duration, seconds_or_none, to_timedelta
from coterie.kernel.ids import Seat
from coterie.kernel.retry import Breaker, Retry
from coterie.ownership.admission import Definition
from coterie.settings import parsers
from coterie.work.definition import is_plain, refusal, refuse_unknown, require_body, require_name, retry_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from coterie.cron.tick import Tick

    CronBody = Callable[[Tick], Coroutine[Any, Any, None]] | Callable[[Tick], None]


class CronOptions(TypedDict, total=False):
    """The options of `@cluster.cron(name, schedule, …)`."""

    timezone: str
    """The time zone of the schedule. Default: UTC."""
    group: str
    """The group whose runners may run it. Default: `default`."""
    skip_if_older_than: Duration | None
    """A tick that could not run for longer than this is skipped. None: no tick is skipped. Default: a day."""
    catch_up: CatchUp
    """Which ticks run of those that were missed while no runner held the cron: `latest` (the default), `all` (at most
    100) or `none`."""
    overlap: Overlap
    """What happens to a tick while an earlier run is in progress: `allow` (the default) runs it concurrently, `skip`
    drops it, `queue` makes it wait (at most one)."""
    from_previous: bool
    """Whether the next tick is the one after the previous tick, however late that ran. Default: the newest due one."""
    jitter: Duration | None
    """Delays ticks by up to this long, always by the same time for one name: it spreads crons over time."""
    timeout: Duration | None
    """How long an attempt may take. One in a thread is told by `current().cancelled`, and over when it has ended.
    Default: no limit."""
    retry: Retry | None
    """Retry policy for a run that raises. Default: it is not retried."""
    breaker: Breaker | None
    """After how many failures in a row ticks are skipped, and for how long. Default: never."""
    takeover_delay: Duration | None
    """How long to wait after a runner was lost without deregistering: gives effects that cannot be fenced time to
    end."""


class CronSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """What the cluster stores about a cron, for processes that may not have its definition."""

    schedule: str
    timezone: str = "UTC"
    jitter_s: float = 0.0
    """How long after its instant a tick is due."""
    skip_if_older_than_s: float | None = None
    catch_up: str = "latest"
    overlap: str = "allow"
    from_previous: bool = False
    timeout_s: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Cron:
    """The definition of one cron, made once."""

    name: str
    body: CronBody
    is_threaded: bool
    """Whether its body is a plain function, which runs in a thread."""
    group: str
    schedule: Schedule
    policy: TickPolicy
    timeout_s: float | None
    retry: Retry | None
    takeover_delay_s: float

    @property
    def seat(self) -> str:
        """The name of its seat."""
        return Seat.cron(self.name)

    @property
    def one_at_a_time(self) -> bool:
        """Whether its ticks never run concurrently."""
        return self.policy.overlap != "allow"

    @cached_property
    def schedule_mark(self) -> str:
        """Distinguishes its ticks from those of another schedule under the same name [M8]."""
        return _hashed((self.schedule.expression, self.schedule.timezone))

    @cached_property
    def summary(self) -> str:
        """Its encoded `CronSummary`."""
        oldest = self.policy.skip_if_older_than
        summary = CronSummary(
            schedule=self.schedule.expression,
            timezone=self.schedule.timezone,
            jitter_s=self.policy.delay.total_seconds(),
            skip_if_older_than_s=None if oldest is None else oldest.total_seconds(),
            catch_up=self.policy.catch_up,
            overlap=self.policy.overlap,
            from_previous=self.policy.from_previous,
            timeout_s=self.timeout_s,
        )
        return msgspec.json.encode(summary).decode()

    @property
    def definition(self) -> Definition:
        """Its declaration to the cluster. Programs whose declarations differ do not take turns; while the part before
        the colon is the same, ticks stay due across the change [M8].
        """
        fingerprint = f"{self.schedule_mark}:{_hashed((self.group, self.summary, self.retry, self.policy.breaker))}"
        return Definition(
            seat=self.seat, group=self.group, fingerprint=fingerprint, takeover_delay_s=self.takeover_delay_s
        )


def define(name: str, schedule: str, body: CronBody, options: CronOptions) -> Cron:
    """Build the cron that a function describes.

    Raises:
        ConfigurationError: The function or an option is invalid; the error names it and what to write instead.
        ScheduleError: The schedule or its time zone cannot be parsed.
    """
    name = require_name(name, kind="cron")
    what = f"cron {name!r}"
    refuse_unknown(options, CronOptions.__annotations__, what=what)
    require_body(body, what=what, argument="tick")
    return Cron(
        name=name,
        body=body,
        is_threaded=is_plain(body),
        group=parsers.name().read(options.get("group", "default"), what=f"group of {what}"),
        schedule=read_schedule(schedule, options.get("timezone", "UTC"), cron=name),
        policy=_policy(name, options, what),
        timeout_s=seconds_or_none(options.get("timeout"), what=f"timeout of {what}"),
        retry=retry_of(options.get("retry"), what=what, by_class=False),
        takeover_delay_s=seconds_or_none(options.get("takeover_delay"), what=f"takeover_delay of {what}") or 0.0,
    )


def read_schedule(schedule: Any, timezone: Any, *, cron: str) -> Schedule:
    """Parse a schedule."""
    for value, called in ((schedule, "schedule"), (timezone, "timezone")):
        if not isinstance(value, str):
            raise refusal(f"{called} of cron {cron!r} is {value!r}, expected text")
    return Schedule(schedule, timezone=timezone, cron=cron)


def _policy(name: str, options: CronOptions, what: str) -> TickPolicy:
    oldest = options.get("skip_if_older_than", "1d")
    jitter = options.get("jitter")
    return TickPolicy(
        skip_if_older_than=None if oldest is None else to_timedelta(oldest, what=f"skip_if_older_than of {what}"),
        catch_up=_one_of(options.get("catch_up", "latest"), CatchUp, f"catch_up of {what}"),
        overlap=_one_of(options.get("overlap", "allow"), Overlap, f"overlap of {what}"),
        from_previous=_flag(options.get("from_previous", False), f"from_previous of {what}"),
        delay=timedelta() if jitter is None else jitter_of(name, to_timedelta(jitter, what=f"jitter of {what}")),
        breaker=_breaker(options.get("breaker"), what),
    )


def _one_of(value: Any, choices: Any, what: str) -> Any:
    known = get_args(choices)
    if value not in known:
        raise refusal(f"{what} is {value!r}", hint=f"write one of {', '.join(map(repr, known))}")
    return value


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise refusal(f"{what} is {value!r}, expected True or False")
    return value


def _breaker(value: Any, what: str) -> Breaker | None:
    if value is not None and not isinstance(value, Breaker):
        raise refusal(
            f"breaker of {what} is {value!r}, expected a Breaker", hint='write Breaker(failures=5, reset="10m")'
        )
    return value


def _hashed(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
