"""Read and check an experiment in YAML, and build its objects."""
