"""Triton kernels: a library of general ones, and the specialiser that turns them into the short files of one network."""
