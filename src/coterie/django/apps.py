"""The app: once the models are loaded, it imports the definitions of all apps, each from its module `coterie`."""

from __future__ import annotations

from django.apps import AppConfig
from django.core.checks import register
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from coterie.django.checks import check_cluster
from coterie.django.configuration import project_cluster

DEFINITIONS = "coterie"
"""The module of each app with its definitions: `shop/coterie.py`."""


class CoterieConfig(AppConfig):  # type: ignore[misc] # Django has no types
    """`INSTALLED_APPS = [..., "coterie.django"]`."""

    name = "coterie.django"
    label = "coterie"
    verbose_name = "coterie"
    default = True

    def ready(self) -> None:
        """Import the definitions. Nothing is connected: that comes with the first call, or with `coterie run`."""
        register(check_cluster, "coterie")
        try:
            project_cluster()
        except ImproperlyConfigured:
            return  # `check_cluster` says why, and so does the first use
        autodiscover_modules(DEFINITIONS)
