"""The simulated network: connections, delays, cuts, transports."""
