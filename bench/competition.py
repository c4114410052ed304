"""Which benchmarks of a competition load and are bounded: one line a kind of network, one a benchmark.

    python -m bench.competition FOLDER [--only BENCHMARK ...] [--timeout 20] [--one-bound] [--semantics real] [--csv OUT.csv]

FOLDER holds a checkout of a year's benchmarks: FOLDER/BENCHMARK/instances.csv (BENCHMARK_instances.csv in 2021) names networks and
properties, which may be `.gz`. Networks of one kind have the same operators, each as often, and the same input; the first instance of a
kind is verified in a process of its own. A kind loads where `polytriton verify` accepts its network and property, and is bounded where
the verdict or a finite margin says so. With --one-bound nothing follows the bound, neither falsifier nor search, so that a generous
limit costs only where a bound takes long.
Exit code 1 where fewer than `--goal` of the benchmarks whose files are there load and are bounded.
"""

from __future__ import annotations

import csv
import gzip
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx

from bench.core.command import parser
from bench.core.machine import describe
from bench.core.table import Row, Table

COLUMNS = (
    "benchmark", "networks", "input", "operators", "property", "loads", "bounded", "asked", "verdict", "margin", "seconds", "message",
)  # fmt: skip
SHOWN = ("benchmark", "networks", "loads", "bounded", "verdict", "seconds", "message")
GRACE = 300.0  # seconds beyond the limit: a process that reads a large property, or is stopped late
POINTER = b"version https://git-lfs"
TOUCHED = ("loads", "bounded")
ALONE = ("--search", "none", "--no-falsify")  # of `polytriton verify`: one bound


@dataclass
class Kind:
    """Networks of the same operators and input; `instance` is the first that is listed, a network and a property."""

    operators: str
    input: str
    instance: tuple[Path, Path]
    networks: set[Path] = field(default_factory=set)


def unpack(path: Path) -> bytes | None:
    """The bytes of the file or of its `.gz`; None where neither is there, or a pointer is."""
    for found in (path, path.with_name(path.name + ".gz")):
        if found.is_file():
            data = gzip.decompress(found.read_bytes()) if found.suffix == ".gz" else found.read_bytes()
            return None if data.startswith(POINTER) else data
    return None


def signature(data: bytes) -> tuple[str, str]:
    """Operators with their counts, and the shapes of inputs that are no weights."""
    model = onnx.load_model_from_string(data)
    held = {t.name for t in model.graph.initializer}
    given = [value.type.tensor_type.shape.dim for value in model.graph.input if value.name not in held]
    shapes = [[d.dim_value or d.dim_param or "?" for d in dims] for dims in given]
    counts = Counter(node.op_type for node in model.graph.node)
    return " ".join(f"{op}:{count}" for op, count in sorted(counts.items())), "; ".join("x".join(map(str, s)) for s in shapes)


def find_lists(folder: Path) -> list[Path]:
    """Each benchmark's list of instances."""
    return sorted(p for p in folder.glob("*/*instances.csv") if p.name in ("instances.csv", f"{p.parent.name}_instances.csv"))


def instances(benchmark: Path) -> Iterator[tuple[Path, Path]]:
    with next(p for p in find_lists(benchmark.parent) if p.parent == benchmark).open(newline="", encoding="utf-8") as f:
        for row in csv.reader(f):
            if len(row) >= 2:
                yield benchmark / row[0].strip(), benchmark / row[1].strip()


def kinds(benchmark: Path, scratch: Path) -> tuple[list[Kind], int]:
    """The kinds of networks whose files are there, unpacked into `scratch`; and how many networks are not."""
    found: dict[tuple[str, str], Kind] = {}
    seen: dict[Path, Kind | None] = {}
    for network, prop in instances(benchmark):
        if network not in seen:
            data = unpack(network)
            seen[network] = None
            if data is not None:
                key = signature(data)
                place = scratch / benchmark.name / network.name.removesuffix(".gz")
                kind = seen[network] = found.setdefault(key, Kind(*key, (place, prop)))
                if not kind.networks:
                    kind.instance[0].parent.mkdir(parents=True, exist_ok=True)
                    kind.instance[0].write_bytes(data)
                kind.networks.add(network)
    return list(found.values()), sum(kind is None for kind in seen.values())


