"""Generated kernels at work: launches bound to tensors and played."""
