"""References are typed as the entity and have its rpcs and its id only [m11]."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from coterie.entities.definition import define
from coterie.entities.entity import Entity
from coterie.entities.reference import Reference, address_of
from coterie.errors import MalformedMessage
from coterie.kernel.ids import EntityAddress
from tests.unit.entities.account_entity import Account, Loopback, account

ALL = "balance, buy, charge, count, explode, lie"


@pytest.mark.parametrize("name", ["state", "cluster", "helper", "on_activate", "keep_alive", "chagre", "_x"])
def test_what_is_neither_rpc_nor_id_is_an_attribute_error_that_says_so(name: str) -> None:
    ref, _ = account()
    with pytest.raises(AttributeError) as caught:
        getattr(ref, name)
    assert str(caught.value) == (
        f"a reference has only rpcs and id, and {name!r} is neither: the rpcs of Account are {ALL}"
    )


def test_nothing_can_be_set_on_a_reference() -> None:
    ref, _ = account()
    for name in ("id", "state", "anything"):
        with pytest.raises(AttributeError):
            setattr(ref, name, 1)


def test_a_reference_prints_as_its_address_and_is_no_instance() -> None:
    ref: Any = account()[0]
    assert (repr(ref), str(ref), f"{ref}", ref.id) == ("Account/alice", "Account/alice", "Account/alice", "alice")
    assert not isinstance(ref, Account)
    assert isinstance(ref, Reference)


def test_references_are_equal_by_address() -> None:
    class Other(Entity):
        pass

    ref: Any = account()[0]
    assert ref == account()[0]
    assert len({ref, account()[0], account("bob")[0], define(Other).ref("alice", account()[1])}) == 3
    assert ref != "Account/alice"


def test_an_address_is_known_of_references_only() -> None:
    assert address_of(account()[0]) == EntityAddress("Account", "alice")
    with pytest.raises(TypeError, match=r"^expected a reference"):
        address_of(Account())


@pytest.mark.parametrize("id", ["", "a\0b", "x" * 1001])
def test_ids_that_cannot_be_stored_are_refused(id: str) -> None:
    with pytest.raises(ValueError, match="entity id"):
        account(id)


def test_an_id_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^the id of Account is 7: ids are text"):
        account(7)  # type: ignore[arg-type] # that is the point


def test_an_entity_with_another_name_is_called_by_it() -> None:
    kind = define(Account, name="account-v2")
    assert repr(kind.ref("alice", Loopback(kind))) == "account-v2/alice"
    with pytest.raises(MalformedMessage, match=r"^account-v2\.charge: order_id is 7"):
        _ = kind.ref("alice", Loopback(kind)).charge(7)  # type: ignore[arg-type] # that is the point


def test_rpcs_show_their_own_signature_and_text() -> None:
    ref, _ = account()
    assert ref.charge.__doc__ == "Take money."
    assert list(inspect.signature(ref.charge).parameters) == ["order_id", "cents", "note"]


def test_a_reference_is_no_payload() -> None:
    ref, _ = account()
    with pytest.raises(MalformedMessage, match=r"items\[0\] is of type AccountReference, which is not data"):
        _ = ref.buy([ref])  # type: ignore[list-item] # that is the point


def test_an_rpc_may_have_any_public_name() -> None:
    from coterie.entities.rpc import rpc

    class Odd(Entity):
        @rpc
        async def address(self) -> None: ...

        @rpc
        async def send(self, self_: int, rpc: int) -> None: ...

    ref = define(Odd).ref("x", Loopback(define(Odd)))
    for call in (ref.address(), ref.send(1, rpc=2)):
        call.close()
