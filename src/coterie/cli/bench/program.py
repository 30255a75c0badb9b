"""The program of the other process of `coterie bench`. Its database is that of COTERIE_URL."""

from coterie.cli.bench import program

cluster = program()
