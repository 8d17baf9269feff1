"""Runs of experiments: their folders, training, resuming, comparing."""
