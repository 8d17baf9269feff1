"""A trainer for MindSpore: finite datasets and endless streams with one loop."""
