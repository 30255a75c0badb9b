"""The app: once the models are loaded it imports the definitions of all apps; and what `manage.py check` says.

coterie.E001  the settings describe no cluster
coterie.E002  the SQLite file is that of Django
coterie.W001  no app defines anything
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.apps import AppConfig
from django.conf import settings as project
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from coterie.django.configuration import project_cluster
from coterie.storage.engines import file_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from coterie.cluster import Cluster

DEFINITIONS = "coterie"
"""The module of each app with its definitions: `shop/coterie.py`."""


class CoterieConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """`INSTALLED_APPS = [..., "coterie.django"]`."""

    name = "coterie.django"
    label = "coterie"
    verbose_name = "coterie"

    def ready(self) -> None:
        """Import the definitions. Nothing is connected: that comes with the first call, or with `coterie run`."""
        checks.register(check_cluster, "coterie")
        try:
            project_cluster()
        except ImproperlyConfigured:
            return  # `check_cluster` says why, and so does the first use
        autodiscover_modules(DEFINITIONS)


def check_cluster(app_configs: Sequence[Any] | None, **_: Any) -> list[Any]:
    """Check the cluster of the project, without connecting."""
    if app_configs is not None and not any(isinstance(each, CoterieConfig) for each in app_configs):
        return []
    try:
        cluster = project_cluster()
    except ImproperlyConfigured as error:
        return [checks.Error(str(error), id="coterie.E001")]
    return [*_check_file(cluster), *_check_definitions(cluster)]


def _check_file(cluster: Cluster) -> list[Any]:
    file = file_of(cluster.settings)
    if file is None:
        return []
    for alias, database in project.DATABASES.items():
        name = str(database.get("NAME", ""))
        if str(database.get("ENGINE", "")).endswith("sqlite3") and name and Path(name).absolute() == file.absolute():
            told = f'the file of the cluster is that of DATABASES["{alias}"]: two libraries must not write one file'
            return [checks.Error(told, hint='leave out COTERIE["url"], or name another file', id="coterie.E002")]
    return []


def _check_definitions(cluster: Cluster) -> list[Any]:
    if any(cluster._program.names().values()):  # noqa: SLF001 internal to coterie
        return []
    hint = "define entities, crons, … in the module coterie.py of an app that is installed"
    return [checks.Warning("no app defines anything for coterie", hint=hint, id="coterie.W001")]
