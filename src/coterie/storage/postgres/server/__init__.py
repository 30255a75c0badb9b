"""The server at the start: whether it keeps the promises, and the schema in it."""