def verify(network: Path, prop: Path, timeout: float, semantics: str, more: Sequence[str] = ()) -> Row:
    """What the command answers, in the columns of a kind."""
    prop = prop if prop.is_file() else prop.with_name(prop.name + ".gz")
    command = [sys.executable, "-m", "polytriton", "verify", str(network), str(prop), "--semantics", semantics, *more]
    done = finish([*command, "--timeout", f"{timeout:g}", "--json", "-"], timeout + GRACE)
    if isinstance(done, str):
        return {"loads": False, "bounded": False, "message": done}
    record = json.loads(next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{")))
    verdict, margin = record["verdict"], record["margin"]
    bounded = verdict in ("unsat", "sat") or (margin is not None and math.isfinite(margin))
    row: Row = {"bounded": bounded, "verdict": verdict, "margin": margin, "seconds": record["seconds"]}
    if verdict == "timeout" and margin is None:  # a limit that ends first does not say whether it loads
        done = finish([*command, "--prepare"], timeout + GRACE)
        return row | {"loads": not isinstance(done, str), "message": done if isinstance(done, str) else ""}
    return row | {"loads": True, "message": ""}


def finish(command: Sequence[str], limit: float) -> subprocess.CompletedProcess[str] | str:
    """The process that ended well, or what is said of it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return f"no answer within {limit:g} s"
    return done if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[0]


def summary(rows: Sequence[Row], absent: dict[str, int]) -> tuple[list[str], float]:
    """A line a benchmark, and the share of those whose files are there that load and are bounded whole."""
    lines, whole, there = [], 0, 0
    for name, missing in absent.items():
        mine = [r for r in rows if r["benchmark"] == name]
        loads, bounded = (sum(bool(r[c]) for r in mine) for c in TOUCHED)
        there += bool(mine)
        whole += bool(mine) and bounded == len(mine)
        gone = f", {missing} network{'s' * (missing > 1)} absent" if missing else ""
        lines.append(f"{name}: {loads} of {len(mine)} kinds load, {bounded} bounded{gone}" if mine else f"{name}: files absent")
    return lines, whole / max(there, 1)


def main(arguments: Sequence[str] | None = None) -> int:
    p = parser("competition", __doc__)
    p.add_argument("folder", type=Path)
    p.add_argument("--only", nargs="+", metavar="BENCHMARK")
    p.add_argument("--timeout", type=float, default=20.0, help="seconds a kind (20)")
    p.add_argument("--one-bound", action="store_true", help="neither falsifier nor search")
    p.add_argument("--semantics", default="real", help="real, as competitions read properties")
    p.add_argument("--goal", type=float, default=0.8, help="share of benchmarks (0.8)")
    p.add_argument("--scratch", type=Path, default=Path("build/competition"), help="where networks are unpacked")
    p.add_argument("--csv", type=Path)
    a = p.parse_args(arguments)
    benchmarks = [f.parent for f in find_lists(a.folder) if not a.only or f.parent.name in a.only]
    if not benchmarks:
        print(f"{a.folder} holds no BENCHMARK/instances.csv{' of these names' if a.only else ''}", file=sys.stderr)
        return 2
    table = Table(COLUMNS, a.csv, describe(), SHOWN)
    absent: dict[str, int] = {}
    more = ALONE if a.one_bound else ()
    for at, benchmark in enumerate(benchmarks):
        print(f"{benchmark.name}, {at + 1} of {len(benchmarks)}", file=sys.stderr, flush=True)
        found, absent[benchmark.name] = kinds(benchmark, a.scratch)
        for kind in found:
            said: Row = {"benchmark": benchmark.name, "networks": len(kind.networks), "input": kind.input, "operators": kind.operators}
            said["asked"] = "one bound" if a.one_bound else "all"
            table.add(said | {"property": kind.instance[1].name} | verify(*kind.instance, a.timeout, a.semantics, more))
    table.close()
    lines, share = summary(table.rows, absent)
    print("\n".join(["", *lines, f"{share:.0%} of the benchmarks whose files are there load and are bounded, every kind"]))
    return 0 if share >= a.goal else 1


if __name__ == "__main__":
    raise SystemExit(main())
