"""Settings (F10): declared once, read from arguments and variables, checked alone and together."""

from __future__ import annotations

import logging
import pickle
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

import coterie.settings as module
from coterie.errors import ConfigurationError
from coterie.kernel.durations import Duration
from coterie.kernel.ids import check_group
from coterie.kernel.retry import Retry
from coterie.settings import (
    Secret,
    Settings,
    SettingsOverrides,
    env_example,
    help_rows,
    redacted_url,
    settings_page,
)

ROOT = Path(__file__).parents[2]
NAMES = (  # noqa: SIM905 as the public face writes them
    "url name runner_name groups weight lease_ttl lease_renew lease_margin stall_limit drain heartbeat "
    "staleness call_timeout shards listen advertise secret tls_cert tls_key tls_ca http_listen pool_size retention "
    "key_retention resident_entities threads jobs processes max_idle retry loss_limit frame_limit transaction_limit "
    "sqlite_kill_frozen http_token web http_calls http_calls_token redact payload_keys payload_current payload_plain "
    "payload_compress migrate audit log_format"
).split()
LONG = "correct-horse-battery"


def load(environ: Any = None, /, **overrides: Any) -> Settings:
    return Settings.load(overrides, environ or {})


def refusal(environ: Any = None, /, **overrides: Any) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(environ, **overrides)
    return caught.value


def test_the_fields_are_those_of_the_public_face() -> None:
    assert [field.name for field in fields(Settings)] == NAMES


def test_the_defaults_are_those_that_were_promised() -> None:
    settings = load()
    seconds = {name: timedelta(seconds=value) for name, value in DEFAULT_SECONDS.items()}
    assert {name: getattr(settings, name) for name in seconds} == seconds
    assert (settings.url, settings.name, settings.groups) == ("sqlite:///coterie.db", "default", ("default",))
    assert (settings.listen, settings.http_listen) == ("127.0.0.1:0", "127.0.0.1:7650")
    assert (settings.shards, settings.frame_limit, settings.retry) == (100, 8 * 2**20, Retry())
    assert (settings.sqlite_kill_frozen, settings.migrate, settings.audit) == (True, True, False)
    assert (settings.secret, settings.http_token) == ((), None)


DEFAULT_SECONDS = {
    "lease_ttl": 6,
    "lease_renew": 1,
    "lease_margin": 1.5,
    "stall_limit": 8,
    "drain": 20,
    "heartbeat": 30,
    "transaction_limit": 2,
}


def test_an_argument_beats_a_variable_and_a_variable_the_default() -> None:
    environ = {"COTERIE_HEARTBEAT": "10s", "COTERIE_DRAIN": "5s"}
    settings = load(environ, heartbeat="3s")
    assert (settings.heartbeat, settings.drain) == (timedelta(seconds=3), timedelta(seconds=5))
    assert settings.origin("heartbeat") == "argument"
    assert settings.origin("drain") == "COTERIE_DRAIN"
    assert settings.origin("shards") == "default"


def test_an_argument_equal_to_the_default_is_still_an_argument() -> None:
    assert load(heartbeat="30s").origin("heartbeat") == "argument"
    assert Settings(name="default").origin("name") == "argument"


def test_the_variables_of_the_process_are_used_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COTERIE_UPDATE_GOLDEN", raising=False)
    monkeypatch.setenv("COTERIE_SHARDS", "7")
    assert Settings.load({}).shards == 7
    assert Settings().shards == 100, "a bare Settings() reads no variables"


def test_an_empty_variable_counts_as_not_set() -> None:
    settings = load({"COTERIE_SECRET": "", "COTERIE_URL": " "})
    assert settings.secret == ()
    assert settings.origin("url") == "default"


def test_none_for_url_and_name_means_not_given() -> None:
    settings = load({"COTERIE_NAME": "other"}, url=None, name=None)
    assert (settings.url, settings.name) == ("sqlite:///coterie.db", "other")


