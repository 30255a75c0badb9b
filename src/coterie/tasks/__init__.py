"""Tasks: functions that run durably, somewhere in the cluster, as jobs of queues."""
