"""Schedules and timers from start to end."""
