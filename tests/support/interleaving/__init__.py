"""All orders of two transactions on a real PostgreSQL."""
