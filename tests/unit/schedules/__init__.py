"""Schedules: what is decided, without a database."""
