"""All settings, each declared once: type, default with its reason, bounds, scope. Help and docs come from here.

A value comes from the argument, else from the variable `COTERIE_<NAME>`, else it is the default; `origin`
says which. `make settings-docs` writes docs/settings.md and .env.example from this file.
"""

# ruff: noqa: RUF009  setting(…) gives a dataclasses.field

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from coterie.errors import ConfigurationError
from coterie.kernel.durations import Duration, format_duration
from coterie.kernel.retry import Retry
from coterie.settings import parsers
from coterie.settings.fields import (
    GivenValue,
    SettingRow,
    declarations,
    env_lines,
    gather,
    markdown_table,
    rows,
    setting,
    take_values,
)
from coterie.settings.payload_keys import Encrypted, payload_keys
from coterie.settings.secret import Secret, redacted_url

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "Encrypted",
    "Secret",
    "SettingRow",
    "Settings",
    "SettingsOverrides",
    "env_example",
    "help_rows",
    "redacted_url",
    "settings_page",
]

log = logging.getLogger("coterie")

_REPLACED_WITHIN = timedelta(seconds=10)  # B2: a dead, frozen or blocked owner is replaced within this time
_TAKEOVER = timedelta(seconds=1)  # the part of it that is left for acquiring seats and starting their work

_PAGE_HEAD = """\
# Settings

Each is an argument of `Cluster(…)` and a variable. The argument wins over the variable, the variable over the
default; `coterie config` shows every value and where it came from. An unknown one is refused.

Durations are a `timedelta`, seconds, or text with a unit: `250ms`, `30s`, `10m`, `1h30m`, `7d`. In a variable
the unit is needed. An empty variable counts as not set. A secret can be given as `file:` and the path of a
file that holds it, so that it need not stand in the environment.

This page is made from the declarations: `make settings-docs`.

"""
_ENV_HEAD = """\
# Every variable that coterie reads, with its default. Made from the declarations: make settings-docs

"""

