"""Partial evaluation of Triton source text: what a function becomes when its constants are known. Used by kernels.specialise."""
