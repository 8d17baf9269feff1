"""Compiled loops, memory that grows in place, and padded sizes of arrays."""
