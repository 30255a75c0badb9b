"""What doing work on a seat needs, for entities, singletons, crons and workflows alike."""
