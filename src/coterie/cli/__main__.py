"""`python -m coterie.cli`: the command, used to start workers with the same interpreter."""

from coterie.cli import main

main()
