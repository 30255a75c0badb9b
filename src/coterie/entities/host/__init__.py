"""Where entities live: activation, mailboxes, handlers."""
