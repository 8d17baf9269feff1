"""Callbacks: one file each, `callback.py` holds the contract."""
