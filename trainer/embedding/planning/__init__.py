"""Plan a chunk's rows ahead of training, and exchange them between processes."""
