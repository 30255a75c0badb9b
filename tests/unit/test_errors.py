"""Errors: their texts verbatim, their tree, and that they survive pickling and the wire."""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import tempfile
from dataclasses import InitVar, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from coterie import errors
from coterie.cron.schedule import Schedule
from coterie.errors import CoterieError, MailboxFull, RemoteError, SendTimeout, quoted
from coterie.kernel.serialization.codec import PLAIN, codec_for
from coterie.kernel.serialization.versions import MigrationFailed, Versioned
from coterie.settings import Settings
from coterie.transport.identity import Member, advertised_address, require_reachable
from tests.support.transport import server_context
from tests.unit.transport.certificate_authority import CLIENT, Authority

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOLDEN = Path(__file__).parent / "golden" / "errors.txt"

TREE = """
CoterieError
  ClusterError
    MailboxFull RunnerFull SendTimeout RunnerUnavailable EntityNotAssigned MalformedMessage
    UnknownEntity KeyConflict ReentrantCall InvalidArgument MessageDead MessageCancelled Discarded MessageExpired
    NotCommitted TransactionTimeout PersistenceError
      StorageReplaced
      UnreadablePayload
    NotStarted NotReady ShuttingDown Forked WrongLoop
  RemoteError
  SingletonError
    StateLoadFailed StatePersistFailed SchemaDecodeFailed HeartbeatFailed LeaderHandoffFailed
  LeadershipLost
  NewerVersion
  ClusterContextRequired
  ScheduleError
  ConfigurationError
  WorkflowError
    StepDiverged
      ReplayDiverged
    DeferredTimeout DeferredRejected DeferredMismatch AlreadyResolved WorkflowFailed WorkflowInterrupted
    WorkflowNotFound WorkflowEnded WorkflowTimeout ReceiveTimeout WorkflowNotFailed AlreadyUndone
"""
ABSTRACT = {"CoterieError", "ClusterError", "WorkflowError"}  # never raised themselves

FACTS: dict[str, Any] = {
    "refused": "receives no messages any more",
    "attempts": 5,
    "chain": "Account/alice → Account/bob",
    "child": 12,
    "cron": "nightly",
    "declared": False,
    "doing": "save the state",
    "entity": "Account/alice",
    "epoch": 17,
    "expression": "0 25 * * *",
    "following": 2,
    "here": "worker",
    "found": "charge",
    "id": "order-7",
    "in_doubt": False,
    "is_over": False,
    "expected": "bool",
    "key": "order-7",
    "known": 2,
    "length": 2,
    "limit_s": 2.0,
    "message_id": "018f2c",
    "name": "approval",
    "outcome": "unknown",
    "owner": "MainThread",
    "parent": 11,
    "position": 2,
    "problem": "connection refused",
    "remote_traceback": "Traceback (most recent call last): …",
    "resident": 10000,
    "runner": "web-2",
    "seat": "singleton:importer",
    "sent": True,
    "shard": "default:42",
    "singleton": "importer",
    "status": "suspended",
    "place": "place 2",
    "stored": "reserve",
    "target": "Account/alice.charge",
    "timezone": None,
    "type_name": "ZeroDivisionError",
    "unit": "workflow Checkout/order-7",
    "version": 1,
    "waited_s": 2.5,
    "reason": ": its time was over",
    "waiting": 1000,
    "what": "the cluster",
    "workflow": "Checkout",
    "value": "a value",
}


def classes() -> dict[str, type[CoterieError]]:
    found = inspect.getmembers(errors, lambda one: isinstance(one, type) and issubclass(one, CoterieError))
    return dict(found)


def sample(kind: type[CoterieError]) -> CoterieError:
    return kind(**{name: FACTS[name] for name in kind._facts})


def samples() -> Iterator[CoterieError]:
    return (sample(kind) for name, kind in classes().items() if name not in ABSTRACT)


@dataclass
class _Order:
    cents: int


@dataclass
class _WithInit:
    seed: InitVar[int]


