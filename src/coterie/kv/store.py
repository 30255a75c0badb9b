"""The key-value store that users see: typed values, prefix views, expiry, atomic changes (K1)."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from coterie.errors import MalformedMessage
from coterie.kernel.context import work_here
from coterie.kernel.durations import seconds_or_none
from coterie.kernel.serialization.codec import codec_for
from coterie.kernel.text import not_unicode, require_text
from coterie.storage.interface import Claim

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from coterie.kernel.durations import Duration
    from coterie.kernel.serialization.codec import Codec
    from coterie.kv.changes import KeyValues

V = TypeVar("V")
T = TypeVar("T")

KEY_MOST_BYTES = 1024
VALUE_MOST_BYTES = 8 * 1024 * 1024
RESERVED = "singleton-state:"


class KeyValueStore(Generic[V]):
    """Keys and values, shared by all processes of the cluster and durable when a call returns.

    A value is anything the codec can encode; None is no value, it means that a key is absent. Keys are strings of up
    to 1,024 bytes in UTF-8; they are listed in byte order.

    Example:
        ```python
        await cluster.kv.set("greeting", "hello", ttl="1h")
        settings = cluster.kv.prefix("settings:").typed(Theme)
        await cluster.kv.modify("visits", lambda n: (n or 0) + 1)
        ```

    Promise:
        `modify` is atomic against every other writer of the key, in this process and in all others. In a handler (or
        other work of a seat) a write after another runner has taken the seat raises `LeadershipLost`.
    Not promised:
        A `PersistenceError` with the outcome "unknown" means that the write may or may not have happened.
        `items`, `size` and `clear` are not snapshots: concurrent changes may or may not be included.
    """

    def __init__(
        self,
        source: Callable[[], KeyValues],
        codec: Codec[V],
        *,
        prefix: str = "",
        claim: Callable[[], Claim | None] | None = None,
    ) -> None:
        self._source = source
        self._codec = codec
        self._prefix = prefix
        self._claim = claim or claim_here

    async def get(self, key: str) -> V | None:
        """Return the value, or None if the key is absent or expired."""
        full = self._key(key)
        return self._decode(full, await self._source().get(full))

    async def set(self, key: str, value: V, *, ttl: Duration | None = None) -> None:
        """Set the value; with `ttl` it expires after that time, otherwise never."""
        full = self._writable(key)
        await self._source().set(
            full, self._encode(full, value), ttl_s=seconds_or_none(ttl, what="ttl"), claim=self._claim()
        )

    async def remove(self, key: str) -> bool:
        """Remove the key. Returns whether it existed."""
        return await self._source().remove(self._writable(key), claim=self._claim())

    async def has(self, key: str) -> bool:
        """Whether the key exists."""
        return await self._source().get(self._key(key)) is not None

    async def is_empty(self) -> bool:
        """Whether the view has no keys."""
        async for _ in self._source().scan(self._prefix, most=1):
            return False
        return True

    async def size(self) -> int:
        """Return the number of keys."""
        return await self._source().count(self._prefix)

    async def clear(self) -> int:
        """Remove all keys of this view. Returns the number removed."""
        return await self._source().clear(self._prefix, claim=self._claim())

    async def modify(self, key: str, fn: Callable[[V | None], V | None], *, ttl: Duration | None = None) -> V | None:
        """Replace the value by `fn(value)`, atomically. Returns the new value.

        Args:
            fn: Receives the value, or None if there is none; its result is stored, None removes the key. A plain
                function without side effects: it runs again whenever another writer was faster.
            ttl: As for `set`: the new value expires after that time; without it, it never does.
        """
        full = self._writable(key)

        def apply(old: bytes | None) -> bytes | None:
            new = fn(self._decode(full, old))
            if inspect.iscoroutine(new):
                new.close()
                raise TypeError("modify takes a plain function: await what you need before, then modify")
            return None if new is None else self._encode(full, new)

        changed = self._source().modify(full, apply, ttl_s=seconds_or_none(ttl, what="ttl"), claim=self._claim())
        return self._decode(full, await changed)

    async def items(self) -> AsyncIterator[tuple[str, V]]:
        """Yield keys (without this view's prefix) and values, in key order."""
        async for entry in self._source().scan(self._prefix):
            yield entry.key[len(self._prefix) :], self._codec.decode(entry.value, what=_what(entry.key))

    def prefix(self, prefix: str) -> KeyValueStore[V]:
        """Return a view of the keys that start with `prefix`, named without it. Prefixes of nested views add up."""
        if not isinstance(prefix, str):
            raise TypeError(f"a prefix is a text, not {type(prefix).__name__}")
        require_text(prefix, what="prefix")
        return KeyValueStore(self._source, self._codec, prefix=self._prefix + prefix, claim=self._claim)

    def typed(self, type: type[T]) -> KeyValueStore[T]:
        """Return a view with values of one type: other values are refused when written and when read."""
        return KeyValueStore(self._source, codec_for(type), prefix=self._prefix, claim=self._claim)

    def _key(self, key: str) -> str:
        return _checked(self._prefix, key)

    def _writable(self, key: str) -> str:
        full = self._key(key)
        if full.startswith(RESERVED):
            raise ValueError(f"key {full!r} is a singleton's state: change it in the singleton")
        return full

    def _encode(self, full: str, value: V) -> bytes:
        if value is None:
            raise ValueError(f"None is no value for key {full!r}: remove the key instead")
        # A typed view never stores what it could not read back; with Any everything that encodes also decodes.
        encode = self._codec.encode if self._codec.type is Any else self._codec.checked
        data = encode(value, what=_what(full))
        if len(data) > VALUE_MOST_BYTES:
            raise MalformedMessage(
                what=_what(full),
                problem=f"its value has {len(data):,} bytes, more than the {VALUE_MOST_BYTES:,} that are allowed",
            )
        return data

    def _decode(self, full: str, data: bytes | None) -> V | None:
        return None if data is None else self._codec.decode(data, what=_what(full))


def claim_here() -> Claim | None:
    """The claim that the current work must prove when it writes; None outside of work."""
    work = work_here()
    if work is None or work.runner_id is None or work.seat is None or work.epoch is None:
        return None
    return Claim(work.runner_id, work.seat, work.epoch)


def _what(full: str) -> str:
    return f"key {full!r}"


def _checked(prefix: str, key: Any) -> str:
    """Return the key as stored, if both databases can return it exactly."""
    if not isinstance(key, str):
        raise TypeError(f"a key is a text, not {type(key).__name__}")
    if not key:
        raise ValueError("a key has at least one character")
    full = prefix + key
    if "\0" in full:
        raise ValueError(f"key {full!r} has a NUL character, which PostgreSQL cannot store")
    try:
        size = len(full.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise not_unicode(full, what="key") from error
    if size > KEY_MOST_BYTES:
        raise ValueError(f"key {full[:40]!r}… has {size:,} bytes, more than the {KEY_MOST_BYTES:,} that are allowed")
    return full
