"""Persisted calls: store a message, deliver it to its owner, commit the handler's effects, reply."""
