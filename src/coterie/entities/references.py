"""References: what `cluster.ref` gives. Typed as the entity, they have its rpcs and its id, and nothing else [m11]."""

from __future__ import annotations

from functools import WRAPPER_ASSIGNMENTS, update_wrapper
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from coterie.entities.calls import Call, Stream
from coterie.kernel.ids import EntityAddress

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coterie.entities.calls import Sender
    from coterie.entities.rpcs import Rpc


class Reference:
    """An entity as others see it. Each entity type has a subclass of its own, with a method for each rpc.

    Two references are equal if they name the same entity. `isinstance(reference, Account)` is false: it is none,
    it only calls one.
    """

    __slots__ = ("_address", "_aim")

    _type_name: ClassVar[str]
    _rpcs: ClassVar[Mapping[str, Rpc]]

    def __init__(self, id: str, sender: Sender, timeout_s: float | None = None) -> None:
        if not isinstance(id, str):
            raise TypeError(f"the id of {self._type_name} is {id!r}: ids are text, write str(…)")
        self._address = EntityAddress(self._type_name, id)
        self._aim = (self._address, sender, timeout_s)  # at one look: on a class with __getattr__ each one costs

    @property
    def id(self) -> str:
        """Which entity of its type this is."""
        return self._address.id

    def __getattr__(self, name: str) -> NoReturn:
        known = ", ".join(self._rpcs) or "none"
        raise AttributeError(
            f"a reference has only rpcs and id, and {name!r} is neither: the rpcs of {self._type_name} are {known}",
            name=name,
            obj=self,
        )

    def __eq__(self, other: object) -> bool:
        return self._address == other._address if isinstance(other, Reference) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._address)

    def __repr__(self) -> str:
        return str(self._address)


def reference_type(name: str, rpcs: Mapping[str, Rpc]) -> type[Reference]:
    """The class of the references to one entity type."""
    methods = {rpc.name: _method(rpc) for rpc in rpcs.values()}
    return type(f"{name}Reference", (Reference,), {"__slots__": (), "_type_name": name, "_rpcs": rpcs, **methods})


def address_of(ref: object) -> EntityAddress:
    """Where a reference leads.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(ref, Reference):
        raise TypeError(f"expected a reference, as cluster.ref(Account, …) gives one, not {type(ref).__name__}")
    return ref._address  # noqa: SLF001 private only so that rpcs may have any name


def _method(rpc: Rpc) -> Callable[..., Any]:
    """Builds the calls of one rpc. This is the hot path of every call: bind, encode, one object."""
    make = Stream if rpc.is_stream else Call
    encode, declared_s = rpc.arguments.encode, rpc.timeout_s

    def method(self: Reference, /, *args: Any, **kwargs: Any) -> Any:
        address, sender, timeout_s = self._aim
        return make(address, rpc, encode(args, kwargs), sender, declared_s if timeout_s is None else timeout_s)

    return update_wrapper(method, rpc.fn, assigned=WRAPPER_ASSIGNMENTS, updated=())
