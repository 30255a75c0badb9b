"""`python -m coterie.cli`: the command, for whoever starts workers with the interpreter that runs him."""

from coterie.cli import main

main()
