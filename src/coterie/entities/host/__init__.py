"""Hosts the active entities of a runner: activation, mailboxes, handlers, deactivation."""
