"""The durable key-value store."""
