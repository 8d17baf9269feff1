"""Loggers: where the numbers of a run go. `logger.py` holds the contract, every backend is one file."""
