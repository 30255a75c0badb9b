"""`coterie activity`: the record of acts as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from coterie.storage.contracts.activity import Act

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.unit.cli.command_runner import Said
    from tests.unit.cli.stored_cluster import Stored

    Ask = Callable[..., Said]


def test_what_was_done_is_listed_and_hostile_words_are_text(ask: Ask, stored: Stored) -> None:
    said = ask("activity")
    assert (said.code, said.out.endswith("nothing was done with the page\n")) == (0, True)
    storage = stored.cluster._acting().storage
    act = Act(who="mara\x1b[2J", origin="10.0.0.7", act="retry", what="message 7", result="1 dead message runs again")
    stored.do(storage.activity.add(act))
    text = ask("activity").out
    assert "mara\\x1b[2J  10.0.0.7  retry  message 7  1 dead message runs again" in text
    (row,) = json.loads(ask("activity", "--json").out)
    assert (row["who"], row["from"], row["act"], row["what"]) == ("mara\x1b[2J", "10.0.0.7", "retry", "message 7")
