"""Loggers: send the numbers of a run to a backend. `logger.py` holds the contract; each backend is one file."""
