"""Training on more than one process: who takes part, what they agree on, and how they are started."""
