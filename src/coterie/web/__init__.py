"""Probes, health, metrics and the read model over HTTP, by Starlette and uvicorn.

Only what serves loads it: it costs some 200 ms.

Promises: probes ask nobody and answer at once; from other machines nothing but their words is seen without the token;
nothing is changed over HTTP; no secret and no payload is in any answer; a connection costs little, however slow or
mischievous its other end, and never delays a drain.

`application`  the routes, and who may see what
`responses`    what is answered, as JSON. Pure
`openapi`      the same, described for machines
`cluster_view` what is looked at in a cluster
`limits`       what one connection may cost
`server`       uvicorn in our loop, and where it listens
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.web.application import build
from coterie.web.cluster_view import ClusterView

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from coterie.cluster import Cluster

__all__ = ["app"]


def app(cluster: Cluster) -> Starlette:
    """The probes, health and metrics of a cluster, to be mounted in any ASGI application.

    `cluster.run()` serves it by itself.

    Example:
        ```python
        api = FastAPI(lifespan=cluster.lifespan)
        api.mount("/coterie", coterie.web.app(cluster))
        ```

    Promise:
        Where it is mounted the same rules hold: from other machines, and everywhere if `http_token` is set, nothing but
        the words of the probes is seen without it.
    """
    return build(ClusterView(cluster.settings, cluster._present))  # noqa: SLF001 this house's own
