"""The interpreter of Plans: a program walked step by step on torch tensors, with compiled loops."""
