"""Histories of runs: events, and a checker for each promise."""
