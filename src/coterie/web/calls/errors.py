"""The errors of calls over HTTP: one JSON form, and the status that fits. Pure.

    {"error": "mailbox of Account/alice is full (1000 waiting)", "code": "mailbox_full",
     "hint": "slow the senders, or raise mailbox= on the entity", "retryable": true}

A declared error of a handler has the code `declared`, any other one `failed`; `type` is then the name of its class.
Tracebacks stay on the runner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.errors import (
    CoterieError,
    Discarded,
    InvalidArgument,
    KeyConflict,
    MailboxFull,
    MalformedMessage,
    MessageCancelled,
    MessageDead,
    MessageExpired,
    RemoteError,
    SendTimeout,
    UnknownEntity,
    WorkflowNotFound,
)
from coterie.kernel.ids import EntityAddress
from coterie.web.responses import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Mapping

_STATUSES: Mapping[type[CoterieError], int] = {
    InvalidArgument: 422,
    UnknownEntity: 404,
    MessageExpired: 404,
    WorkflowNotFound: 404,
    KeyConflict: 409,
    MessageCancelled: 409,
    Discarded: 422,
    MailboxFull: 429,
    SendTimeout: 504,
    MessageDead: 500,
}
_AGAIN = (429, 503)


class CallRefusal(HttpRefusal):
    """A call that is refused or has failed.

    Args:
        status: The HTTP status.
        code: A word for programs, which does not change.
        problem: What is wrong.
        hint: What to do.
        retryable: Whether the same request may succeed later.
        headers: Further headers of the response.
        more: Further fields of the body.
    """

    def __init__(
        self,
        status: int,
        code: str,
        problem: str,
        hint: str = "",
        *,
        retryable: bool = False,
        headers: Mapping[str, str] | None = None,
        **more: Any,
    ) -> None:
        again = {"retry-after": "1"} if status in _AGAIN else {}
        fields = {"code": code, "retryable": retryable, **more}
        super().__init__(status, problem, hint, headers={**again, **(headers or {})}, **fields)


def refusal_of(error: CoterieError, *, about: object = None) -> CallRefusal:
    """The refusal for an error.

    Args:
        error: The error.
        about: The entity, or the name of the payload, whose arguments were given: what does not fit them is the
            caller's fault. None: nothing was given.
    """
    if isinstance(error, RemoteError):
        return _of_handler(error)
    if isinstance(error, MalformedMessage):
        return CallRefusal(422 if _is_given(error.what, about) else 500, error.code, error.message, error.hint)
    status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 503)
    if isinstance(error, SendTimeout) and error.message_id:
        hint = f"it is stored, and runs: /api/result/{error.message_id} has its result then"
        return CallRefusal(504, error.code, error.message, hint, retryable=True, message=error.message_id)
    retryable = error.retryable or status == 503
    return CallRefusal(status, error.code, error.message, error.hint, retryable=retryable)


def _of_handler(error: RemoteError) -> CallRefusal:
    if error.declared:
        return CallRefusal(409, "declared", error.message, type=error.type_name)
    hint = "the log of the runner has the traceback"
    return CallRefusal(500, "failed", error.message, hint, type=error.type_name)


def _is_given(what: str, about: object) -> bool:
    """Whether an error names the arguments, not a result or a state: `Account.deposit`, `Account/alice.deposit`."""
    if isinstance(about, EntityAddress):
        return what.startswith((f"{about.type}.", f"{about.type}/"))
    return about is not None and what.startswith(str(about))