def load(environ: dict[str, str] | None = None, **overrides: Any) -> Callable[[], object]:
    return lambda: Settings.load(overrides, environ or {})


def decode(value: object) -> Callable[[], object]:
    return lambda: codec_for(_Order).decode(PLAIN.encode(value), what="Account.charge: payload refused")


def told(advertise: str | None) -> Callable[[], object]:
    return lambda: advertised_address(Settings.load({"advertise": advertise}, {}), ("0.0.0.0", 7650))


def tls(*, ca: bool = True, change: dict[str, str] | None = None, **signing: Any) -> Callable[[], object]:
    def refuse() -> None:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            authority = Authority(Path(), "shop")
            Authority(Path(), "foreign").sign()
            Path("junk.pem").write_text("junk")
            files: dict[str, str | None] = {**vars(authority.sign(**signing)), **(change or {})}
            server_context(Settings.load(files if ca else {**files, "tls_ca": None}, {}))

    return refuse


WEB_1, WEB_2 = Member("web-1", "127.0.0.1:41001", "boot/1"), Member("web-2", "10.0.0.5:7650", "boot/2")
MINUTE = timedelta(minutes=1)

REFUSED: dict[str, Callable[[], object]] = {
    "an unknown argument": load(heartbeet="30s"),
    "an unknown variable": load({"COTERIE_HEARTBEET": "30s"}),
    "a setting like no other": load(xyzzy=1),
    "a duration without unit": load({"COTERIE_HEARTBEAT": "30"}),
    "a duration out of bounds": load(lease_ttl="1ms"),
    "a number out of bounds": load({"COTERIE_SHARDS": "0"}),
    "a number that is none": load({"COTERIE_WEIGHT": "heavy"}),
    "a size": load({"COTERIE_FRAME_LIMIT": "8MB"}),
    "a flag": load({"COTERIE_MIGRATE": "maybe"}),
    "a choice": load({"COTERIE_WEB": "write"}),
    "a name": load(name="a b"),
    "several names": load({"COTERIE_GROUPS": "a,a"}),
    "an address": load(listen="7650"),
    "an address, or off": load(http_listen="7650"),
    "a URL": load(url="coterie.db"),
    "a URL with a password": load(url="app:hunter2@db"),
    "a retry": load({"COTERIE_RETRY": "often"}),
    "a retry out of bounds": load({"COTERIE_RETRY": "attempts=0"}),
    "a secret": load({"COTERIE_SECRET": "short"}),
    "a file of a secret": load(secret="file:/does/not/exist"),
    "margin and ttl": load(lease_ttl="1s"),
    "renewal and ttl": load(lease_renew="3s"),
    "stall limit and renewal": load(stall_limit="1s"),
    "retention and timeout": load(retention="10s"),
    "certificate without key": load(tls_cert="runner.pem"),
    "authority without certificate": load(tls_ca="ca.pem"),
    "every address, none to tell": told(None),
    "a name to tell": told("web-1.internal:7650"),
    "every address to tell": told("0.0.0.0:7650"),
    "loopback and another host": lambda: require_reachable(WEB_1, [WEB_2]),
    "certificate without authority": tls(ca=False),
    "a certificate that is missing": tls(change={"tls_cert": "gone.pem"}),
    "a certificate that is none": tls(change={"tls_cert": "junk.pem"}),
    "an authority that is none": tls(change={"tls_ca": "junk.pem"}),
    "a key of another certificate": tls(change={"tls_key": "foreign-1.key"}),
    "a key with a password": tls(password=b"hunter2"),
    "an expired certificate": tls(ends=-MINUTE),
    "a certificate before its time": tls(begins=MINUTE),
    "a certificate of another authority": tls(change={"tls_ca": "foreign-ca.pem"}),
    "a certificate for one purpose": tls(purposes=(CLIENT,)),
    "text for a number": decode({"cents": "500"}),
    "a missing field": decode({}),
    "a list for a class": decode([1]),
    "bytes that are not msgpack": lambda: codec_for(_Order).decode(b"\xc1", what="state of Account/alice"),
    "cut off bytes": lambda: codec_for(_Order).decode(b"\x81", what="state of Account/alice"),
    "a depth bomb": lambda: codec_for(_Order).decode(b"\x91" * 100_000, what="state of Account/alice"),
    "a function as a value": lambda: PLAIN.encode({"done": print}, what="kv"),
    "a large number as a value": lambda: PLAIN.encode([2**64], what="kv"),
    "a type that is not data": lambda: codec_for(list[complex]),
    "a type that msgspec refuses": lambda: codec_for(_WithInit),
    "a newer version": lambda: Versioned(_Order, 2, {1: dict}, what='state of "importer"').decode(b"\x92\x03\x80"),
    "a migration that raises": lambda: Versioned(
        _Order, 2, {1: lambda old: old["gone"]}, what='state of "importer"'
    ).decode(b"\x92\x01\x80"),
    "a version that is no map": lambda: Versioned(_Order, 2, {1: dict}, what="state").decode(b"\x92\x01\x05"),
    "a migration that is missing": lambda: Versioned(_Order, 3, {1: dict}, what='singleton "importer"'),
    "an hour that does not exist": lambda: Schedule("0 25 * * *", cron="nightly"),
    "a time zone that does not exist": lambda: Schedule("0 3 * * *", timezone="Europe/Zuerich", cron="report"),
    "a date that never comes": lambda: Schedule("0 0 31 2 *"),
    "a migration too many": lambda: Versioned(_Order, 1, {1: dict}, what='singleton "importer"'),
}


