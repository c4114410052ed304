"""Kernels and networks on an NVIDIA GPU."""
