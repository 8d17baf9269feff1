"""Schemas, conversion of JSON, CSV and Arrow to columns, and segment readers."""
