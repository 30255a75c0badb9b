"""Health: what `cluster.health()` tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from datetime import datetime

    from coterie.observe.facts import ClusterFacts

Status = Literal["healthy", "degraded", "unhealthy"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a cluster is not healthy, in the words that people see everywhere."""

    status: Status
    """What it makes of the cluster: `degraded` or `unhealthy`."""
    what: str
    """The thing: `singleton importer`, `runner web-2`, `14 shards`."""
    problem: str
    """What is wrong with it, with the figures."""
    hint: str = ""
    """What helps: a sentence with the command."""
    runner: str | None = None
    """The name of the runner that hosts it: whose readiness it turns off; None: nobody's."""

    def __str__(self) -> str:
        return f"{self.what}: {self.problem}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """How a cluster stands, at one moment of the database's clock."""

    status: Status
    reasons: tuple[Reason, ...]
    at: datetime
    runners: int
    healthy_runners: int
    shards: int
    owned_shards: int
    entities: int | None
    """Resident on all runners; None: not all of them answered."""
    singletons: int
    crons: int
    facts: ClusterFacts
    """Everything it was judged by."""

    @property
    def is_healthy(self) -> bool:
        """Whether nothing is wrong at all."""
        return self.status == "healthy"
