"""Train, resume and compare the runs of experiments."""
