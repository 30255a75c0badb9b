"""What the other process of `coterie bench` runs. Its database is that of COTERIE_URL."""

from coterie.cli.benching import program

cluster = program()