WebAccess = Literal["off", "read", "act"]
LogFormat = Literal["text", "json"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """The settings of a process. Values are validated here, also in combination; nothing validates them again.

    Durations are stored as `timedelta`, sizes as bytes, whatever form they were given in.

        >>> Settings.load({"heartbeat": "5s"}, environ={}).heartbeat
        datetime.timedelta(seconds=5)
    """

    url: str = setting(
        parsers.url(),
        "sqlite:///coterie.db",
        "the database",
        why="the file ./coterie.db: nothing to install on a laptop, and the same program takes PostgreSQL",
    )
    name: str = setting(
        parsers.name(),
        "default",
        "the cluster's name, part of every key: clusters of other names in the same database are strangers",
        why="most databases hold one cluster",
    )
    runner_name: str | None = setting(
        parsers.optional(parsers.name()),
        None,
        "what people call this runner; its identity is drawn anew at each start",
        why="off: host name and process id, which tell where to look",
    )
    groups: tuple[str, ...] = setting(
        parsers.names(),
        ("default",),
        "the shard groups that this runner serves",
        why="entities, singletons and crons live in the group default unless told otherwise",
    )
    weight: float = setting(
        parsers.number(0.01, 100),
        1.0,
        "this runner's share of the shards, relative to the others",
        why="equal machines, equal shares",
    )
    lease_ttl: timedelta = setting(  # M16
        parsers.duration("100ms", "5m"),
        "6s",
        "how long a runner may go without renewing before others may take what it holds",
        why="the longest that still replaces a frozen runner within 10 s",
        scope="cluster",
    )
    lease_renew: timedelta = setting(
        parsers.duration("10ms", "1m"),
        "1s",
        "the time between two renewals of the lease",
        why="four tries before trust ends, one small write a second",
    )
    lease_margin: timedelta = setting(  # P3
        parsers.duration("0s", "1m"),
        "1500ms",
        "how long before the lease runs out a runner stops trusting it",
        why="longer than the pauses that C code in a thread causes, which reach a second",
    )
    stall_limit: timedelta = setting(  # M16
        parsers.duration("100ms", "5m"),
        "8s",
        "how long the event loop may be blocked before the runner gives up its seats",
        why="blocking for seconds is common in Python and must not cost the lease; later is too late",
    )
    drain: timedelta = setting(  # P12
        parsers.duration("0s", "1h"),
        "20s",
        "how long work in flight may go on after SIGTERM",
        why="Kubernetes kills after 30 s; handing over needs some of them",
    )
    heartbeat: timedelta = setting(  # S10
        parsers.duration("100ms", "1d"),
        "30s",
        "the time between two signs of life of a singleton",
        why="with staleness a minute until a probe turns red, soon enough, at the cost of two small writes a minute",
    )
    staleness: float = setting(
        parsers.number(1, 1000),
        2.0,
        "after how many intervals without a sign of life or progress a singleton is unhealthy",
        why="one may be late; the second one that is missed proves it",
    )
    call_timeout: timedelta = setting(
        parsers.duration("10ms", "1d"),
        "30s",
        "how long a call waits for its reply unless told otherwise",
        why="three times what the replacement of a dead owner takes, so that a call outlives it",
    )
    shards: int = setting(
        parsers.whole(1, 10_000),
        100,
        "shards per group; cannot change while the cluster exists",
        why="fine enough to share work among some thirty runners, and few enough to look at",
        scope="cluster",
    )
    listen: str = setting(
        parsers.address(),
        "127.0.0.1:0",
        "where other runners connect to this one; port 0 takes a free one",
        why="nothing is reachable from other machines unless told so",
    )
    advertise: str | None = setting(
        parsers.optional(parsers.address(port_least=1)),
        None,
        "the address that other runners are told, where it differs from listen",
        why="off: the address that listen has bound",
    )
    secret: tuple[Secret, ...] = setting(
        parsers.secrets(most=2),
        (),
        "what runners prove to each other that they belong together; two during rotation, the new one first",
        why="off: the cluster draws one and keeps it in its database",
    )
    tls_cert: str | None = setting(
        parsers.optional(parsers.file_path()),
        None,
        "the certificate of this runner, in PEM form",
        why="off: loopback needs none; elsewhere each start warns",
    )
    tls_key: str | None = setting(
        parsers.optional(parsers.file_path()),
        None,
        "the key of tls_cert, in PEM form",
        why="off: as tls_cert",
    )
    tls_ca: str | None = setting(
        parsers.optional(parsers.file_path()),
        None,
        "the authority that must have signed the certificates of other runners",
        why="off: as tls_cert; a private authority only, so there is no default",
    )
    http_listen: str | None = setting(
        parsers.optional(parsers.address()),
        "127.0.0.1:7650",
        "where probes, health and metrics are served; off serves none of them",
        why="loopback, until told otherwise: a kubelet needs 0.0.0.0:7650",
    )
    pool_size: int = setting(
        parsers.whole(1, 1000),
        8,
        "connections to PostgreSQL for work, besides the one for ownership",
        why="writes share few of them; ten runners stay below the 100 that a server allows by default",
    )
    retention: timedelta = setting(  # m17
        parsers.duration("10ms", "3650d"),
        "1d",
        "how long the result of a message, and a tick of a cron, is kept after its completion",
        why="results are read within a day; not shorter than call_timeout",
    )
    key_retention: timedelta = setting(
        parsers.duration("10ms", "3650d"),
        "7d",
        "how long a key and the result under it are remembered after completion, and acts of people",
        why="longer than the week-end that a stuck sender may take to try again",
    )
    resident_entities: int = setting(
        parsers.whole(1, 10_000_000),
        10_000,
        "entities that a runner keeps in memory at most",
        why="some hundred megabytes at ten kilobytes each",
    )
    threads: int = setting(
        parsers.whole(1, 10_000),
        32,
        "threads for rpcs, crons and steps that are plain functions: how many of them run at once on a runner",
        why="enough for functions that wait for a database or a service, few enough for connections to one",
    )
    jobs: int = setting(
        parsers.whole(1, 100_000),
        100,
        "jobs that a runner runs at once, of all its tasks; those in threads and processes need one of these too",
        why="jobs mostly wait for others; what they have in memory is bounded",
    )
    processes: int | None = setting(
        parsers.optional(parsers.whole(1, 1000)),
        None,
        'processes for tasks with pool="process": how many of them run at once on a runner',
        why="off: one for each core; they start when they are needed",
    )
    max_idle: timedelta = setting(
        parsers.duration("10ms", "3650d"),
        "10m",
        "how long an entity without calls stays in memory",
        why="sessions pause for minutes; activating again costs one read",
    )
    retry: Retry = setting(
        parsers.retry(),
        Retry(),
        "when work that failed is tried again, unless its definition says otherwise",
        why="five attempts over 1.5 s outlast a dropped connection and a change of owner",
    )
    loss_limit: int = setting(  # C5
        parsers.whole(1, 1000),
        3,
        "how many runners may be lost after each had begun the same suspected message alone: then the message is dead",
        why="a message that kills its process costs few of them, and one that two power cuts hit goes on",
    )
    frame_limit: int = setting(
        parsers.size(64 * 2**10, 2**30),
        "8MiB",
        "the largest message between runners, and the largest stored argument list, reply, state or result of a step",
        why="data, not files: larger ones hold up their neighbours; put them elsewhere and send their name",
    )
    transaction_limit: timedelta = setting(  # m18
        parsers.duration("10ms", "1m"),
        "2s",
        "how long a handler's own transaction may be open",
        why="whatever moves a seat waits for it",
    )
    sqlite_kill_frozen: bool = setting(  # C3
        parsers.flag(),
        True,
        "whether a runner that froze inside a commit on our SQLite file is ended",
        why="otherwise it blocks all writers until it is ended by hand",
    )
    http_token: Secret | None = setting(
        parsers.secret(),
        None,
        "what details over HTTP need, in the Authorization header, on loopback too",
        why="off: on loopback all is seen, elsewhere only the words of the probes",
    )
    web: WebAccess | None = setting(
        parsers.choice("off", "read", "act", unset="auto"),
        None,
        "what the page in the browser allows those who may see details: off has no page, read shows, act also changes",
        why="auto: act on loopback, read elsewhere",
    )
    http_calls: tuple[str, ...] | None = setting(
        parsers.optional(parsers.call_names()),
        None,
        "what programs may call over HTTP: entity types, single methods (Account.deposit), workflow:name and task:name",
        why="off: whatever is named here is called by everybody who has http_calls_token",
    )
    http_calls_token: Secret | None = setting(
        parsers.secret(),
        None,
        "what calls over HTTP need, in the Authorization header, on loopback too; it opens nothing else",
        why="off: required by http_calls, and another one than http_token, which only shows and acts",
    )
    redact: bool = setting(
        parsers.flag(),
        False,
        "whether the page hides what programs wrote: arguments, results, states, values, notes and error messages",
        why="those who may see the page look for the cause of a failure, which is there",
    )
    payload_keys: tuple[tuple[str, Secret], ...] = setting(  # O6
        payload_keys(),
        (),
        "the keys that can decrypt what users' code gave, by id; keys of the database's disk are none of these",
        why="off: nothing is encrypted, which costs nothing",
    )
    payload_current: str | None = setting(
        parsers.optional(parsers.name()),
        None,
        "the id of the key that encrypts what users' code gives before it is stored",
        why="off: nothing is encrypted; with payload_keys it has to be said",
    )
    payload_plain: bool = setting(
        parsers.flag(),
        False,
        "whether what is stored without encryption is read, although there are payload_keys",
        why="whoever can write to the database could put a plain value in the place of an encrypted one",
    )
    payload_compress: bool = setting(
        parsers.flag(),
        False,
        "whether what users' code gives is compressed before it is encrypted, from 256 bytes on",
        why="the length of what is compressed tells something of its content; with payload_keys only",
    )
    migrate: bool = setting(
        parsers.flag(),
        True,
        "whether an empty database is set up at start; one that lacks later steps always waits for coterie migrate",
        why="the first start needs no other command; switch it off where the role may not create tables",
    )
    audit: bool = setting(
        parsers.flag(),
        False,
        "whether every grant of a seat, and every write that the fence refused, is recorded, for coterie check",
        why="it costs a row for each; switch it on to prove something",
    )
    log_format: LogFormat = setting(
        parsers.choice("text", "json"),
        "text",
        "how log lines are written: key=value text, or one JSON object each",
        why="people read it first",
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_origins", take_values(self))
        _refuse_together(self)

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, Any] | None = None,
        environ: Mapping[str, str] | None = None,
        *,
        where: str = "Cluster(…)",
    ) -> Self:
        """The settings of this process: arguments, else `COTERIE_*` variables, else defaults.

        Args:
            overrides: The arguments, by name.
            environ: The variables; default: those of the process.
            where: Where the arguments were written, for the error.

        Raises:
            ConfigurationError: One is unknown, cannot be parsed, is out of bounds, or does not fit another.
        """
        given: dict[str, Any] = gather(cls, overrides or {}, os.environ if environ is None else environ, where=where)
        settings = cls(**given)
        for warning in settings.warnings():
            log.warning("%s", warning)
        return settings

    def but(self, **given: Any) -> Self:
        """A copy with other values for some; the others keep their origins."""
        origins: dict[str, str] = self.__dict__["_origins"]
        return type(self)(**{name: GivenValue(getattr(self, name), origin) for name, origin in origins.items()} | given)

    def origin(self, name: str) -> str:
        """Where a value came from: "argument", the name of the variable, or "default"."""
        origins: dict[str, str] = self.__dict__["_origins"]
        return origins[name]

    def warnings(self) -> list[str]:
        """Settings that work, but break the promise that an owner is replaced within 10 s [M16]."""
        lease = self.lease_ttl + 2 * self.lease_renew + _TAKEOVER
        stall = self.stall_limit + 2 * self.lease_renew
        said = [
            (lease, "lease_ttl + 2 lease_renew + 1s", "a frozen or unreachable runner"),
            (stall, "stall_limit + 2 lease_renew", "a runner whose loop is blocked"),
        ]
        return [
            f"{formula} is {format_duration(length)}: {who} is replaced later than the promised 10s"
            for length, formula, who in said
            if length > _REPLACED_WITHIN
        ]

    def __repr__(self) -> str:
        shown = [row for row in help_rows(self) if row.origin != "default" or row.name == "url"]
        return f"Settings({', '.join(f'{row.name}={row.value}' for row in shown)})"


