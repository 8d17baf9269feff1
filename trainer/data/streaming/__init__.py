"""Sources that read streams in batches, in one process or shared by several."""
