"""Migrations of the main file; those of the leases file are in `leases`."""
