"""The graph oracle at work: ONNX graphs run operator by operator against what polytriton says of them, in shards that a kill cannot lose.

    python -m tests.oracle.graphs --graphs 100000 --rule all --semantics float32 --jobs 2 --folder build/graphs

Graphs are shared out evenly among the rules. Every finished shard is one line of FOLDER/SEMANTICS/RULE/progress.jsonl; the same command
goes on where the last one stopped. A graph that escapes, or ends in an error, is kept under FOLDER/SEMANTICS/RULE/escapes;
`--replay` of such a folder runs it again, `--case RULE:SEED` draws one graph by its number. Exit code 1 where anything escaped.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tests.oracle.graphs.draw import RULES, VERSION, draw
from tests.oracle.graphs.judge import SEMANTICS
from tests.oracle.graphs.keep import attempt, restore
from tests.oracle.graphs.shards import Work, run_shard
from tests.soak.shards import SHARD, Shard, append, read_progress


def line(rule: str, shards: list[Shard]) -> str:
    """One rule's part of the summary."""
    graphs, seconds = sum(s.count for s in shards), sum(s.seconds for s in shards)
    escapes = [e for s in shards for e in s.escapes]
    tightest = max(shards, key=lambda s: s.ratio, default=Shard(0, 0, 0))
    shown = f" ({', '.join(map(str, escapes[:8]))})" if escapes else ""
    return (
        f"{rule:22s} {graphs:7,} graphs {seconds / max(graphs, 1) * 1e3:6.1f} ms {sum(s.finite for s in shards):10,} bounds "
        f"{sum(s.refused for s in shards):6,} refused  tightest {tightest.ratio:.4f} ({tightest.tightest})  escapes {len(escapes)}{shown}"
    )


def summary(done: dict[str, list[Shard]]) -> str:
    every = [s for shards in done.values() for s in shards]
    graphs, escapes = sum(s.count for s in every), sum(len(s.escapes) for s in every)
    total = f"{graphs:,} graphs, {sum(s.compared for s in every):,} comparisons, {escapes} escapes"
    return "\n".join([*(line(rule, shards) for rule, shards in done.items() if shards), total])


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.oracle.graphs", description="Generated ONNX graphs against polytriton.")
    parser.add_argument("--graphs", type=int, default=100_000, help="of all rules together")
    parser.add_argument("--rule", default="all", choices=("all", *RULES), metavar="NAME", help=f"all, or one of {', '.join(RULES)}")
    parser.add_argument("--semantics", default="float32", choices=SEMANTICS)
    parser.add_argument("--first", type=int, default=0, help="number of each rule's first graph")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--folder", type=Path, default=Path("build/graphs"), help="progress and escapes (default: build/graphs)")
    parser.add_argument("--case", metavar="RULE:SEED", help="run one graph and print what it shows")
    parser.add_argument("--replay", type=Path, help="run a kept graph again")
    parser.add_argument("--status", action="store_true", help="print what is done, run nothing")
    args = parser.parse_args(argv)
    if args.case is not None or args.replay is not None:
        return _one(args)
    rules = list(RULES) if args.rule == "all" else [args.rule]
    done, todo = _plan(args, rules)
    if not args.status:
        for rule, shard in _shards(todo, args.jobs):
            append(_progress(args, rule), shard)
            done[rule].append(shard)
            every = [s for shards in done.values() for s in shards]
            state = f"{sum(s.count for s in every):,} graphs, {sum(len(s.escapes) for s in every)} escapes"
            print(f"\r{state}, now {rule:22s}", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
    print(summary(done))
    return 1 if any(s.escapes for shards in done.values() for s in shards) else 0


def _progress(args: argparse.Namespace, rule: str) -> Path:
    folder: Path = args.folder / args.semantics / rule
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "progress.jsonl"


def _plan(args: argparse.Namespace, rules: list[str]) -> tuple[dict[str, list[Shard]], list[Work]]:
    """What is done of each rule, and the shards that are left, the rules in turn."""
    done: dict[str, list[Shard]] = {}
    todo: list[list[Work]] = []
    for k, rule in enumerate(rules):
        path = _progress(args, rule)
        done[rule] = read_progress(path, VERSION)
        have = {(s.first, s.count) for s in done[rule]}
        end = args.first + args.graphs // len(rules) + (k < args.graphs % len(rules))
        wanted = [(a, min(SHARD, end - a)) for a in range(args.first, end, SHARD)]
        todo.append([(args.semantics, rule, a, n, str(path.parent)) for a, n in wanted if (a, n) not in have])
    longest = max(map(len, todo), default=0)
    return done, [t[i] for i in range(longest) for t in todo if i < len(t)]


def _shards(todo: list[Work], jobs: int) -> Iterator[tuple[str, Shard]]:
    if jobs <= 1:
        yield from map(run_shard, todo)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        found: Iterable[Any] = pool.imap_unordered(run_shard, todo)
        yield from found


def _one(args: argparse.Namespace) -> int:
    import onnx

    if args.replay:
        graph, semantics = restore(args.replay)
    else:
        rule, seed = args.case.split(":")
        graph, semantics = draw(rule, int(seed)), args.semantics
    outcome, found = attempt(graph, semantics)
    print(onnx.printer.to_text(graph.proto))
    print(json.dumps({"lo": graph.lo.tolist(), "hi": graph.hi.tolist()}), outcome if not found else "", *found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
