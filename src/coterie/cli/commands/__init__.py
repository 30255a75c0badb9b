"""One module per command of `coterie`; `cli/__init__.py` has the table of them."""
