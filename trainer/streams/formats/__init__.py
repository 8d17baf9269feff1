"""Formats: schemas; JSON, CSV and Arrow to columns; readers of segment files."""