class SettingsOverrides(TypedDict, total=False):
    """The settings as arguments of `Cluster`, for type checkers and editors: all but url and name."""

    runner_name: str | None
    groups: Sequence[str]
    weight: float
    lease_ttl: Duration
    lease_renew: Duration
    lease_margin: Duration
    stall_limit: Duration
    drain: Duration
    heartbeat: Duration
    staleness: float
    call_timeout: Duration
    shards: int
    listen: str
    advertise: str | None
    secret: str | Secret | Sequence[str | Secret] | Callable[[], str]
    tls_cert: str | Path | None
    tls_key: str | Path | None
    tls_ca: str | Path | None
    http_listen: str | None
    pool_size: int
    retention: Duration
    key_retention: Duration
    resident_entities: int
    threads: int
    jobs: int
    processes: int | None
    max_idle: Duration
    retry: Retry
    loss_limit: int
    frame_limit: int | str
    transaction_limit: Duration
    sqlite_kill_frozen: bool
    http_token: str | Secret | Callable[[], str] | None
    web: WebAccess | None
    http_calls: Sequence[str] | None
    http_calls_token: str | Secret | Callable[[], str] | None
    redact: bool
    payload_keys: Mapping[str, str | bytes | Secret] | str | Callable[[], str]
    payload_current: str | None
    payload_plain: bool
    payload_compress: bool
    migrate: bool
    audit: bool
    log_format: LogFormat


