"""Every pair of critical transactions in every order on a real PostgreSQL [m16]."""
