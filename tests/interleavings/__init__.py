"""Every pair of critical transactions in every order on a real PostgreSQL [RELIABILITY 2c, REVIEW m16]."""