def shown(title: str, error: CoterieError) -> str:
    again = "retryable" if error.retryable else "final"
    lines = [f"{title}  [{error.code}, {again}]", f"  error: {error.message}"]
    return "\n".join(lines + [f"  hint:  {error.hint}"] * bool(error.hint))


def refused(title: str) -> str:
    with pytest.raises(CoterieError) as caught:
        REFUSED[title]()
    return shown(title, caught.value)


def golden() -> str:
    of_classes = [shown(type(error).__name__, error) for error in samples()]
    return "\n\n".join([*of_classes, *map(refused, REFUSED)]) + "\n"


def test_every_text_is_the_one_in_the_golden_file() -> None:
    if os.environ.get("COTERIE_UPDATE_GOLDEN") == "1":
        GOLDEN.write_text(golden(), "utf-8")
    assert GOLDEN.read_text("utf-8") == golden(), "if meant: COTERIE_UPDATE_GOLDEN=1 pytest tests/unit/test_errors.py"


def test_every_class_is_in_the_golden_file() -> None:
    titles = {line.split("  ")[0] for line in GOLDEN.read_text("utf-8").splitlines() if line[:1].isalpha()}
    assert set(classes()) - ABSTRACT <= titles


def test_no_text_shows_a_secret() -> None:
    assert "hunter2" not in GOLDEN.read_text("utf-8")


def test_texts_have_the_form_of_our_messages() -> None:
    for error in samples():
        for text in (error.message, error.hint):
            assert not text.endswith("."), text
            assert text == text.strip(), text
        assert type(error).text[0].islower() or type(error).text[0] == "{", error


def test_the_tree_is_the_one_of_the_public_face() -> None:
    assert sorted(tree(CoterieError, 0)) == sorted(parsed(TREE))


def tree(kind: type[CoterieError], depth: int) -> Iterator[tuple[int, str]]:
    yield depth, kind.__name__
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child, depth + 1)


def parsed(text: str) -> Iterator[tuple[int, str]]:
    for line in text.strip().splitlines():
        depth = (len(line) - len(line.lstrip())) // 2
        yield from ((depth, name) for name in line.split())


def test_timeouts_are_timeout_errors() -> None:
    assert isinstance(sample(SendTimeout), TimeoutError)
    assert isinstance(sample(errors.DeferredTimeout), TimeoutError)


