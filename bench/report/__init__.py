"""Runs as a page, compared."""
