"""Turns a run folder into one self-contained HTML page."""
