"""The soak: many generated networks against all oracles, in shards that a kill cannot lose.

    python -m tests.soak --networks 100000 --jobs 2 --folder build/soak

Every finished shard is one line of FOLDER/progress.jsonl; the same command goes on where the last one stopped. A case that
escapes, or ends in an error, is shrunk and kept under FOLDER/escapes; `--replay FOLDER/escapes/SEED` runs it again, `--case SEED`
one case by its number. Exit code 1 where anything escaped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
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


def summary(shards: Iterable[Shard]) -> str:
    shards = list(shards)
    networks, seconds = sum(s.count for s in shards), sum(s.seconds for s in shards)
    escapes = [e for s in shards for e in s.escapes]
    tightest = max(shards, key=lambda s: s.ratio, default=Shard(0, 0, 0))
    lines = [
        f"{networks:,} networks, {sum(s.compared for s in shards):,} comparisons with {sum(s.finite for s in shards):,} finite bounds, "
        f"{sum(s.refused for s in shards):,} refused, {seconds / max(networks, 1) * 1e3:.1f} ms a network",
        f"escapes: {len(escapes)}" + (f" (cases {', '.join(map(str, escapes[:20]))})" if escapes else ""),
        f"tightest: {tightest.ratio:.6f} of the room for rounding used (case {tightest.tightest})",
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Generated networks against all oracles.")
    parser.add_argument("--networks", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/soak"), help="progress and escapes (default: build/soak)")
    parser.add_argument("--case", type=int, help="run one case and print what it shows")
    parser.add_argument("--replay", type=Path, help="run a kept case again")
    parser.add_argument("--status", action="store_true", help="print what is done, run nothing")
    args = parser.parse_args(argv)
    if args.case is not None or args.replay is not None:
        return _one(args)
    from tests.soak.case import VERSION

    args.folder.mkdir(parents=True, exist_ok=True)
    path = args.folder / "progress.jsonl"
    done = read_progress(path, VERSION)
    if not args.status:
        have = {(s.first, s.count) for s in done}
        end = args.first + args.networks
        wanted = [(a, min(SHARD, end - a)) for a in range(args.first, end, SHARD)]
        todo = [w for w in wanted if w not in have]
        for shard in _shards(todo, args.jobs, str(args.folder)):
            append(path, shard)
            done.append(shard)
            state = f"{sum(s.count for s in done):,} networks, {sum(len(s.escapes) for s in done)} escapes"
            print(f"\r{state}, tightest {max(s.ratio for s in done):.4f}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    print(summary(done))
    return 1 if any(s.escapes for s in done) else 0


def _shards(todo: list[tuple[int, int]], jobs: int, folder: str) -> Iterable[Shard]:
    if jobs <= 1:
        yield from (run_shard(a, n, folder) for a, n in todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_shard_of, [(a, n, folder) for a, n in todo])


def _shard_of(what: tuple[int, int, str]) -> Shard:
    return run_shard(*what)


def _one(args: argparse.Namespace) -> int:
    from polytriton.ir.text import print_net
    from tests.soak.case import GraphCase, draw_any
    from tests.soak.shrink import restore

    case = restore(args.replay) if args.replay else draw_any(args.case)
    outcome, found = attempt(case)
    shown = (case,) if isinstance(case, GraphCase) else (print_net(case.net), case.via, case.knobs)
    print(*shown, outcome if outcome and not found else "", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
