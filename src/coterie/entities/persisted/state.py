"""Kept: the state of one resident entity as the database has it, beside the object that handlers change [M7]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import StateChange

if TYPE_CHECKING:
    from coterie.kernel.serialization.versions import Versioned

PREFIX = "entity-state:"
"""Under which states of entities are stored."""


class CommittedState:
    """The bytes of a state as it is committed, and the version of its row.

    Args:
        codec: How states of this type are stored.
        key: The key of the row.
        data: The bytes of the state that was loaded, or of the initial one.
        version: Of the row, 0 if there is none.

    Promise:
        Changed means: encodes differently. What was committed can always be had back, whatever a handler did to the
        object.
    """

    __slots__ = ("_codec", "_data", "_key", "_version")

    def __init__(self, codec: Versioned[Any], key: str, data: bytes, version: int) -> None:
        self._codec = codec
        self._key = key
        self._data = data
        self._version = version

    def change(self, state: Any) -> StateChange | None:
        """What has to be written so that the state is durable; None if it did not change.

        Raises:
            MalformedMessage: It does not fit its type.
        """
        data = self._codec.encode(state)
        return None if data == self._data else StateChange(self._key, data, self._version)

    def removal(self) -> StateChange:
        """What has to be written so that there is no state any more."""
        return StateChange(self._key, None, self._version)

    def committed(self, change: StateChange) -> None:
        """The change is durable."""
        if change.value is not None:
            self._data = change.value
            self._version = change.version + 1

    def restored(self) -> Any:
        """The state as it is committed, as a new object."""
        return self._codec.decode(self._data)


def key_of(entity_type: str, entity_id: str) -> str:
    """The key of an entity's state: `entity-state:Account/alice`."""
    return f"{PREFIX}{entity_type}/{entity_id}"