def test_none_is_a_value_where_a_setting_can_be_off() -> None:
    settings = load({"COTERIE_HTTP_LISTEN": "127.0.0.1:1"}, http_listen=None)
    assert (settings.http_listen, settings.origin("http_listen")) == (None, "argument")
    assert load({"COTERIE_HTTP_LISTEN": "off"}).http_listen is None


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("groups", "a, b", ("a", "b")),
        ("weight", "2.5", 2.5),
        ("shards", "12", 12),
        ("frame_limit", "16MiB", 16 * 2**20),
        ("frame_limit", "1048576", 2**20),
        ("lease_margin", "1s", timedelta(seconds=1)),
        ("migrate", "off", False),
        ("audit", "TRUE", True),
        ("staleness", "3", 3.0),
        ("retry", "attempts=7,base=1s", Retry(attempts=7, base="1s")),
        ("retry", "never", Retry.never),
        ("listen", "[::1]:80", "[::1]:80"),
        ("secret", f"{LONG},{LONG}2", (Secret(LONG), Secret(f"{LONG}2"))),
        ("http_token", LONG, Secret(LONG)),
        ("runner_name", "web-1", "web-1"),
    ],
)
def test_text_means_the_same_in_a_variable_and_in_an_argument(name: str, text: str, value: object) -> None:
    assert getattr(load({f"COTERIE_{name.upper()}": text}), name) == value
    assert getattr(load(**{name: text}), name) == value


@pytest.mark.parametrize("value", [timedelta(seconds=5), 5, 5.0, "5s"])
def test_every_form_of_a_duration_is_kept_as_a_timedelta(value: Duration) -> None:
    assert load(heartbeat=value).heartbeat == timedelta(seconds=5)


