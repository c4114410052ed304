"""Triton kernels: ordinary functions whose shapes are constant parameters."""
