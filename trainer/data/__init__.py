"""From rows to chunks: finite sources, streams as sources, grouping, stacking, prefetching and column checks."""
