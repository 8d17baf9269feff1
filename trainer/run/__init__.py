"""Implements calls such as `fit`: loop, hooks, limits, signals, validation, windows."""
