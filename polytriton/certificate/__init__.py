"""Certificates: what an independent checker (`polytriton/checker.py`) needs to confirm an `unsat`."""
