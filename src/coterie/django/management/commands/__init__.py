"""`manage.py coterie`."""
