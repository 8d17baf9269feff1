"""From rows to chunks: sources, grouping, stacking, prefetching, column checks."""
