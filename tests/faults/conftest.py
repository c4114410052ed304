"""The command line's fixtures serve here too."""

from __future__ import annotations

from tests.cli.conftest import cli, here, poly

__all__ = ["cli", "here", "poly"]
