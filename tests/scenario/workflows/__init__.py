"""Workflows and units in whole clusters: what becomes of durable work, whoever is lost."""
