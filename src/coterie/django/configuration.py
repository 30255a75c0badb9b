"""The cluster that the settings of a project describe.

`COTERIE["cluster"]` names a cluster that the program makes itself. Otherwise it is made here: with the other keys of
`COTERIE` as its settings, and with the database of `DATABASES["default"]` unless `url` is given.

Django's tests put another database in the place of that one. So its address is looked up each time a runner or client
is made, not once.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import django
from django.apps import apps
from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from coterie.cluster import Cluster
from coterie.errors import ConfigurationError
from coterie.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Mapping

_PATH = "cluster"
"""The key of `COTERIE` that is no setting of a cluster."""
SQLITE_FILE = "coterie.db"
"""The name of our own file, beside that of the project, which is Django's alone."""


class ProjectCluster(Cluster):
    """A cluster on the database of `DATABASES["default"]`, also while tests have put another one in its place."""

    _stored: Settings

    @property
    def settings(self) -> Settings:
        """The settings, with the address of the database as it is now."""
        url = database_url()
        if self._stored.url != url:
            self._stored = self._stored.but(url=url)
        return self._stored

    @settings.setter
    def settings(self, value: Settings) -> None:
        self._stored = value


@cache
def project_cluster() -> Cluster:
    """The cluster of this project, the same one for the whole process.

    Raises:
        ImproperlyConfigured: The settings of the project do not describe one.
    """
    given = _given()
    path = given.pop(_PATH, None)
    if path is not None:
        return _imported(path, given)
    try:
        if "url" in given:
            return Cluster(settings=Settings.load(given, where="settings.COTERIE"))
        return ProjectCluster(settings=Settings.load({**given, "url": database_url()}, where="settings.COTERIE"))
    except ConfigurationError as error:
        raise ImproperlyConfigured(f"settings.COTERIE: {error}") from error


def program_cluster() -> Cluster:
    """The same for a process that is not `manage.py`: Django is set up first, and its apps have defined everything."""
    if not apps.ready:
        django.setup()
    return project_cluster()


def database_url() -> str:
    """The address of the database of `DATABASES["default"]`, for our driver.

    Raises:
        ImproperlyConfigured: It is of a kind that coterie cannot use.
    """
    database: Mapping[str, Any] = project.DATABASES.get("default") or {}
    engine = str(database.get("ENGINE", ""))
    if engine.endswith("sqlite3"):
        return _beside(str(database.get("NAME", "")))
    if "postg" not in engine:  # postgresql, postgis, and back ends of others that are based on these
        kind = engine.rpartition(".")[2] or "missing"
        raise ImproperlyConfigured(
            f'DATABASES["default"] is {kind}, and coterie needs PostgreSQL or SQLite: '
            'write the address of one into COTERIE["url"]'
        )
    return _postgres_url(database)


def _given() -> dict[str, Any]:
    given = getattr(project, "COTERIE", {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"settings.COTERIE is of type {type(given).__name__}, expected a dict of settings")
    return dict(given)


def _imported(path: Any, others: Mapping[str, Any]) -> Cluster:
    if others:
        names = ", ".join(map(str, others))
        raise ImproperlyConfigured(
            f'COTERIE["cluster"] names a cluster that has settings of its own, and COTERIE has {names} too: '
            "move them into its Cluster(…), or leave out cluster"
        )
    try:
        found = import_string(path)
    except (ImportError, TypeError, AttributeError) as error:
        raise ImproperlyConfigured(f'COTERIE["cluster"] is {path!r}, which cannot be imported: {error}') from error
    if not isinstance(found, Cluster):
        raise ImproperlyConfigured(f'COTERIE["cluster"] is {path!r}, which is of type {type(found).__name__}')
    return found


def _beside(name: str) -> str:
    """A file of our own beside that of Django: two libraries must not write one file."""
    if not name or name == ":memory:" or name.startswith("file:"):
        return f"sqlite:///{Path.cwd() / SQLITE_FILE}"
    return f"sqlite:///{Path(name).absolute().with_name(SQLITE_FILE)}"


def _postgres_url(database: Mapping[str, Any]) -> str:
    options: Mapping[str, Any] = database.get("OPTIONS") or {}
    user, password = str(database.get("USER") or ""), str(database.get("PASSWORD") or "")
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    parameters = {
        name: str(options[name]) for name in ("sslmode", "sslrootcert", "sslcert", "sslkey") if name in options
    }
    if host.startswith("/"):  # the folder of a socket
        parameters["host"], host = host, ""
    place = f"[{host}]" if ":" in host else host
    where = f"{login}@{place}" if login else place
    url = f"postgresql://{where}{f':{port}' if port and place else ''}/{quote(str(database.get('NAME', '')), safe='')}"
    if port and not place:
        parameters["port"] = port
    return f"{url}?{urlencode(parameters)}" if parameters else url
