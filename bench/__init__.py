"""Figures for this machine, each beside the raw limit of the machine in the same run: `python -m bench --help`."""
