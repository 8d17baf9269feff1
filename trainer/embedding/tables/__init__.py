"""Host tables: id map, rows, admission, eviction, states, compiled kernels."""
