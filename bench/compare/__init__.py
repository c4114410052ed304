"""A peer beside polytriton."""
