"""Compiled programs: the training step, its builder, precision, boost and losses."""
