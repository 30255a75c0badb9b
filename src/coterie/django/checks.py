"""What `manage.py check` says of the settings of a project. Nothing is connected.

coterie.E001  the settings describe no cluster
coterie.E002  the SQLite file is that of Django
coterie.W001  no app defines anything
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.conf import settings as project
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from coterie.django.configuration import project_cluster
from coterie.storage.engines import file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cluster import Cluster


def check_cluster(app_configs: Sequence[Any] | None, **_: Any) -> list[Any]:
    """Check the cluster of the project."""
    if app_configs is not None and not any(each.name == "coterie.django" for each in app_configs):
        return []
    try:
        cluster = project_cluster()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="coterie.E001")]
    return [*_file(cluster), *_definitions(cluster)]


def _file(cluster: Cluster) -> list[Any]:
    file = file_of(cluster.settings)
    if file is None:
        return []
    for alias, database in project.DATABASES.items():
        name = str(database.get("NAME", ""))
        if str(database.get("ENGINE", "")).endswith("sqlite3") and name and Path(name).absolute() == file.absolute():
            told = f'the file of the cluster is that of DATABASES["{alias}"]: two libraries must not write one file'
            return [checks.Error(told, hint='leave out COTERIE["url"], or name another file', id="coterie.E002")]
    return []


def _definitions(cluster: Cluster) -> list[Any]:
    if any(cluster._program.names().values()):  # noqa: SLF001 internal to coterie
        return []
    hint = "define entities, crons, … in the module coterie.py of an app that is installed"
    return [checks.Warning("no app defines anything for coterie", hint=hint, id="coterie.W001")]
