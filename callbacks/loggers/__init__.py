"""Loggers send a run's numbers to a backend; `logger.py` has the contract."""
