"""Serves a published model over HTTP: `trainer serve`."""
