"""The key of a record: it names a query and everything that its answer depends on."""

from __future__ import annotations

import hashlib
from collections import Counter

import polytriton
from polytriton.runs.asker import Opened, Settings


class Keys:
    """Keys of one run. The same question twice in one list is two lines of results."""

    def __init__(self) -> None:
        self._seen: Counter[str] = Counter()

    def key(self, identity: str, opened: Opened, settings: Settings) -> str:
        o, s = opened, settings
        sha = f"{o.sha256} {o.output}" if o.sha256 else ""
        searched = (*(() if s.search == "none" else (s.search,)), *((o.method,) if o.method else ()))
        how = (o.semantics, o.dtype, o.numerics, o.candidates, s.falsify, s.seed, polytriton.__version__, *searched)
        base = repr((sha, identity, *how))
        self._seen[base] += 1
        return hashlib.sha256(f"{base} {self._seen[base]}".encode()).hexdigest()[:24]
