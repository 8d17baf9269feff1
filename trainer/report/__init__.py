"""Turns a run folder into a self-contained HTML page."""
