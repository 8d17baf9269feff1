"""A published model behind HTTP: `trainer serve`."""
