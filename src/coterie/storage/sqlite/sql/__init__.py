"""SQL statements, one file per family of tables."""
