"""Plans which rows a chunk needs, ahead of training on the preparing thread, and exchanges them between processes."""
