"""A stream as batches for the feed, in one process or shared by several."""
