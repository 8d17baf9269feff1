"""Plans a chunk's rows ahead of training, and exchanges them among processes."""