def test_values_are_shown_in_a_form_that_reads_back() -> None:
    for row in help_rows():
        if row.name not in ("secret", "http_token"):
            assert getattr(load({row.variable: row.value}), row.name) == getattr(load(), row.name), row.name


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("shards", "0"),
        ("shards", True),
        ("shards", 1.5),
        ("shards", "1e3"),
        ("pool_size", 0),
        ("pool_size", -1),
        ("pool_size", "9" * 5000),
        ("weight", 0),
        ("weight", float("nan")),
        ("weight", "inf"),
        ("lease_ttl", "1ms"),
        ("frame_limit", "8MB"),
        ("frame_limit", 10),
        ("groups", "a,,b"),
        ("groups", "a,a"),
        ("groups", []),
        ("groups", "a:b"),
        ("name", ""),
        ("name", "a b"),
        ("name", "x" * 65),
        ("name", 5),
        ("listen", "7650"),
        ("listen", "host:70000"),
        ("listen", ":80"),
        ("advertise", "host:0"),
        ("staleness", "0.5"),
        ("migrate", "maybe"),
        ("migrate", 1),
        ("retry", "often"),
        ("retry", "attempts=0"),
        ("retry", "tries=3"),
        ("retry", "attempts=x"),
        ("log_format", "xml"),
        ("tls_cert", ""),
        ("url", "coterie.db"),
        ("secret", ["a" * 16] * 3),
        ("heartbeat", "30"),
        ("heartbeat", -1),
        ("max_idle", "x"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused_by_name(name: str, bad: object) -> None:
    error = refusal(**{name: bad})
    assert error.problem.startswith(f"{name} is ")
    assert error.hint
    assert len(error.problem) < 400


def test_a_bad_variable_is_named_as_the_variable() -> None:
    error = refusal({"COTERIE_HEARTBEAT": "30"})
    assert error.message == 'COTERIE_HEARTBEAT is "30": a duration needs a unit'
    assert error.hint == 'write "30s" (also: 250ms, 10m, 1h30m)'


def test_an_unknown_argument_is_refused_with_the_nearest_name() -> None:
    error = refusal(heartbeet=3)
    assert error.message == 'unknown setting "heartbeet" in Cluster(…)'
    assert error.hint == 'did you mean "heartbeat"? coterie config lists all 46'


def test_an_unknown_variable_is_refused_with_the_nearest_name() -> None:
    error = refusal({"COTERIE_HEARTBEET": "3s"})
    assert error.message == 'unknown setting "COTERIE_HEARTBEET" in the environment'
    assert error.hint == 'did you mean "COTERIE_HEARTBEAT"? coterie config lists all 46'


def test_nothing_is_suggested_for_a_name_like_no_other() -> None:
    assert refusal(xyzzy=3).hint == "coterie config lists all 46"


def test_variables_of_our_tests_are_no_settings() -> None:
    assert load({"COTERIE_TEST_POSTGRES": "postgresql://x", "OTHER": "y"}) == load()


@pytest.mark.parametrize(
    ("overrides", "first"),
    [
        ({"lease_ttl": "1s"}, "lease_margin is 1.5s, not shorter than lease_ttl, 1s"),
        ({"lease_renew": "2250ms"}, "lease_renew is 2.25s, too long for lease_ttl, 6s"),
        ({"stall_limit": "1s"}, "stall_limit is 1s, not longer than lease_renew, 1s"),
        ({"retention": "10s"}, "retention is 10s, shorter than call_timeout, 30s"),
        ({"key_retention": "10s"}, "key_retention is 10s, shorter than call_timeout, 30s"),
        ({"tls_cert": "a.pem"}, "tls_key is missing: tls_cert and tls_key go together"),
        ({"tls_key": "a.pem"}, "tls_cert is missing: tls_cert and tls_key go together"),
        ({"tls_ca": "a.pem"}, "tls_ca is set without tls_cert: each end proves who it is"),
    ],
)
def test_values_that_cannot_work_together_are_refused_m16_m17(overrides: dict[str, Any], first: str) -> None:
    assert refusal(**overrides).message == first
    with pytest.raises(ConfigurationError):
        Settings(**overrides)


def test_values_that_just_work_together_are_accepted_m16_m17() -> None:
    load(lease_ttl="6s", lease_margin="1500ms", lease_renew="2249ms")
    load(retention="30s", key_retention="30s", call_timeout="30s")
    load(tls_cert="a.pem", tls_key=Path("b.pem"), tls_ca="ca.pem")


def test_times_that_break_the_ten_seconds_are_warned_about_and_accepted_m16(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, logger="coterie"):
        settings = load(lease_ttl="8s", stall_limit="9s")
    assert [record.getMessage() for record in caplog.records] == settings.warnings()
    lease, stall = settings.warnings()
    assert "lease_ttl + 2 lease_renew + 1s is 11s" in lease
    assert "stall_limit + 2 lease_renew is 11s" in stall


def test_the_defaults_and_the_very_limit_are_not_warned_about_m16() -> None:
    assert load().warnings() == []
    assert load(lease_ttl="7s").warnings() == []
    assert len(load(lease_ttl="7001ms").warnings()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hunter2@db/app",
        "postgresql://app:hunter2%23x@db:5432,other:5432/app",
        "postgresql://:hunter2@db/app",
        "postgresql://db/app?user=app&password=hunter2&x=1",
        "postgresql://db/app?sslpassword=hunter2",
    ],
)
def test_the_password_of_a_url_is_never_shown(url: str) -> None:
    for text in (
        redacted_url(url),
        repr(load(url=url)),
        str(load(url=url)),
        *(row.value for row in help_rows(load(url=url))),
    ):
        assert "hun" not in text
        assert "ter2" not in text
    assert redacted_url("postgresql://app:hunter2@at@db/app") == "postgresql://app:***@db/app", "also of a refused one"
    assert load(url=url).url == url


@pytest.mark.parametrize("url", ["sqlite:///coterie.db", "sqlite://", "postgresql://app@db:5432/app?x=1"])
def test_a_url_without_password_is_shown_as_it_is(url: str) -> None:
    assert redacted_url(url) == url


@given(st.text(), st.text(min_size=1).filter(lambda text: "@" not in text and len(text) > 3))
def test_a_url_is_redacted_whatever_the_password_is(user: str, password: str) -> None:
    shown = redacted_url(f"postgresql://{re.sub('[:@/?#]', '', user)}:{password}@db/app")
    assert shown.endswith(":***@db/app")


def test_a_refused_url_that_may_have_a_password_is_not_shown() -> None:
    assert "hunter2" not in str(refusal({"COTERIE_URL": "postgres:app:hunter2"}))
    assert refusal(url="coterie.db").message.startswith('url is "coterie.db": expected a URL')


