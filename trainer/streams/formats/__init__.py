"""Decoding of bytes to columns: schemas, JSON, CSV, Arrow, and readers of segment files."""
