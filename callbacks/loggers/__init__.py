"""Loggers, which send the numbers of a run to a backend such as TensorBoard."""
