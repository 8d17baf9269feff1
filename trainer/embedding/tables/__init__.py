"""Tables on the host: id map, rows, admission, eviction, their states, and the kernels that loop over them."""
