"""Where steps stand: the same places in every run of the same code (M10, W2)."""

from __future__ import annotations

import asyncio
import random

import pytest

from coterie import StepDiverged
from coterie.durable.position import Place, Places, named
from coterie.storage.contracts.units import StepRow


def row(place: Place, **options: object) -> StepRow:
    plain = {"branch": place.branch, "position": place.position, "kind": place.kind, "name": place.name}
    return StepRow(**{**plain, "digest": place.digest, "done": True, **options})  # type: ignore[arg-type] # of a test


def spot(places: Places, name: str) -> str:
    place = places.next_place("step", name)
    return f"{place.branch}:{place.position} {name}"


async def test_a_task_is_a_branch_and_goes_on_where_it_was() -> None:
    places, found = Places("u"), []

    async def branch(name: str, *, deep: int = 0) -> None:
        found.append(spot(places, f"{name}1"))
        await asyncio.sleep(0)
        if deep:
            await asyncio.gather(*(branch(f"{name}{each}", deep=deep - 1) for each in "xy"))
        found.append(spot(places, f"{name}2"))

    places.begin()
    found.append(spot(places, "root"))
    await asyncio.gather(branch("a"), branch("b", deep=1))
    async with asyncio.TaskGroup() as group:
        group.create_task(branch("c"))
    found.append(spot(places, "end"))
    assert found == [
        ":0 root", "0:0 a1", "1:0 b1", "0:1 a2", "1.0:0 bx1", "1.1:0 by1", "1.0:1 bx2", "1.1:1 by2", "1:1 b2",
        "2:0 c1", "2:1 c2", ":1 end",
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
async def test_the_places_do_not_depend_on_how_long_steps_take(seed: int) -> None:
    """Also if no step was called before the branches begin."""

    async def run(pauses: random.Random | None) -> set[str]:
        places, found = Places("u"), set()

        async def branch(name: str) -> None:
            for number in range(3):
                found.add(spot(places, f"{name}{number}"))
                for _ in range(pauses.randrange(4) if pauses else 0):
                    await asyncio.sleep(0)

        async def root() -> None:
            places.begin()
            await asyncio.gather(*map(branch, "abc"))
            found.add(spot(places, "end"))

        await asyncio.create_task(root())
        return found

    assert await run(random.Random(seed)) == await run(None)


async def test_a_place_is_taken_by_the_call() -> None:
    places = Places("u")
    places.begin()

    async def step(place: Place) -> int:
        return place.position

    calls = [step(places.next_place("step", name)) for name in "abc"]
    assert await asyncio.gather(*reversed(calls)) == [2, 1, 0]


async def test_two_units_in_one_task_have_places_of_their_own() -> None:
    one, two = Places("one"), Places("two")
    one.begin()
    two.begin()
    assert [spot(each, "x") for each in (one, two, one)] == [":0 x", ":0 x", ":1 x"]
    one.exit()
    with pytest.raises(RuntimeError, match="one goes on in its own block and its tasks alone"):
        one.next_place("step", "x")
    assert spot(two, "x") == ":1 x"


async def test_inside_of_a_step_there_are_none() -> None:
    places = Places("u")
    places.begin()
    with places.inside():
        with pytest.raises(RuntimeError, match="'x' of u was called inside of a step, and steps do not nest"):
            places.next_place("step", "x")
        with pytest.raises(RuntimeError, match="'sleep x' of u was called inside"):
            await asyncio.create_task(_take(places))
    assert spot(places, "x") == ":0 x"


async def _take(places: Places) -> Place:
    return places.next_place("sleep", "x")


@pytest.mark.parametrize(
    ("stored", "met"),
    [
        ({"name": "other"}, 'u: step "a" was reached where "other" is stored'),
        ({"kind": "sleep"}, 'u: step "a" was reached where "sleep a" is stored'),
        ({"digest": b"other"}, 'u: step "a with other arguments" was reached where "a" is stored'),
    ],
)
async def test_w2_something_else_that_is_stored_is_told(stored: dict[str, object], met: str) -> None:
    places = Places("u")
    places.begin()
    place = places.next_place("step", "a", b"digest")
    assert places.row_at(place) is None
    places.add([row(place, **stored)])
    with pytest.raises(StepDiverged) as caught:
        places.row_at(place)
    assert caught.value.message == met


@pytest.mark.parametrize("digest", [b"", b"digest"])
async def test_what_is_not_known_of_the_arguments_does_not_matter(digest: bytes) -> None:
    places = Places("u")
    places.begin()
    place = places.next_place("step", "a", b"digest")
    places.add([row(place, digest=digest)])
    assert places.row_at(place) == row(place, digest=digest)


async def test_patched_takes_a_place_only_where_nothing_of_the_old_code_stands() -> None:
    places = Places("u")
    places.begin()
    is_new, mark = places.patched("p")
    assert is_new
    assert mark is not None
    assert spot(places, "a") == ":1 a"

    again = Places("u")
    again.begin()
    again.add([row(mark)])
    assert again.patched("p") == (True, None)
    assert spot(again, "a") == ":1 a"

    old = Places("u")
    old.begin()
    old.add([row(Place("", 0, "step", "a"))])
    assert old.patched("p") == (False, None)
    assert spot(old, "a") == ":0 a"


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "a\ud800", "\udfffß", "x" * 201, None, 7, b"a"])
def test_a_name_that_a_database_does_not_take_is_refused(name: object) -> None:
    with pytest.raises(ValueError, match=r"^name of a step is .*, expected a short text on one line$"):
        named(name, "a step")


