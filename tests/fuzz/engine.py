"""Two engines: Atheris, guided by the branches of polytriton's own code, and a plain one that is guided by new messages."""

from __future__ import annotations

import hashlib
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

import polytriton
from tests.fuzz.targets import Finding, Target, kept, outcome

PARTICULARS = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"|[-+\w.]*\d[\w.]*")
LARGEST = 1 << 17
PACKAGE = str(Path(polytriton.__file__).parent)


@dataclass
class Tally:
    """What a run did. `findings` are saved inputs by what they did."""

    executions: int = 0
    seconds: float = 0.0
    outcomes: set[str] = field(default_factory=set)
    findings: dict[str, Path] = field(default_factory=dict)


def kind(message: str) -> str:
    """A message without its numbers and quotations: equal for inputs that failed alike."""
    return PARTICULARS.sub("#", message[:500])[:120]


def save(target: Target, data: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"found-{hashlib.sha256(data).hexdigest()[:12]}"
    path.write_bytes(data)
    return path


def plain(target: Target, seconds: float, seed: int, findings: Path, executions: int | None = None) -> Tally:
    """Mutates seeds and the kept corpus, and whatever led to a new message; ends after `seconds`, or after so many executions."""
    rng, tally, start = random.Random(seed), Tally(), time.monotonic()
    pool = [*target.seeds(), *kept(target.name)]
    fresh: list[bytes] = list(pool)
    while time.monotonic() - start < seconds and (executions is None or tally.executions < executions):
        data = fresh.pop() if fresh else target.mutate(rng.choice(pool), rng)[:LARGEST]
        tally.executions += 1
        try:
            told = kind(outcome(target, data))
        except Finding as error:
            told = kind(str(error))
            if told not in tally.findings:
                tally.findings[told] = save(target, data, findings)
                print(f"{target.name}: {error} ({tally.findings[told]})", flush=True)
            continue
        if told not in tally.outcomes:
            tally.outcomes.add(told)
            pool.append(data)
    tally.seconds = time.monotonic() - start
    return tally


def guided(target: Target, seconds: float, seed: int, findings: Path, corpus: Path) -> None:
    """Atheris: never returns. Inputs that reach new branches are kept in `corpus`."""
    import atheris

    known: dict[str, Path] = {}

    def once(data: bytes) -> None:
        try:
            outcome(target, data)
        except Finding as error:
            told = kind(str(error))
            if told not in known:
                known[told] = save(target, data, findings)
                print(f"{target.name}: {error} ({known[told]})", flush=True)

    def custom(data: bytes, size: int, number: int) -> bytes:
        rng = random.Random(number)
        if rng.random() < 0.15:
            return bytes(atheris.Mutate(data, size))
        return target.mutate(data, rng)[:size]

    corpus.mkdir(parents=True, exist_ok=True)
    for data in [*target.seeds(), *kept(target.name)]:
        (corpus / hashlib.sha1(data).hexdigest()).write_bytes(data)
    options = [
        f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-max_len={LARGEST}", "-timeout=120", "-rss_limit_mb=0",
        "-print_final_stats=1", f"-artifact_prefix={findings}/", "-len_control=0",
    ]  # fmt: skip
    findings.mkdir(parents=True, exist_ok=True)
    atheris.Setup(["fuzz", *options, str(corpus)], once, custom_mutator=custom)
    atheris.Fuzz()


def steps(target: Target, data: bytes) -> set[tuple[str, int, int]]:
    """The steps from line to line that polytriton's own code takes on an input."""
    found: set[tuple[str, int, int]] = set()
    last: dict[int, int] = {}

    def trace(frame: FrameType, event: str, arg: object) -> Callable[..., Any] | None:
        if PACKAGE not in frame.f_code.co_filename:
            return None
        if event == "line":
            found.add((frame.f_code.co_filename, last.get(id(frame), 0), frame.f_lineno))
            last[id(frame)] = frame.f_lineno
        elif event == "call":
            last.pop(id(frame), None)
        return trace

    old = sys.gettrace()
    sys.settrace(trace)
    try:
        outcome(target, data)
    finally:
        sys.settrace(old)
    return found


def keep(target: Target, corpus: Path, folder: Path, most: int = LARGEST >> 2) -> int:
    """Adds to `folder` the smallest inputs of `corpus` that go where the seeds and those already kept do not, up to `most` bytes in all."""
    patient = replace(target, seconds=60.0)
    reached = set().union(*(steps(patient, data) for data in [*target.seeds(), *kept(target.name)]))
    folder.mkdir(parents=True, exist_ok=True)
    size, made = sum(p.stat().st_size for p in folder.iterdir()), 0
    for path in sorted(corpus.iterdir(), key=lambda p: p.stat().st_size):
        data = path.read_bytes()
        more = steps(patient, data) - reached
        if more and size + len(data) <= most:
            (folder / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)
            reached, size, made = reached | more, size + len(data), made + 1
    return made