def test_secrets_hide_themselves() -> None:
    settings = load(secret=LONG, http_token=Secret(f"{LONG}2"))
    shown = [repr(settings), str(settings.secret), repr(settings.http_token), f"{settings.http_token}"]
    shown += [row.value for row in help_rows(settings)]
    assert LONG not in " ".join(shown)
    assert [one.reveal() for one in settings.secret] == [LONG]
    assert settings.http_token is not None
    assert settings.http_token.reveal() == f"{LONG}2"


def test_a_refused_secret_is_not_shown() -> None:
    error = refusal({"COTERIE_SECRET": "tooshort"})
    assert "tooshort" not in str(error)
    assert error.message.startswith("COTERIE_SECRET is (hidden): expected up to 2 texts")


def test_a_secret_can_come_from_a_file_or_a_function(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text(f"{LONG}\n")
    assert load(secret=f"file:{tmp_path}/secret").secret == (Secret(LONG),)
    assert load(http_token=lambda: LONG).http_token == Secret(LONG)
    assert "cannot be read (No such file or directory)" in refusal(secret=f"file:{tmp_path}/none").message


def test_two_secrets_are_taken_during_rotation() -> None:
    assert load(secret=(LONG, Secret("0123456789abcdef"))).secret == (Secret(LONG), Secret("0123456789abcdef"))


def test_settings_are_frozen_comparable_and_survive_pickling() -> None:
    settings = load(heartbeat="5s")
    with pytest.raises(FrozenInstanceError):
        settings.name = "x"  # type: ignore[misc] # that is the point
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings != load()
    assert hash(again) == hash(settings)
    assert again.origin("heartbeat") == "argument"


def test_repr_shows_what_is_not_the_default() -> None:
    assert repr(load(heartbeat="5s", shards=7)) == "Settings(url=sqlite:///coterie.db, heartbeat=5s, shards=7)"


def test_the_overrides_are_every_field_but_url_and_name() -> None:
    names = {"Callable": Callable, "Mapping": Mapping, "Sequence": Sequence}
    overrides = get_type_hints(SettingsOverrides, localns=names)
    values = get_type_hints(Settings, localns=names)
    assert list(overrides) == [name for name in NAMES if name not in ("url", "name")]
    for name, hint in overrides.items():
        assert (hint == Duration) == (values[name] is timedelta), name


def test_the_settings_that_must_agree_are_marked() -> None:
    assert [row.name for row in help_rows() if row.scope == "cluster"] == ["lease_ttl", "shards"]


def test_every_setting_says_what_it_is_and_why() -> None:
    for row in help_rows(load(heartbeat="5s")):
        assert row.about, row.name
        assert row.why, row.name
        assert row.accepts, row.name
    row = next(row for row in help_rows(load(heartbeat="5s")) if row.name == "heartbeat")
    assert (row.value, row.default, row.origin, row.variable) == (
        "5s",
        "30s",
        "argument",
        "COTERIE_HEARTBEAT",
    )


@given(st.text(max_size=70))
def test_the_names_of_groups_are_those_that_shards_take(name: str) -> None:
    try:
        check_group(name.strip())
        taken = True
    except ValueError:
        taken = False
    try:
        assert load(groups=(name.strip(),)).groups == (name.strip(),)
        assert taken
    except ConfigurationError:
        assert not taken


@pytest.mark.parametrize(("file", "made"), [("docs/settings.md", settings_page), (".env.example", env_example)])
def test_the_committed_pages_are_those_that_the_declarations_make(file: str, made: Callable[[], str]) -> None:
    assert (ROOT / file).read_text("utf-8") == made(), f"{file} is out of date: run make settings-docs"


def test_the_pages_are_written_where_they_belong(tmp_path: Path) -> None:
    module.write_pages(tmp_path)
    assert (tmp_path / "docs" / "settings.md").read_text("utf-8") == settings_page()
    assert (tmp_path / ".env.example").read_text("utf-8") == env_example()


def test_the_example_of_variables_is_accepted_when_uncommented() -> None:
    lines = re.findall(r"^#(COTERIE_\w+)=(.*)$", env_example(), re.MULTILINE)
    assert load(dict(lines)) == load()
    assert len(lines) == len(NAMES)


def test_importing_settings_is_light() -> None:
    heavy = ["asyncpg", "apsw", "sqlite3", "click", "rich", "starlette", "uvicorn", "pydantic"]
    code = f"import sys, coterie.settings; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_what_is_taken_over_keeps_its_origin() -> None:
    """`Cluster(settings=…)`: a default port that is taken may move, one that was chosen may not."""
    first = Settings.load({"heartbeat": "5s"}, environ={"COTERIE_DRAIN": "7s"})
    changed = first.but(name="other")
    assert changed == Settings.load({"heartbeat": "5s", "name": "other"}, environ={"COTERIE_DRAIN": "7s"})
    origins = [changed.origin(name) for name in ("heartbeat", "drain", "http_listen", "name")]
    assert origins == ["argument", "COTERIE_DRAIN", "default", "argument"]


@pytest.mark.parametrize("weak", ["x" * 16, "ab" * 20, "1234512345123451"])
def test_a_secret_of_few_characters_is_refused(weak: str) -> None:
    """It is guessed, however long it is; the refusal does not show it."""
    for name in ("secret", "http_token"):
        with pytest.raises(ConfigurationError, match="at least 16 characters, 6 of them different") as caught:
            load(**{name: weak})
        assert weak not in str(caught.value)
    assert load(secret="0123456789abcdef").secret


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hun#ter2@db.internal/app",
        "postgresql://app:hun/ter2@db.internal/app",
        "postgresql://app:hun?ter2@db.internal/app",
        "postgresql://app:hun[ter2@db.internal/app",
        "postgresql://app:hun@ter2@db.internal/app",
        "postgres://app:4711#hunter2@db.internal:5432/app",
    ],
)
def test_a_password_that_ends_the_address_is_refused_unseen(url: str) -> None:
    """Whoever reads it as an address takes the beginning of the password for a port, and shows it in a traceback."""
    with pytest.raises(ConfigurationError, match="must be encoded: %23 for #") as caught:
        load(url=url)
    assert "hun" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:hun%23t%2Fer2@db.internal:5432/app?sslmode=require",
        "postgresql://app@[::1]:5432/app",
        "postgresql:///app?host=/run/postgresql&user=app@corp",
        "postgresql://app@a:1,b:2/app?target_session_attrs=read-write",
        "sqlite:////data/a#b@c.db",
    ],
)
def test_addresses_that_are_whole_are_taken(url: str) -> None:
    assert load(url=url).url == url