def help_rows(settings: Settings | None = None) -> list[SettingRow]:
    """Every setting with its value and origin, for `coterie config`; the defaults if none are given."""
    values = settings or Settings()
    return rows(Settings, values, {name: values.origin(name) for name in declarations(Settings)})


def settings_page() -> str:
    """docs/settings.md."""
    return _PAGE_HEAD + markdown_table(help_rows())


def env_example() -> str:
    """.env.example."""
    return _ENV_HEAD + env_lines(help_rows())


def write_pages(root: Path) -> None:
    """Write the files that are generated from the declarations."""
    (root / "docs").mkdir(exist_ok=True)
    (root / "docs" / "settings.md").write_text(settings_page(), "utf-8")
    (root / ".env.example").write_text(env_example(), "utf-8")


def _refuse_together(settings: Settings) -> None:
    """Refuse values that are valid one by one but cannot work together."""
    trusted = settings.lease_ttl - settings.lease_margin
    if trusted <= timedelta():
        _refuse(settings, "lease_margin", "not shorter than", "lease_ttl", "a lease would never be trusted")
    if 2 * settings.lease_renew >= trusted:
        _refuse(
            settings,
            "lease_renew",
            "too long for",
            "lease_ttl",
            "two renewals must fit into lease_ttl - lease_margin, so that one may fail",
        )
    if settings.stall_limit <= settings.lease_renew:
        _refuse(settings, "stall_limit", "not longer than", "lease_renew", "the loop is looked at with each renewal")
    for kept in ("retention", "key_retention"):  # m17
        if getattr(settings, kept) < settings.call_timeout:
            _refuse(settings, kept, "shorter than", "call_timeout", "results would be gone while callers wait")
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "tls_key" if settings.tls_key is None else "tls_cert"
        raise ConfigurationError(
            problem=f"{missing} is missing: tls_cert and tls_key go together", hint=f"set {missing}, or neither"
        )
    if settings.tls_ca is not None and settings.tls_cert is None:
        raise ConfigurationError(
            problem="tls_ca is set without tls_cert: each end proves who it is", hint="set tls_cert and tls_key too"
        )
    if settings.http_calls is not None:
        _require_calls_token(settings)
    _refuse_half_encrypted(settings)


