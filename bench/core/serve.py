"""A measuring process's own end; it needs the standard library alone, whatever interpreter it runs in."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Message = dict[str, Any]


def speak_json(answer: Callable[[Message], Message]) -> Callable[[bytes], bytes]:
    """The handler of a worker that is asked and answers in JSON."""
    return lambda data: json.dumps(answer(json.loads(data))).encode()
