"""Beneath NumPy: loops compiled to machine code, memory that grows in place, and the sizes arrays are padded to."""
