"""Probes, health, metrics and the page in the browser over HTTP, with Starlette and uvicorn.

Imported only by processes that serve HTTP: it costs some 200 ms.

Promises: probes of liveness and startup do no I/O, that of readiness waits at most half a second for the database;
clients on other machines see nothing but their status words and the files of the page without the token; nothing is
changed over HTTP by a request that may not act, or that another site's page has sent; nothing is called but what the
setting `http_calls` names, with a token of its own; no response has a secret, nor with `redact` a payload; a connection
costs little, however slow or malicious the client, and never delays a drain.

`application`  the routes
`access`       the access check before them
`responses`    response bodies, as JSON. Pure
`feed`         what changes, as server-sent events
`details`      one thing, or one list
`acts`         what people may do with the page, and the record of it
`calls`        calls of entities, workflows and tasks, for other programs: what is offered, the requests, their errors
`assets`       the files of the page, which are in the folder `page`
`openapi`      the description of the routes for machines
`cluster_view` what is read of a cluster
`limits`       what one connection may cost
`server`       uvicorn in our event loop, and its socket
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coterie.web.application import build
from coterie.web.calls.offer import offer_of
from coterie.web.cluster_view import ClusterView

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from coterie.cluster import Cluster
    from coterie.web.access import Decide

__all__ = ["app"]


def app(cluster: Cluster, *, access: Decide | None = None) -> Starlette:
    """The page, probes, health and metrics of a cluster, to be mounted in any ASGI application.

    `cluster.run()` serves it by itself.

    Args:
        cluster: The cluster, which this process runs or is connected to.
        access: Decides what a request may do: "none", "read" or "act". It replaces the rules of `http_token` and of
            loopback, so it has to authenticate. The setting `web` still limits it.

    Example:
        ```python
        api = FastAPI(lifespan=cluster.lifespan)
        api.mount("/coterie", coterie.web.app(cluster))
        ```

    Promise:
        Without `access`, the same rules hold where it is mounted: from other machines, and everywhere if `http_token`
        is set, nothing but the status words of the probes and the files of the page is visible without the token.
    """
    program = cluster._program  # noqa: SLF001 internal to coterie
    offer = offer_of(
        cluster.settings,
        lambda: program.entities.types,
        lambda: program.workflows.known,
        lambda: program.tasks.known,
    )
    view = ClusterView(cluster.settings, cluster._participant.present, offer=offer)  # noqa: SLF001 as above
    return build(view, decide=access)
