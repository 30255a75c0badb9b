"""The last committed state of an active entity, used to detect changes and to roll back [M7]."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.messages import StateChange

if TYPE_CHECKING:
    from coterie.kernel.serialization.versions import Versioned

PREFIX = "entity-state:"
"""The prefix of the keys of entity states."""


class CommittedState:
    """The encoded bytes of the committed state, and the version of its row.

    Args:
        codec: Encodes states of this type.
        key: The key of the row.
        data: The bytes of the loaded state, or of the initial one.
        version: The version of the row, 0 if there is none.

    Promise:
        Changed means: encodes differently. The committed state can always be restored, whatever a handler did to the
        object.
    """

    __slots__ = ("_codec", "_data", "_key", "_version")

    def __init__(self, codec: Versioned[Any], key: str, data: bytes, version: int) -> None:
        self._codec = codec
        self._key = key
        self._data = data
        self._version = version

    def change(self, state: Any) -> StateChange | None:
        """The write that makes the state durable. Returns None if the state has not changed.

        Raises:
            MalformedMessage: The state does not fit its type.
        """
        data = self._codec.encode(state)
        return None if data == self._data else StateChange(self._key, data, self._version)

    def removal(self) -> StateChange:
        """The write that deletes the state."""
        return StateChange(self._key, None, self._version)

    def committed(self, change: StateChange) -> None:
        """Record that a change is durable."""
        if change.value is not None:
            self._data = change.value
            self._version = change.version + 1

    def restored(self) -> Any:
        """The committed state, as a new object."""
        return self._codec.decode(self._data)


def key_of(entity_type: str, entity_id: str) -> str:
    """The key of an entity's state: `entity-state:Account/alice`."""
    return f"{PREFIX}{entity_type}/{entity_id}"
