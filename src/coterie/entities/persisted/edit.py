"""A dead message whose call is sent again with other arguments, as a new message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.entities.calls.by_name_client import CallsByName
from coterie.errors import InvalidArgument
from coterie.kernel.ids import EntityAddress, MessageId
from coterie.storage.contracts.incoming_calls import START

if TYPE_CHECKING:
    from typing import Any

    from coterie.client import Client
    from coterie.entities.persisted.api import MessageInfo


def require_editable(message: MessageInfo) -> None:
    """Refuse a message that is not dead, or is no call.

    Raises:
        InvalidArgument: Only dead messages to entities can be sent with other arguments.
    """
    if message.status != "dead":
        raise InvalidArgument(
            what=f"message {message.id}",
            value=message.status,
            problem="only dead messages are sent again with other arguments",
        )
    if message.method == START:
        raise InvalidArgument(
            what=f"message {message.id}",
            value="the start of a workflow",
            problem="it has no arguments that could be edited: start that workflow again",
        )


async def send_edited(here: Client, dead: MessageInfo, arguments: bytes, *, within_s: float) -> MessageId[Any]:
    """Send the call of a dead message with other arguments, a JSON map, and with its tags. The dead one stays.

    A runner that knows the method checks them. Repeated with the same arguments, it is the same message.

    Raises:
        InvalidArgument: The message is not dead, or is no call.
        MalformedMessage: The arguments do not fit.
        KeyConflict: It was sent with other arguments before.
    """
    require_editable(dead)
    sent = await CallsByName(here).send(
        EntityAddress.parse(dead.entity),
        dead.method,
        arguments,
        within_s=within_s,
        key=f"edit of {dead.id}",  # the dead one keeps its own key
        tags=tuple(sorted(dead.tags.items())),
    )
    return MessageId(sent.message_id)
