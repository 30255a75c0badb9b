"""Migrations of the main file; those of the leases file lie in `leases`."""
