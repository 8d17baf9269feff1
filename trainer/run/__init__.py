"""One call of a verb: loop, hooks, limits, signals, validation and windows."""
