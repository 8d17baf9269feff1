"""An experiment in YAML: reading, checking, and building its objects."""
