"""What is compiled: the training step and its builder, precision, boost, losses, and how a program is called."""
