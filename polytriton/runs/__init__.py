"""Queries as plain data, one answered, the loop over many, and the files their records stream to."""
