"""The SQLite engine beyond the contract: files, threads, locks, processes."""