SERVICE_LINKS = {
    "COTERIE_SERVICE_HOST": "10.43.0.7",
    "COTERIE_SERVICE_PORT": "7650",
    "COTERIE_SERVICE_PORT_HTTP": "7650",
    "COTERIE_PORT": "tcp://10.43.0.7:7650",
    "COTERIE_PORT_7650_TCP": "tcp://10.43.0.7:7650",
    "COTERIE_PORT_7650_TCP_PROTO": "tcp",
    "COTERIE_PORT_7650_TCP_PORT": "7650",
    "COTERIE_PORT_7650_TCP_ADDR": "10.43.0.7",
    "COTERIE_WEB_SERVICE_HOST": "10.43.0.8",
    "COTERIE_WEB_PORT": "udp://10.43.0.8:53",
    "COTERIE_WEB_PORT_53_UDP_ADDR": "10.43.0.8",
}


def test_what_kubernetes_says_of_a_service_is_no_setting() -> None:
    """It is in every pod beside a Service named coterie, or coterie-web, unless enableServiceLinks is off."""
    assert load({**SERVICE_LINKS, "COTERIE_SHARDS": "7"}).shards == 7
    for wrong in ({"COTERIE_PORT": "7650"}, {"COTERIE_PORTS": "tcp://10.43.0.7:7650"}, {"COTERIE_SERVICE": "x"}):
        with pytest.raises(ConfigurationError, match="unknown setting"):
            load(wrong)