@pytest.mark.parametrize("name", ["a", "größe 🙂", "🙂" * 200, "\u202e' %_\\"])
def test_any_other_text_is_a_name(name: str) -> None:
    assert named(name, "a step") == name


def test_a_name_is_plain_text_whatever_class_it_has() -> None:
    class Name(str):
        __slots__ = ()

    found = named(Name("a"), "a step")
    assert (found, type(found)) == ("a", str)


async def test_a_mark_of_another_name_is_something_else_that_is_stored() -> None:
    """Two changes of the same code, one after the other: the first one's mark says nothing of the second."""
    places = Places("u")
    places.begin()
    _, mark = places.patched("first")
    assert mark is not None
    again = Places("u")
    again.add([row(mark)])
    again.begin()
    assert again.patched("second") == (False, None)
    assert again.patched("first") == (True, None), "its place was not taken by the other"


@pytest.mark.parametrize(
    ("kind", "name", "taken"),
    [("child", "old", "old"), ("child", "other", "new"), ("step", "old", "new"), (None, "", "new")],
    ids=["former", "another", "no-child", "nothing"],
)
async def test_a_child_goes_by_its_former_name_only_where_that_is_stored(
    kind: str | None, name: str, taken: str
) -> None:
    places = Places("u")
    if kind is not None:
        places.add([row(Place("", 0, kind, name))])  # type: ignore[arg-type] # of a test
    places.begin()
    assert places.next_child("new", formerly="old") == Place("", 0, "child", taken)
    assert places.next_place("step", "next").position == 1
    assert places.has_children is (kind == "child")


async def test_what_undoes_something_has_places_of_its_own_in_each_branch() -> None:
    places, found = Places("u"), []

    async def branch() -> None:
        found.extend([places.next_compensation("a", b"1"), places.next_compensation("b", b"2")])

    places.begin()
    await branch()
    await asyncio.gather(branch())
    assert [(each.branch, each.position, each.name) for each in found] == [
        ("undo", 0, "a"), ("undo", 1, "b"), ("undo 0", 0, "a"), ("undo 0", 1, "b"),
    ]  # fmt: skip
    assert places.next_place("step", "s").position == 0, "places of steps are not used up"


async def test_inside_of_a_step_nothing_is_undone_either() -> None:
    places = Places("u")
    places.begin()
    with places.inside(), pytest.raises(RuntimeError, match="steps do not nest"):
        places.next_compensation("a", b"")


@pytest.mark.parametrize(
    ("stored", "given", "diverges"),
    [(b"1", b"1", False), (b"1", b"2", True), (b"", b"2", False), (b"1", b"", False), (b"", b"", False)],
)
async def test_arguments_differ_only_where_both_are_known(stored: bytes, given: bytes, diverges: bool) -> None:
    places = Places("u")
    places.add([row(Place("", 0, "step", "s", stored))])
    places.begin()
    place = places.next_place("step", "s", given)
    if diverges:
        with pytest.raises(StepDiverged, match="with other arguments"):
            places.row_at(place)
    else:
        assert places.row_at(place) is not None