def _require_calls_token(settings: Settings) -> None:
    """Refuse calls over HTTP without a token of their own."""
    if settings.http_calls_token is None:
        raise ConfigurationError(
            problem="http_calls is set without http_calls_token: nothing is called over HTTP without a token",
            hint="set http_calls_token, of 16 characters or more",
        )
    if settings.http_calls_token == settings.http_token:
        raise ConfigurationError(
            problem="http_calls_token is the same as http_token: who may look at the page could make any call",
            hint="draw another one",
        )


def _refuse_half_encrypted(settings: Settings) -> None:
    ids, current = [key_id for key_id, _ in settings.payload_keys], settings.payload_current
    if current is not None and current not in ids:
        raise ConfigurationError(
            problem=f"payload_current is {current!r}, and payload_keys has {', '.join(ids) or 'no keys'}",
            hint="give that key too, or the id of one that is there",
        )
    if ids and current is None and not settings.payload_plain:
        raise ConfigurationError(
            problem="payload_keys are set without payload_current: nothing would be encrypted",
            hint=f"set payload_current to {ids[-1]!r}; or payload_plain, if this is the step before that",
        )
    if settings.payload_compress and not ids:
        raise ConfigurationError(
            problem="payload_compress is on without payload_keys: only what is encrypted is compressed",
            hint="set payload_keys and payload_current, or switch payload_compress off",
        )


def _refuse(settings: Settings, one: str, relation: str, other: str, reason: str) -> None:
    shown = {row.name: row.value for row in help_rows(settings)}
    raise ConfigurationError(
        problem=f"{one} is {shown[one]}, {relation} {other}, {shown[other]}",
        hint=f"change one of them: {reason}",
    )


if __name__ == "__main__":
    write_pages(Path.cwd())
