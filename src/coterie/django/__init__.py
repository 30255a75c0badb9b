"""A Django app: a cluster from `settings.COTERIE` and `DATABASES`, and `manage.py coterie`.

    INSTALLED_APPS = [..., "coterie.django"]
    COTERIE = {"cluster": "shop.cluster.cluster"}       # or settings of a cluster, or nothing

`configuration`  the cluster that the settings of a project describe
`apps`           finds the definitions of the other apps, when Django starts
`checks`         what `manage.py check` says
`management`     `manage.py coterie`: the command line of coterie with the settings of the project
`program`        what `coterie run` loads in processes of its own
`db`             blocking functions that use the ORM, from handlers
`test`           a test case with a runner

Django is imported here only, by programs that use it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.cluster import Cluster

    cluster: Cluster
    """The cluster of this project."""

__all__ = ["cluster"]


def __getattr__(name: str) -> Any:
    if name != "cluster":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from coterie.django.configuration import project_cluster  # the settings are read when it is first used

    return project_cluster()
