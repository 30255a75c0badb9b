"""Migrations of the leases file: *pre* only, each opener applies them."""
