"""Probes, health, metrics and the read model over HTTP, with Starlette and uvicorn.

Imported only by processes that serve HTTP: it costs some 200 ms.

Promises: probes of liveness and startup do no I/O, and all probes answer at once; clients on other machines see nothing
but their status words without the token; nothing is changed over HTTP; no response has a secret or a payload; a
connection costs little, however slow or malicious the client, and never delays a drain.

`application`  the routes, and the access check
`responses`    response bodies, as JSON. Pure
`openapi`      their description for machines
`cluster_view` what is read of a cluster
`limits`       what one connection may cost
`server`       uvicorn in our event loop, and its socket
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
        The same access rules hold where it is mounted: from other machines, and everywhere if `http_token` is set,
        nothing but the status words of the probes is visible without the token.
    """
    return build(ClusterView(cluster.settings, cluster._present))  # noqa: SLF001 internal to coterie
