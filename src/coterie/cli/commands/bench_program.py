"""What the other process of `coterie bench` runs. Its database is that of COTERIE_URL."""

from coterie.cli.commands.bench import program

cluster = program()
