"""Calls over HTTP: what is offered, the requests, the form of errors, and their part of the OpenAPI document.

Read `offer.py`, `handlers.py`, `errors.py`, `schemas.py`.
"""
