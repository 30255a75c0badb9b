"""Pairs of crons: verdicts, outcomes and looks against all that moves their seat, pauses or redefines them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from coterie.storage.contracts.ticks import TickClaim, TickNote, Verdict
from coterie.storage.interface import Claim
from coterie.storage.postgres.batch import plan
from tests.interleavings import tick_judges as judges
from tests.interleavings.database import CLUSTER, defined, given
from tests.support.interleaving import Pair, Script, Step, atomic
from tests.support.interleaving.scripts import stop_if_none

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.storage.interface import Write
    from tests.interleavings.steps import Steps
    from tests.support.interleaving.scripts import Reads

MINE = Claim("a", "s1", 1)
OVERTAKEN = frozenset({"40001"})
"""A statement that somebody was faster than comes to nothing, and is run again [M3]."""
AT = datetime(2020, 1, 1, 12, tzinfo=UTC)
LATER = timedelta(seconds=1)
FUTURE = datetime(2200, 1, 1, tzinfo=UTC)
"""Due all the same, by a delay of less than nothing: no definition has taken effect later."""

BOTH = (Verdict(AT, AT, 1, "stale"), Verdict(AT + LATER, AT + LATER))
CLAIM = TickClaim(MINE, "c", "v1", None, BOTH)
TO_COME = TickClaim(
    MINE, "c", "v1", None, (Verdict(FUTURE, FUTURE, 1, "stale"), Verdict(FUTURE + LATER, FUTURE + LATER)), -1e10
)
END = TickNote(MINE, "c", "scheduled", AT, 0, 1, outcome="ran", took_s=1.0)
AGAIN = TickNote(MINE, "c", "scheduled", AT, 0, 1, again=True, errors=("attempt 1: boom",))

KNOWN = f";insert into coterie.crons (cluster, name, definition) values ('{CLUSTER}', 'c', '{{}}')"
PAUSED = ";update coterie.crons set paused_at = clock_timestamp()"


def rows(*ticks: str, left_s: float = 6, known: bool = True) -> str:
    """Runners a and b, the seat s1 of a cron c, and ticks of it."""
    begin = given(runners={"a": left_s, "b": 6}, seats={"s1": "a"}) + defined("s1", "v1")
    return begin + (KNOWN if known else "") + "".join(ticks)


def tick(*, kind: str = "scheduled", second: int = 0, seq: int = 0, epoch: int = 1, ended: bool = False) -> str:
    """A tick that runs, was triggered (epoch 0), or ended long ago."""
    outcome, ended_at = ("'ran'", "now() - interval '1 day'") if ended else ("null", "null")
    at = f"timestamptz '{(AT + second * LATER).isoformat()}'"
    return (
        ";insert into coterie.ticks (cluster, name, kind, at, seq, until_at, epoch, attempt, outcome, runner,"
        f" claimed_at, ended_at) values ('{CLUSTER}', 'c', '{kind}', {at}, {seq}, {at}, {epoch}, {epoch}, {outcome},"
        f" 'a', now() - interval '1 day', {ended_at})"
    )


NIGHTLY = {
    "tick: first claim x release and take",
    "tick: claim x evict and take",
    "tick: end x release and take",
    "tick: try again x release and take",
    "tick: sweep x release and take",
    "tick: sweep x evict and take",
    "tick: claim x resume",
    "tick: pause x resume",
    "tick: first pause x sweep",
    "tick: claim x trigger",
    "tick: first claim x again",
    "tick: first sweep x sweep too",
    "tick: purge x purge too",
}
"""Variants of the others, which are enough for every change."""
TRIGGERED = tick(kind="manual", seq=1, epoch=0)


def stored_ticks(s: Steps) -> list[Pair]:
    """The pairs, over the right statements or some with a planted bug."""
    return [*_against_holders(s), *_against_people(s), *_against_each_other(s)]


def _against_holders(s: Steps) -> list[Pair]:
    """Whatever a holder writes against all that takes its seat away [C1, M9]."""
    claim, again, end = _script(s, "claim", CLAIM), _script(s, "try again", AGAIN), _script(s, "end", END)
    granted = Script("release and take", (s.release("a", "s1"), *_taking(s)))
    evicted = Script("evict and take", (*s.evicting("a"), *_taking(s)))
    late = judges.together(judges.claimed_as_told, judges.nothing_late)
    ended = judges.together(judges.noted_or_taken, judges.nothing_late)
    sweep = Script("sweep", _looking(s, "a", 1))
    return [
        _pair(rows(), claim, granted, late),
        _pair(rows(known=False), Script("first claim", claim.steps), granted, late),
        _pair(rows(left_s=-1), claim, evicted, late),
        _pair(rows(tick()), end, granted, ended),
        _pair(rows(tick(), left_s=-1), end, evicted, ended),
        _pair(rows(tick()), again, granted, ended),
        _pair(rows(TRIGGERED), sweep, granted, judges.nothing_late),
        _pair(rows(TRIGGERED, left_s=-1), sweep, evicted, judges.nothing_late),
    ]


def _against_people(s: Steps) -> list[Pair]:
    """Holders against those who pause, trigger and deploy [M8]."""
    claim, to_come = _script(s, "claim", CLAIM), _script(s, "claim to come", TO_COME)
    pause, resume = _asking(s, "pause"), _asking(s, "resume")
    sweep = Script("sweep", _looking(s, "a", 1))
    deploy = Script("deploy", s.registering("n", "v3"))
    new = rows(known=False)
    return [
        _pair(rows(), claim, pause, judges.not_while_paused),
        _pair(new, Script("first claim", claim.steps), pause, judges.not_while_paused),
        _pair(rows() + PAUSED, claim, resume, judges.claimed_as_told),
        _pair(rows(), to_come, deploy, judges.not_of_a_replaced_schedule),
        _pair(rows(), pause, resume, judges.paused_as_told),
        _pair(new, Script("first pause", pause.steps), sweep, judges.paused_as_told),
        _pair(rows(), _triggering(s), sweep, judges.triggered_each),
        _pair(rows(), _triggering(s), _triggering(s, name="trigger too"), judges.triggered_each),
        _pair(rows(), claim, _triggering(s), judges.claimed_as_told),
    ]


def _against_each_other(s: Steps) -> list[Pair]:
    """What one holder asks twice, after an answer that was lost; and what is cleared away."""
    claim = _script(s, "claim", CLAIM)
    sweep, too = Script("sweep", _looking(s, "a", 1)), Script("sweep too", _looking(s, "a", 1))
    purge = Script("purge", atomic(s.step("purge_ticks", 60.0, 10, step="purge")))
    old = (tick(second=-9, ended=True), tick(second=-8, ended=True))
    return [
        _pair(rows(), claim, Script("claim again", claim.steps), judges.claimed_once),
        _pair(rows(known=False), Script("first claim", claim.steps), Script("again", claim.steps), judges.claimed_once),
        _pair(rows(TRIGGERED), sweep, too, judges.begun_once),
        _pair(rows(TRIGGERED, known=False), Script("first sweep", sweep.steps), too, judges.begun_once),
        _pair(rows(tick(), *old), _script(s, "end", END), purge, judges.kept_or_purged),
        _pair(rows(*old), purge, Script("purge too", purge.steps), judges.purged_once),
    ]


def _script(s: Steps, name: str, write: Write) -> Script:
    """The statement and arrays that the engine itself makes of a write."""
    (bucket,) = plan.fold([write])
    return Script(name, atomic(s.step(bucket.shape, *plan.values(bucket, [write]), step="write")))


def _looking(s: Steps, me: str, epoch: int | None = None) -> tuple[Step, ...]:
    """What a look after a cron does when there is something to be written; as the one who was just granted the seat, if
    no epoch is given."""

    def values(reads: Reads) -> Sequence[Any]:
        mine = reads["grant"][0]["epoch"] if epoch is None else epoch
        return (CLUSTER, me, ["s1"], [mine], ["c"], ["{}"])

    take = Step("take", s.sql["take_crons"], values)
    return (*atomic(take), Step("load", s.sql["look_at_crons"], values))


def _taking(s: Steps) -> tuple[Step, ...]:
    """B acquires s1 and looks after its cron; nothing if it was not free."""
    return (s.step("acquire", "b", ["s1"], step="grant", then=stop_if_none), *_looking(s, "b"))


def _asking(s: Steps, what: str) -> Script:
    return Script(what, atomic(s.step(f"{what}_cron", "s1", "c", step=what)))


def _triggering(s: Steps, *, name: str = "trigger") -> Script:
    return Script(name, atomic(s.step("trigger_tick", "s1", "c", AT, step="trigger")))


def _pair(begin: str, a: Script, b: Script, judge: judges.Judge) -> Pair:
    tried = [Script(script.name, script.steps, tries=3) for script in (a, b)]
    return Pair(f"tick: {a.name} x {b.name}", begin, tried[0], tried[1], judge, allows=OVERTAKEN)
