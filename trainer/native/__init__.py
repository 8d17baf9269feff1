"""Below NumPy: loops compiled to machine code, memory that grows in place, sizes that arrays are padded to."""
