"""How requests end without a reply: which error, with what the request was for in its text. Pure."""

from __future__ import annotations

from coterie.errors import RunnerUnavailable, SendTimeout


def unavailable(peer: str, problem: str, *, sent: bool, target: object = None) -> RunnerUnavailable:
    """The peer cannot be reached, and whether the request can have arrived."""
    hint = "" if sent else "it was not sent, so sending it again is safe"
    return RunnerUnavailable(runner=peer, target=named(target), problem=problem, sent=sent, hint=hint)


def late(peer: str, within_s: float, target: object = None, *, hint: str = "") -> SendTimeout:
    """The peer has not answered in time; there may have been none left when it was asked."""
    shown = f"runner {peer}" if target is None else f"{target} on runner {peer}"
    return SendTimeout(target=shown, waited_s=max(round(within_s, 3), 0.0), hint=hint)


def named(target: object) -> str:
    """What a request was for, in an error."""
    return "a request" if target is None else str(target)
