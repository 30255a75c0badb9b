"""SQL statements, one file per thing that is stored."""
