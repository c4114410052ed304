"""The soak: many generated networks against all oracles, in shards that a kill cannot lose.

    python -m tests.soak --networks 100000 --jobs 2 --folder build/soak

Every finished shard is one line of FOLDER/progress.jsonl; the same command goes on where the last one stopped. A case that
escapes, or ends in an error, is shrunk and kept under FOLDER/escapes; `--replay FOLDER/escapes/SEED` runs it again, `--case SEED`
one case by its number. Exit code 1 where anything escaped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.soak.shards import SHARD, Shard, append, attempt, read_progress, run_shard, shard_of


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
        yield from pool.imap_unordered(shard_of, [(a, n, folder) for a, n in todo])


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
