"""A stream as batches for the feed, alone or shared by several processes."""
