"""Statements that write many rows at once, and their shorter forms for a single row."""
