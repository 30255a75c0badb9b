"""The cluster that the settings of a Django project describe, and what `manage.py check` says of it."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import django
import pytest
from django.conf import settings as project
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.test.utils import override_settings

import coterie.django
from coterie import Cluster, Entity, rpc

if TYPE_CHECKING:
    from collections.abc import Iterator

if not project.configured:
    project.configure(INSTALLED_APPS=["coterie.django"], DATABASES={}, COTERIE={"url": "sqlite://"})
    django.setup()

from coterie.django import configuration  # the settings come first

pytestmark = pytest.mark.filterwarnings("ignore:Overriding setting DATABASES")

POSTGRES = {"ENGINE": "django.db.backends.postgresql", "NAME": "shop"}


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    configuration.project_cluster.cache_clear()
    yield
    configuration.project_cluster.cache_clear()


def url_of(**database: Any) -> str:
    with override_settings(DATABASES={"default": database}):
        return configuration.database_url()


@pytest.mark.parametrize(
    ("database", "url"),
    [
        (POSTGRES, "postgresql:///shop"),
        (POSTGRES | {"USER": "app", "HOST": "db", "PORT": 5433}, "postgresql://app@db:5433/shop"),
        (POSTGRES | {"USER": "a@b", "PASSWORD": "p:/@%#"}, "postgresql://a%40b:p%3A%2F%40%25%23@/shop"),
        (POSTGRES | {"HOST": "::1", "PORT": "5432"}, "postgresql://[::1]:5432/shop"),
        (POSTGRES | {"HOST": "/run/pg", "USER": "app"}, "postgresql://app@/shop?host=%2Frun%2Fpg"),
        (POSTGRES | {"HOST": "/run/pg", "PORT": 5433}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (POSTGRES | {"HOST": "db", "OPTIONS": {"sslmode": "require"}}, "postgresql://db/shop?sslmode=require"),
        (POSTGRES | {"ENGINE": "django.contrib.gis.db.backends.postgis"}, "postgresql:///shop"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": Path("/srv/db.sqlite3")}, "sqlite:////srv/coterie.db"),
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, f"sqlite:///{Path.cwd()}/coterie.db"),
    ],
)
def test_the_database_is_that_of_django(database: dict[str, Any], url: str) -> None:
    assert url_of(**database) == url
    with override_settings(DATABASES={"default": database}, COTERIE={}):
        assert configuration.project_cluster().settings.url == url


def test_the_database_of_the_tests_takes_its_place() -> None:
    database = dict(POSTGRES)
    with override_settings(DATABASES={"default": database}, COTERIE={"shards": 7}):
        cluster = configuration.project_cluster()
        assert cluster is configuration.project_cluster()
        assert cluster.settings.url == "postgresql:///shop"
        database["NAME"] = "test_shop"  # as Django does
        assert (cluster.settings.url, cluster.settings.shards) == ("postgresql:///test_shop", 7)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"COTERIE": []}, "settings.COTERIE is of type list, expected a dict of settings"),
        ({"COTERIE": {"url": "sqlite://", "lease_tll": "6s"}}, 'unknown setting "lease_tll" in settings.COTERIE'),
        ({"COTERIE": {"url": "sqlite://", "drain": "soon"}}, 'drain is "soon"'),
        ({"COTERIE": {"cluster": "no.such.cluster"}}, "'no.such.cluster', which cannot be imported"),
        ({"COTERIE": {"cluster": "coterie"}}, "'coterie', which cannot be imported"),
        ({"COTERIE": {"cluster": 7}}, "is 7, which cannot be imported"),
        ({"COTERIE": {"cluster": "coterie.Entity"}}, "is 'coterie.Entity', which is of type type"),
        ({"COTERIE": {"cluster": "a.b", "shards": 3}}, "COTERIE has shards too"),
        (
            {"COTERIE": {}, "DATABASES": {"default": {"ENGINE": "django.db.backends.mysql"}}},
            "is mysql, and coterie needs",
        ),
        ({"COTERIE": {}, "DATABASES": {}}, "is missing, and coterie needs PostgreSQL or SQLite"),
    ],
)
def test_wrong_settings_are_told_by_the_check_and_by_the_first_use(settings: dict[str, Any], said: str) -> None:
    with override_settings(**settings):
        (told,) = checks.run_checks(tags=["coterie"])
        assert said in told.msg
        assert (told.id, told.is_serious()) == ("coterie.E001", True)
        with pytest.raises(ImproperlyConfigured) as raised:
            _ = coterie.django.cluster
        assert str(raised.value) == told.msg


def test_a_password_is_in_no_message() -> None:
    database = POSTGRES | {"PASSWORD": "hunter2", "PORT": "port", "HOST": "db"}
    with override_settings(DATABASES={"default": database}, COTERIE={"drain": "soon"}):
        (told,) = checks.run_checks(tags=["coterie"])
        assert "hunter2" not in str(told)


def test_the_file_of_django_is_refused(tmp_path: Path) -> None:
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": tmp_path / "db.sqlite3"}
    with override_settings(DATABASES={"default": database}, COTERIE={"url": f"sqlite:///{tmp_path}/db.sqlite3"}):
        assert [each.id for each in checks.run_checks(tags=["coterie"])] == ["coterie.E002", "coterie.W001"]
    configuration.project_cluster.cache_clear()
    with override_settings(DATABASES={"default": database}, COTERIE={}):
        assert [each.id for each in checks.run_checks(tags=["coterie"])] == ["coterie.W001"]


def test_a_program_may_make_its_cluster_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    class Shelf(Entity[None]):
        @rpc
        async def name(self) -> str:
            return self.id

    module: Any = ModuleType("own_program")
    module.made = Cluster("sqlite://")
    module.made.entity(Shelf)
    monkeypatch.setitem(sys.modules, "own_program", module)
    with override_settings(COTERIE={"cluster": "own_program.made"}):
        assert configuration.project_cluster() is module.made
        assert checks.run_checks(tags=["coterie"]) == []
