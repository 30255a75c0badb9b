"""Jobs whose arguments, replies, errors and notes are encrypted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from coterie.storage.encryption import places
from coterie.storage.encryption.messages import encrypted_job, encrypted_message

if TYPE_CHECKING:
    from coterie.storage.contracts.jobs import JobEnd
    from coterie.storage.encryption.cipher import Keyring


def encrypted_end(write: JobEnd, keyring: Keyring) -> JobEnd:
    """The end of a job, and what it sends, as it is stored."""
    place = places.job(write.job, "reply")
    return replace(
        write,
        reply=keyring.seal(write.reply, place),
        cancelled_reply=keyring.seal(write.cancelled_reply, place),
        sends=tuple(encrypted_message(message, keyring) for message in write.sends),
        jobs=tuple(encrypted_job(job, keyring) for job in write.jobs),
    )
