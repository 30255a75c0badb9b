"""The steps of which the scripts are made. All play in one cluster; runner a holds, b takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from coterie.storage.interface import KvSwap
from coterie.storage.postgres.batch import plan
from tests.interleavings.database import CLUSTER
from tests.support.interleaving import Step, atomic
from tests.support.interleaving.scripts import Reads, Row, Verdict, restart_if_none, stop_if_none

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps over one set of statements: the right ones, or some with a planted bug.

    Args:
        sql: The statements by name.
        evict: What follows the lock on the victim's lease, by name.
        leave: What follows the lock on one's own.
    """

    sql: Mapping[str, str]
    evict: tuple[str, ...] = ("evict", "date_losses")
    leave: tuple[str, ...] = ("evict", "date_losses")

    def step(self, name: str, *values: Any, step: str = "", **options: Any) -> Step:
        """One statement in our cluster."""
        return Step(step or name, self.sql[name], (CLUSTER, *values), **options)

    def renew(self, me: str) -> Step:
        """Renew a lease."""
        return self.step("renew", me, 6.0, step="renew")

    def grant(self, me: str, *seats: str) -> Step:
        """Acquire what is free of some seats."""
        return self.step("acquire", me, list(seats), step="grant")

    def release(self, me: str, seat: str) -> Step:
        """Release a seat of epoch 1."""
        return self.step("release", me, seat, 1)

    def evicting(self, victim: str, *, by: str = "lock_expired_lease") -> tuple[Step, ...]:
        """Evict a runner whose counter was seen at 1."""
        lock = self.step(by, victim, 1, step="lock", then=stop_if_none)
        return atomic(lock, *(self._delete(name, victim) for name in self.evict))

    def examining(self, victim: str, *, by: str) -> tuple[Step, ...]:
        """Look at a runner that died before we started, and evict it if it has not renewed since."""
        look = self.step("presences", [victim], [0], step="look", then=_go_on_if_still)
        return (look, *self.evicting(victim, by=by))

    def leaving(self, me: str) -> tuple[Step, ...]:
        """Leave."""
        lock = self.step("lock_own_lease", me, step="lock", then=stop_if_none)
        return atomic(lock, *(self._delete(name, me) for name in self.leave))

    def _delete(self, name: str, runner: str) -> Step:
        return self.step(name) if name == "date_losses" else self.step(name, runner)

    def agreeing(self, value: str) -> tuple[Step, ...]:
        """Bring a setting that all must share, and read what counts."""
        return (*atomic(self.step("agree", ["shards"], [value])), self.step("agreements", ["shards"], step="told"))

    def registering(self, me: str, fingerprint: str, *, declare: bool = False) -> tuple[Step, ...]:
        """Register with a definition of s1, which is there already unless it is to be declared."""
        knows = f'{{"s1": "{fingerprint}"}}'
        appear = self.step("register", me, me, "", "", ["default"], 1.0, "0", knows, "", 6.0, True, "")
        declared = (self.step("declare", ["s1"], ["default"], [fingerprint]),) if declare else ()
        return atomic(appear, *declared, *self.defining(fingerprint))

    def defining(self, fingerprint: str) -> tuple[Step, ...]:
        """Define s1, the statements of one transaction."""
        return (
            self.step("contest", ["s1"], [fingerprint]),
            self.step("redefine", ["s1"], ["default"], [fingerprint]),
        )

    def write(self, *items: tuple[str, str, str, int], me: str = "a", step: str = "write") -> Step:
        """Write states under the fence: (seat, key, value, version expected) each."""
        seats, keys, values, versions = (list(column) for column in zip(*items, strict=True))
        encoded = [value.encode() for value in values]
        return self.step("write_states", me, seats, [1] * len(items), keys, encoded, versions, step=step)

    def put(self, key: str, value: str) -> Step:
        """Set a key of the key-value store under the fence."""
        return self.step("put_kv", "a", ["s1"], [1], [key], [value.encode()], [2], [None], step="write")

    def taking(self, me: str, key: str) -> tuple[Step, ...]:
        """Acquire s1 and read its state, as a new holder does; nothing if it was not free."""

        def load(reads: Reads) -> Sequence[Any]:
            return (CLUSTER, me, ["s1"], [reads["grant"][0]["epoch"]], [key])

        grant = self.step("acquire", me, ["s1"], step="grant", then=stop_if_none)
        return (grant, Step("load", self.sql["claim_states"], load))

    def taking_kv(self, me: str, key: str) -> tuple[Step, ...]:
        """The same for a key of the key-value store."""
        grant = self.step("acquire", me, ["s1"], step="grant", then=stop_if_none)
        return (grant, self.step("kv_get", key, step="load"))

    def modifying(self, key: str, *, stamp: int) -> tuple[Step, ...]:
        """`kv.modify`: read a number, write one more if nobody was faster, otherwise anew."""

        def change(found: Row | None) -> KvSwap:
            if found is None:
                return KvSwap(key, None, b"1", stamp)
            return KvSwap(key, found["stamp"], str(int(found["value"]) + 1).encode(), stamp)

        return (self.step("kv_get", key, step="get"), *atomic(self._swap(change)))

    def discarding(self, key: str) -> tuple[Step, ...]:
        """`kv.modify` that removes the key it has read."""

        def change(found: Row | None) -> KvSwap:
            assert found is not None
            return KvSwap(key, found["stamp"], None, 0)

        return (self.step("kv_get", key, step="get", then=stop_if_none), *atomic(self._swap(change)))

    def _swap(self, change: Callable[[Row | None], KvSwap]) -> Step:
        """The statement and arrays that the engine itself makes of the write."""

        def fold(reads: Reads) -> tuple[plan.Bucket, list[KvSwap]]:
            writes = [change(reads["get"][0] if reads["get"] else None)]
            return plan.fold(writes)[0], writes

        def sql(reads: Reads) -> str:
            return self.sql[f"kv_{fold(reads)[0].shape}"]

        def values(reads: Reads) -> Sequence[Any]:
            return (CLUSTER, *plan.values(*fold(reads)))

        return Step("swap", sql, values, then=restart_if_none)


def _go_on_if_still(rows: Sequence[Row]) -> Verdict:
    """Whether its lease is there, as it was at first."""
    return "go" if list(rows[0]["counters"]) == [1] else "stop"
