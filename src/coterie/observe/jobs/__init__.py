"""Jobs and their queues as people see them: what is read of them, which are meant, and what is done with them."""
