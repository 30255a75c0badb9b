"""The statements of this engine, as `.sql` files."""