def test_cluster_and_singleton_errors_have_a_reason() -> None:
    for error in samples():
        if isinstance(error, errors.ClusterError | errors.SingletonError):
            assert error.reason == type(error).__name__


def test_codes_are_unique() -> None:
    codes = [error.code for error in samples()]
    assert len(set(codes)) == len(codes)


def test_the_facts_are_attributes_and_the_text_is_both_sentences() -> None:
    error = MailboxFull(entity="Account/alice", waiting=1000)
    assert (error.entity, error.waiting, error.retryable) == ("Account/alice", 1000, True)
    assert str(error) == (
        "mailbox of Account/alice is full (1000 waiting): slow the senders, or raise mailbox= on the entity"
    )


def test_a_lost_seat_reads_as_what_it_is() -> None:
    """K1: a shard has no leader."""
    shard = errors.LeadershipLost(seat="shard:default:42", epoch=17)
    assert shard.message == "shard default:42 is lost: epoch 17 is no longer ours"
    assert 'leadership of "importer" is lost' in str(errors.LeadershipLost(seat="singleton:importer", epoch=17))


def test_missing_and_unknown_facts_are_a_mistake_of_the_program() -> None:
    with pytest.raises(TypeError, match=r"unknown \['x'\], missing \['entity', 'waiting'\]"):
        MailboxFull(x=1)  # type: ignore[call-arg] # that is the point


@pytest.mark.parametrize("error", list(samples()), ids=lambda error: type(error).__name__)
def test_errors_survive_pickling(error: CoterieError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.facts, again.hint, str(again)) == (
        type(error),
        error.facts,
        error.hint,
        str(error),
    )


@pytest.mark.parametrize("error", list(samples()), ids=lambda error: type(error).__name__)
def test_errors_survive_the_wire(error: CoterieError) -> None:
    code, facts = msgspec.msgpack.decode(msgspec.msgpack.encode(error.to_wire()))
    again = CoterieError.from_wire(code, facts)
    assert (type(again), again.facts, again.hint, str(again)) == (
        type(error),
        error.facts,
        error.hint,
        str(error),
    )


def test_a_hint_of_ones_own_survives_pickling_and_the_wire() -> None:
    error = MailboxFull(entity="a", waiting=1, hint="wait")
    assert pickle.loads(pickle.dumps(error)).hint == "wait"
    assert CoterieError.from_wire(*error.to_wire()).hint == "wait"


def test_an_unknown_code_becomes_a_remote_error_with_the_senders_text() -> None:
    again = CoterieError.from_wire("from_the_future", {"x": 1, "message": "the moon is full"})
    assert isinstance(again, RemoteError)
    assert str(again) == "from_the_future: the moon is full"


def test_a_class_of_another_module_cannot_be_named_over_the_wire() -> None:
    assert isinstance(CoterieError.from_wire(*sample(MigrationFailed).to_wire()), RemoteError)


WIRE = st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers(), max_size=2)
NAMES = st.sampled_from([*FACTS, "hint", "message"]) | st.text()


@example("leadership_lost", {"seat": None, "epoch": 1})
@given(st.sampled_from([*CoterieError._known, "x"]), st.dictionaries(NAMES, WIRE, max_size=8))
def test_whatever_arrives_over_the_wire_becomes_an_error_of_ours(code: str, facts: dict[str, Any]) -> None:
    again = CoterieError.from_wire(code, facts)
    assert isinstance(again, CoterieError)
    assert isinstance(str(again), str)


@given(st.text())
def test_quoted_text_stays_on_one_line_in_double_quotes(text: str) -> None:
    shown_text = quoted(text)
    assert shown_text.isprintable()
    assert (shown_text[0], shown_text[-1]) == ('"', '"')
    assert '"' not in shown_text[1:-1].replace("\\\\", "").replace('\\"', "")


def test_values_are_quoted_as_the_user_would_write_them() -> None:
    error = errors.KeyConflict(target="Account.charge", key='o"1\n', message_id="m")
    assert error.message.startswith('key "o\\"1\\n" of Account.charge was used before')
