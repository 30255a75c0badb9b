"""Calls between processes: the client side, routing, the server side, broadcasts, calls by name."""
