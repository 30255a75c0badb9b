"""Entity, the class that users derive from, and the interface it uses on its runner."""

from __future__ import annotations

from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, get_args, get_origin

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from typing_extensions import TypeVar as TypeVarWithDefault

    from coterie.cluster import Cluster
    from coterie.kernel.durations import Duration
    from coterie.work.transaction import Transaction

    S = TypeVarWithDefault("S", default=None)
else:
    S = TypeVar("S")

R = TypeVar("R")
E = TypeVar("E", bound="Entity[Any]")


class Activation(Protocol):
    """One activation of an entity on one runner, as the entity sees it."""

    @property
    def cluster(self) -> Cluster: ...
    def keep_alive(self, *, on: bool) -> None: ...
    async def resource(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R: ...
    def transaction(self) -> AbstractAsyncContextManager[Transaction]: ...
    def timer(self, name: str, call: object, *, after: Duration | None, every: Duration | None) -> None: ...
    def cancel_timer(self, name: str) -> None: ...
    def forget(self) -> None: ...


class Entity(Generic[S]):
    """An object that any process can call by its id, and that is active on one runner at a time.

    `S` is the type of its state; without it there is none. It has no `__init__` of its own: use `on_activate`.

    Example:
        ```python
        @cluster.entity
        class Account(Entity[Balance]):
            @rpc
            async def balance(self) -> int:
                return self.state.cents
        ```
    """

    id: str
    state: S = None  # type: ignore[assignment] # None for an entity without state
    _activation: Activation

    @property
    def cluster(self) -> Cluster:
        """The cluster of this entity."""
        return self._activation.cluster

    def initial_state(self) -> S:
        """The state of an entity that has none stored: `S()`, unless overridden."""
        made: S = state_type_of(type(self))()
        return made

    async def on_activate(self) -> None:
        """Runs before the first call of each activation."""

    async def on_deactivate(self) -> None:
        """Runs after the last call of an activation.

        Not promised:
            That it runs at all: a process may be killed.
        """

    def keep_alive(self, on: bool = True) -> None:
        """Stay active however long idle; with `on=False` idle deactivation applies again."""
        self._activation.keep_alive(on=on)

    async def resource(self, name: str, factory: Callable[[], AbstractAsyncContextManager[R]]) -> R:
        """The value that `factory` opens, once per activation and name; closed at deactivation [K5]."""
        return await self._activation.resource(name, factory)

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """Your own SQL, with `$1` parameters, committed with state, reply and the messages sent, when the rpc ends.

        Example:
            ```python
            async with self.transaction() as sql:
                await sql.execute("insert into orders (id, cents) values ($1, $2)", order_id, cents)
            ```

        Promise:
                Atomic: an rpc that raises, or whose shard is lost, leaves nothing behind. Nor does a block that is left
                    by
                an exception. Several blocks of one rpc, one after another, are one transaction.

        Not promised:
                From its first statement to the end of the rpc it may take `transaction_limit` (2 s), since moving the
                shard
                waits for it; then it is rolled back and `TransactionTimeout` is raised. On SQLite it blocks all other
                writers of the file from its first write on.
        """
        return self._activation.transaction()

    @property
    def me(self) -> Self:
        """A reference to this entity, for timers and to pass on, typed as the entity."""
        return self.cluster.ref(type(self), self.id)

    def timer(
        self, name: str, call: Awaitable[Any], *, after: Duration | None = None, every: Duration | None = None
    ) -> None:
        """Have a call sent later, once or again and again. Set with the commit of the running rpc, under its fence.

        There is one timer of each name for an entity: it is replaced by setting it again. It is durable: it outlives
        the activation, and moves with the entity.

        Example:
            ```python
            @rpc(persisted=True)
            async def reserve(self, seat: str) -> None:
                self.state.seat = seat
                self.timer("expire", self.me.expire(), after="10m")
            ```

        Args:
            name: Its name, without slashes.
            call: What a method of a reference returned, usually of `self.me`; of a persisted rpc without a key.
            after: How long from now it is due, once.
            every: How often it is due, from now on; whole seconds. An instant is skipped while the last message is not
                over, and of instants that were missed the last one counts.

        Promise:
            An rpc that raises, or whose shard is lost, leaves its timers as they were.

        Not promised:
            That a message that the timer has sent already does not run, once it is cancelled or replaced: look at the
            state there.

        Raises:
            TypeError: Neither or both of `after` and `every`; or the call is none of a persisted rpc without a key.
        """
        self._activation.timer(name, call, after=after, every=every)

    def cancel_timer(self, name: str) -> None:
        """Cancel a timer with the commit of the running rpc. Nothing happens if there is none."""
        self._activation.cancel_timer(name)

    async def forget(self) -> None:
        """Delete this entity's state in the commit of the reply, and discard the instance."""
        self._activation.forget()


def activated(cls: type[E], id: str, activation: Activation) -> E:
    """A new instance, without its state."""
    entity = cls.__new__(cls)
    entity.id = id
    entity._activation = activation  # noqa: SLF001 the two belong together
    return entity


def state_type_of(cls: type[Entity[Any]]) -> Any:
    """The `S` of an entity class, also through generic base classes; `NoneType` if it has none.

    >>> state_type_of(Entity)
    <class 'NoneType'>
    """
    found = _state_of(cls)
    return NoneType if isinstance(found, TypeVar) else found


def _state_of(kind: Any) -> Any:
    """The same for `Account` and for `Ledger[Balance]`; a type variable if it is unbound."""
    given, cls = get_args(kind), get_origin(kind) or kind
    if cls is Entity:
        return given[0] if given else NoneType
    bases = cls.__dict__.get("__orig_bases__", cls.__bases__)
    found = next(_state_of(base) for base in bases if _is_entity(base))
    if not isinstance(found, TypeVar):
        return found
    return dict(zip(cls.__parameters__, given, strict=False)).get(found, found)


def _is_entity(kind: Any) -> bool:
    cls = get_origin(kind) or kind
    return isinstance(cls, type) and issubclass(cls, Entity)
