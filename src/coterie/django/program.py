"""What the processes of `manage.py coterie run` load: Django is set up, and its apps have defined everything."""

from __future__ import annotations

import django
from django.apps import apps

from coterie.django.configuration import project_cluster

if not apps.ready:
    django.setup()

cluster = project_cluster()
