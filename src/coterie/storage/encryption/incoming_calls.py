"""Incoming work that is encrypted when it is moved; until then it stands as SQL has written it."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from coterie.storage.contracts.incoming_calls import IncomingStore, Move, MovedCall, MovedStart
from coterie.storage.encryption import places
from coterie.storage.encryption.messages import encrypted_message
from coterie.storage.encryption.units import encrypted_start
from coterie.storage.encryption.values import EncryptedStore
from coterie.storage.unreadable_rows import readable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from coterie.storage.interface import Claim

    Rival = tuple[str, Move]
    """The id of a row, and what was told of it."""

M = TypeVar("M", MovedCall, MovedStart)


class EncryptedIncoming(EncryptedStore[IncomingStore]):
    """See `storage.contracts.incoming_calls.IncomingStore`.

    The database compares digests as they are stored, and encrypted ones of equal arguments differ. So what it takes for
    a conflict is decrypted and compared; what is the same after all is moved once more, with the digest that it has.
    """

    passes = frozenset({"take", "find", "cancel", "backlog", "purge"})
    table = "incoming"

    async def move(self, claim: Claim, calls: Sequence[MovedCall]) -> Mapping[str, Move]:
        """Make messages of rows, under the fence."""
        digests = {each.message.id: each.message.digest for each in calls}

        def is_same(rival: Rival) -> bool:
            row, told = rival
            return self._keyring.open(told.digest, places.digest_of_call(told.other or "")) == digests[row]

        stored = {each.message.id: self._call(each) for each in calls}
        return await self._moved(lambda some: self._inner.move(claim, some), stored, is_same)

    async def start(self, claim: Claim, starts: Sequence[MovedStart]) -> Mapping[str, Move]:
        """Make runs of rows, under the fence."""
        sealed = {each.id: encrypted_start(each.start, self._keyring) for each in starts}
        stored = {row: MovedStart(row, start) for row, start in sealed.items()}

        def is_same(rival: Rival) -> bool:
            row, told = rival
            return sealed[row].is_same(told.digest)

        return await self._moved(lambda some: self._inner.start(claim, some), stored, is_same)

    async def _moved(
        self,
        write: Callable[[Sequence[M]], Awaitable[Mapping[str, Move]]],
        stored: Mapping[str, M],
        is_same: Callable[[Rival], bool],
    ) -> Mapping[str, Move]:
        told = dict(await write(list(stored.values())))
        rivals = [(row, move) for row, move in told.items() if move.told == "conflict"]
        if not rivals:
            return told
        compared = readable(rivals, lambda rival: (*rival, is_same(rival)), table=self.table, key=itemgetter(0))
        told |= {row: Move("left") for row, _ in rivals}  # so stay those of which the other one cannot be read
        told |= {row: move for row, move, same in compared if not same}
        known = [replace(stored[row], known=move.digest) for row, move, same in compared if same]
        if known:
            again = await write(known)  # a rival that was rotated meanwhile is compared in the next round
            told |= {row: Move("left") if move.told == "conflict" else move for row, move in again.items()}
        return told

    def _call(self, call: MovedCall) -> MovedCall:
        message, error = call.message, call.error
        why = None if error is None else self._keyring.seal_text(error, places.error_of_call(message.id))
        return MovedCall(encrypted_message(message, self._keyring), why)
