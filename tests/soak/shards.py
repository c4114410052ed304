"""Shards of the soak: what a process does of it, and how what is done survives a kill. By their names processes find these functions,
which a program's own module is no place for.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SHARD = 200


@dataclass
class Shard:
    """One line of the progress file."""

    first: int
    count: int
    version: int
    escapes: list[int] = field(default_factory=list)
    refused: int = 0
    compared: int = 0
    finite: int = 0
    ratio: float = 0.0
    tightest: int = -1
    seconds: float = 0.0


def run_shard(first: int, count: int, folder: str) -> Shard:
    """The cases first to first + count - 1; what escapes is shrunk and stored at once."""
    import torch

    from tests.soak.case import VERSION, draw_any

    torch.set_num_threads(1)
    shard, start = Shard(first, count, VERSION), time.process_time()
    for seed in range(first, first + count):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflow is what many cases are about
            case = draw_any(seed)
            outcome, found = attempt(case)
        if found:
            shard.escapes.append(seed)
            keep(case, found, Path(folder))
        if outcome is None:
            continue
        shard.refused += outcome.refused
        shard.compared += outcome.compared
        shard.finite += outcome.finite
        if outcome.ratio > shard.ratio:
            shard.ratio, shard.tightest = outcome.ratio, seed
    shard.seconds = time.process_time() - start
    return shard


def shard_of(what: tuple[int, int, str]) -> Shard:
    return run_shard(*what)


def attempt(case: Any) -> tuple[Any, list[str]]:
    """The outcome, and what is wrong with it: escapes, or the error that ended the case."""
    from tests.oracle.product_graphs import judge_graph
    from tests.soak.case import GraphCase
    from tests.soak.oracles import judge

    try:
        outcome = judge_graph(case.seed, case.most) if isinstance(case, GraphCase) else judge(case)
    except Exception:
        return None, [traceback.format_exc(limit=-4)]
    return outcome, outcome.escapes


def keep(case: Any, found: list[str], folder: Path) -> None:
    """Stores the case as it was, then the smallest one that fails in the same way."""
    from tests.soak.case import GraphCase
    from tests.soak.shrink import shorten, shrink, store

    store(case, found, folder / "escapes")
    error = found[0].startswith("Traceback")
    last = found[0].strip().splitlines()[-1]

    def fails(smaller: Any) -> bool:
        _, now = attempt(smaller)
        return bool(now) and now[0].startswith("Traceback") == error and (not error or now[0].strip().splitlines()[-1] == last)

    small = shorten(case, fails) if isinstance(case, GraphCase) else shrink(case, fails)
    store(small, attempt(small)[1], folder / "escapes")
    print(f"case {case.seed}: {last}\n  kept in {folder / 'escapes' / str(case.seed)}", file=sys.stderr, flush=True)


# ---- progress ----------------------------------------------------------------------------------------------------------


def read_progress(path: Path, version: int) -> list[Shard]:
    """Finished shards; a line cut off by a kill is not one, and is taken out."""
    if not path.exists():
        return []
    text = path.read_bytes()
    whole = text[: text.rfind(b"\n") + 1]
    os.truncate(path, len(whole))
    lines = [Shard(**json.loads(line)) for line in whole.splitlines()]
    found = list({(s.first, s.count): s for s in lines}.values())  # two runs in one folder may both have done a shard
    if any(s.version != version for s in found):
        raise SystemExit(f"{path} holds cases of another version of the generator: give another --folder")
    return found


def append(path: Path, shard: Shard) -> None:
    with path.open("a") as f:
        f.write(json.dumps(asdict(shard)) + "\n")
        f.flush()
        os.fsync(f.fileno())
