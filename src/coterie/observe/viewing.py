"""Viewing: the pages of the read model, built from one look at the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coterie.entities.persisted.api import Messages
from coterie.kernel.ids import Seat
from coterie.observe import failing, lines
from coterie.observe.judge import judge
from coterie.observe.rates import Rate, rates, together
from coterie.observe.view import PAGES, MessagesPage, OverdueLine, Overview, View

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from coterie.connection import Connection
    from coterie.entities.persisted.api import MessageInfo
    from coterie.observe.facts import ClusterFacts, LocalFacts
    from coterie.observe.health import Health
    from coterie.observe.view import WorkflowLine

_DEAD_MOST = 200
"""Dead messages that are looked at: enough to tell why they died."""
_OVERDUE_MOST = 20
_WORKFLOWS_MOST = 100


class Viewing:
    """Looks at a cluster for those who show it, and remembers the look before, for what happens in a second.

    Args:
        here: The process that looks: a runner or a client.
    """

    def __init__(self, here: Connection) -> None:
        self._here = here
        self._revision = 0
        self._facts: ClusterFacts | None = None
        self._rates: dict[str, Rate] = {}

    async def look(self, pages: Collection[str] = PAGES, *, within_s: float = 0.0, texts: bool = True) -> View:
        """See pages, all from one gathering.

        Args:
            pages: Which ones.
            within_s: How old the facts may be: those who look at once share one look.
            texts: Whether to show what the program itself said: notes, and what errors say besides their type.

        Raises:
            PersistenceError: The database could not be asked.
        """
        assert set(pages) <= set(PAGES), f"there are {PAGES}"
        facts = await self._fresh(within_s)
        dead = await self._dead(facts) if {"overview", "messages"} & set(pages) else []
        workflows = await self._workflows() if "workflows" in pages else ()
        data = Pages(judge(facts), self._rates, dead, workflows, texts=texts)
        local = self._here.facts()
        return View(
            revision=self._revision,
            at=facts.now,
            runner=None if local is None else local.name,
            data={page: getattr(data, page)() for page in PAGES if page in pages},
        )

    async def _fresh(self, within_s: float) -> ClusterFacts:
        gathering = self._here.gathering
        recent = await gathering.recent(within_s=within_s) if within_s else None
        is_fresh = recent is not None and recent.facts is not None and recent.age_s <= within_s
        facts = recent.facts if is_fresh and recent is not None and recent.facts is not None else await gathering.look()
        if facts is not self._facts:
            before: Mapping[str, LocalFacts | None] = {} if self._facts is None else self._facts.runners
            self._rates = rates(before, facts.runners)
            self._facts = facts
            self._revision += 1
        return facts

    async def _dead(self, facts: ClusterFacts) -> Sequence[MessageInfo]:
        if not facts.dead:
            return []
        messages = Messages(lambda: self._here.storage.messages)
        return await messages.list(status="dead", limit=_DEAD_MOST)

    async def _workflows(self) -> tuple[WorkflowLine, ...]:
        from coterie.workflows.api import Workflows

        found = await Workflows(lambda: self._here).list(limit=_WORKFLOWS_MOST)
        return tuple(lines.workflow(each) for each in found)


class Pages:
    """The pages, from what was found. Pure.

    Args:
        health: How the cluster stands, with the facts.
        happening: What happens on each runner, by its incarnation.
        dead: Messages that were given up, some of them.
        workflows: Runs of workflows.
        texts: Whether to show what the program itself said.
    """

    def __init__(
        self,
        health: Health,
        happening: Mapping[str, Rate],
        dead: Sequence[MessageInfo] = (),
        workflows: tuple[WorkflowLine, ...] = (),
        *,
        texts: bool = True,
    ) -> None:
        self._health = health
        self._facts = health.facts
        self._happening = happening
        self._dead = dead
        self._workflows = workflows
        self._texts = texts

    def overview(self) -> Overview:
        """Is it healthy, who leads, what runs next, what failed."""
        health, all_of = self._health, together(self._happening.values())
        return Overview(
            status=health.status,
            reasons=health.reasons,
            runners=health.runners,
            healthy_runners=health.healthy_runners,
            shards=health.shards,
            owned_shards=health.owned_shards,
            entities=health.entities,
            calls_s=None if all_of is None else all_of.calls_s,
            p50_s=None if all_of is None else all_of.p50_s,
            p99_s=None if all_of is None else all_of.p99_s,
            waiting=self._sum("waiting"),
            running=self._sum("running"),
            dead=self._facts.dead,
            overdue_s=0.0 if self._facts.oldest is None else self._facts.oldest.late_s,
            singletons=self.singletons(),
            crons=self.cron(),
            failures=(
                *failing.messages(self._dead, texts=self._texts),
                *failing.crons(self._facts.crons, texts=self._texts),
            ),
        )

    def runners(self) -> Any:
        """Who takes part, by name."""
        rows = sorted(self._facts.view.runners, key=lambda row: (row.name, row.id))
        return tuple(lines.runner(row, self._facts, self._happening.get(row.id)) for row in rows)

    def shards(self) -> Any:
        """Who holds what."""
        return lines.shards(self._facts.view)

    def singletons(self) -> Any:
        """Who leads what."""
        return tuple(lines.singleton(each, self._facts, texts=self._texts) for each in self._facts.singletons)

    def cron(self) -> Any:
        """What runs when."""
        return tuple(lines.cron(each, self._facts, texts=self._texts) for each in self._facts.crons)

    def entities(self) -> Any:
        """What lives where."""
        return lines.entities(self._facts)

    def messages(self) -> MessagesPage:
        """What waits, and what was given up."""
        overdue = self._facts.overdue[:_OVERDUE_MOST]
        return MessagesPage(
            waiting=self._sum("waiting"),
            running=self._sum("running"),
            dead=self._facts.dead,
            overdue=tuple(
                OverdueLine(id=each.id, what=each.what, shard=Seat.split(each.seat)[1], late_s=each.late_s)
                for each in overdue
            ),
            failures=failing.messages(self._dead, texts=self._texts),
        )

    def workflows(self) -> Any:
        """Runs of workflows."""
        return self._workflows if self._texts else tuple(lines.without_text(each) for each in self._workflows)

    def _sum(self, field: str) -> int | None:
        """Of all runners; None: not all of them answered."""
        told = [self._facts.runners.get(row.id) for row in self._facts.view.runners]
        known = [getattr(each, field) for each in told if each is not None]
        return sum(known) if len(known) == len(told) else None
