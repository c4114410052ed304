"""Queries as plain data, one answered, the loop over many, the files their records stream to, and who works a run's tasks.

That is this process (`local`), worker processes (`processes`) or a Ray cluster (`cluster`).
"""
