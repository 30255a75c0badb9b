"""What is sent to a run and received by it, and what it publishes: rows, and what writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.interleavings.database import CLUSTER
from tests.support.interleaving import atomic

if TYPE_CHECKING:
    from tests.interleavings.steps import Steps
    from tests.support.interleaving import Step

_LONG_AGO = "now() - interval '1 day'"


def inbox(*, waiting: int = 1, begun: bool = True) -> str:
    """The inbox n of u, which has got m1 a day ago."""
    received = "null" if waiting else _LONG_AGO
    return (
        ";insert into coterie.run_inboxes (cluster, unit, name, sent, waiting, begun, made_at)"
        f" values ('{CLUSTER}', 'u', 'n', 1, {waiting}, {begun}, {_LONG_AGO})"
        ";insert into coterie.run_messages (cluster, unit, name, id, seq, sent_at, received_at, digest, value)"
        f" values ('{CLUSTER}', 'u', 'n', 'm1', 1, {_LONG_AGO}, {received}, 'd', 'v')"
    )


def empty_inbox() -> str:
    """The inbox n of u, at which that waits."""
    return (
        ";insert into coterie.run_inboxes (cluster, unit, name, sent, waiting, begun, made_at)"
        f" values ('{CLUSTER}', 'u', 'n', 0, 0, true, {_LONG_AGO})"
    )


def waiting_step(*, due: str = "null") -> str:
    """A step of u that waits for a message."""
    return (
        ";insert into coterie.steps (cluster, unit, branch, position, kind, name, digest, done, at, due_at)"
        f" values ('{CLUSTER}', 'u', '', 5, 'receive', 'n', '', false, {_LONG_AGO}, {due})"
    )


def sending(s: Steps, id: str = "m2") -> tuple[Step, ...]:
    """A message to u."""
    return atomic(s.step("send_to_run", "u", "n", id, b"d", b"v", step="send"))


def receiving(s: Steps, position: int = 5, *, due_s: float | None = None) -> tuple[Step, ...]:
    """A step of u receives, in the name of a."""
    return atomic(receive(s, position, due_s=due_s))


def receive(s: Steps, position: int = 5, *, due_s: float | None = None) -> Step:
    """The same, within a transaction."""
    given = ("a", "s1", 1, "u", "", position, "n", due_s, b"late", "anna", 0)
    return s.step("receive_message", *given, step="receive")


def publishing(s: Steps, position: int = 7) -> tuple[Step, ...]:
    """u publishes, in the name of a."""
    given = ("a", "s1", 1, "u", "", position, "p", b"v", "anna", 1000, 0)
    return atomic(s.step("publish_value", *given, step="publish"))


def received_step() -> str:
    """A step of u, in a branch, that has received m1."""
    return (
        ";insert into coterie.steps (cluster, unit, branch, position, kind, name, digest, done, at, value)"
        f" values ('{CLUSTER}', 'u', '@9.0', 0, 'receive', 'n', '', true, {_LONG_AGO}, 'v')"
        ";update coterie.run_messages set life = 0, branch = '@9.0', position = 0, value = null"
    )


def giving_back(s: Steps) -> tuple[Step, ...]:
    """A race of u is over, and m1 is given back."""
    given = ("a", "s1", 1, "u", "", 9, "first", b"\x01", "anna", ["@9.0"], [0], 0)
    return atomic(s.step("give_back_messages", *given, step="give back"))


def suspending(s: Steps) -> tuple[Step, ...]:
    """u is suspended until something comes to its inbox."""
    return atomic(suspend(s))


def suspend(s: Steps) -> Step:
    """The same, within a transaction."""
    return s.step("suspend_unit", "a", "s1", 1, "u", [], None, ["n"], None, 0, step="suspend")


def purging(s: Steps) -> tuple[Step, ...]:
    """What is old is deleted."""
    return atomic(s.step("purge_run_messages", 60.0, 10, step="purge"))


def parts(s: Steps) -> dict[str, tuple[Step, ...]]:
    """All that is done with an inbox and what is published, by name."""
    return {
        "send": sending(s),
        "send m1": sending(s, "m1"),
        "receive": receiving(s),
        "receive in another branch": receiving(s, 6),
        "publish": publishing(s),
        "give back": giving_back(s),
        "publish in another branch": publishing(s, 8),
        "suspend at the inbox": suspending(s),
        "purge messages": purging(s),
    }
