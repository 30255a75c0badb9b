"""The simulated event loop: virtual time, tasks, queues, the scheduler that a seed drives."""
