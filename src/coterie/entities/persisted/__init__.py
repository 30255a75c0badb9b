"""Persisted calls: storing, delivering, committing, replying."""
