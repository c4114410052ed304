"""A measuring process's own end of the pipe; it needs the standard library alone, whatever interpreter it runs in."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def serve(answer: Callable[[Message], Message]) -> None:
    """Answers questions until there are no more. What `answer` raises is the answer {"error": ...}."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8") as out:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        for line in sys.stdin:
            try:
                found = answer(json.loads(line))
            except Exception as error:
                lines = [part for part in str(error).splitlines() if part.strip()] or [""]
                found = {"error": f"{type(error).__name__}: {lines[-1].strip()[:300]}"}
            print(json.dumps(found), file=out, flush=True)
