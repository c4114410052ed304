"""The environment of a test's child processes."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def quick_environment(*first: str | Path, **more: str) -> dict[str, str]:
    """This process's, in which a child finds this polytriton, whatever stands in `first` before it, and a quick interpreter of Triton."""
    path = [*map(str, first), str(ROOT / "tests" / "children"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), **more}
