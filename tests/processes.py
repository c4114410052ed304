"""The environment of a test's child processes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def plain_environment(**more: str) -> dict[str, str]:
    """This process's, in which a child finds this polytriton."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def quick_environment(*first: str | Path, **more: str) -> dict[str, str]:
    """The same, in which it also finds whatever stands in `first`, and a quick interpreter of Triton."""
    path = [*map(str, first), str(ROOT / "tests" / "children"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}
