"""The steps of this engine's schema, as `NNNN_phase_name.sql` files."""
