"""Implements `fit` and the like: loop, hooks, limits, signals, validation."""
