"""Shared by entities, singletons, crons and workflows: checks of definitions, time limits, the pruner."""
