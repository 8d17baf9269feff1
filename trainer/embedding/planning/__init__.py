"""Which rows a chunk needs: planned ahead on the preparing thread, exchanged between processes."""
