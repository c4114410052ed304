"""What a process does of the graph oracle's work. By its name processes find it, which a program's own module is no place for."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from tests.oracle.graphs.draw import VERSION, draw
from tests.oracle.graphs.keep import attempt, store
from tests.soak.shards import Shard

Work = tuple[str, str, int, int, str]  # semantics, rule, first graph, count, folder


def run_shard(work: Work) -> tuple[str, Shard]:
    """One rule's graphs first to first + count - 1; what escapes is stored at once."""
    import torch

    torch.set_num_threads(1)
    semantics, rule, first, count, folder = work
    shard, start = Shard(first, count, VERSION), time.process_time()
    for seed in range(first, first + count):
        graph = draw(rule, seed)
        outcome, found = attempt(graph, semantics)
        if found:
            shard.escapes.append(seed)
            at = store(graph, semantics, found, Path(folder) / "escapes")
            print(f"{rule} {seed}: {found[0].strip().splitlines()[-1]}\n  kept in {at}", file=sys.stderr, flush=True)
        if outcome is None:
            continue
        shard.refused += outcome.refused
        shard.compared += outcome.compared
        shard.finite += outcome.finite
        if not found and outcome.ratio > shard.ratio:
            shard.ratio, shard.tightest = outcome.ratio, seed
    shard.seconds = time.process_time() - start
    return rule, shard
