"""Tables on the host: id map, rows, admission, eviction, states, and compiled kernels."""
