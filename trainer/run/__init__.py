"""One call of a verb: the loop with its hooks, limits, signals, validation and online windows."""
