"""Published properties that one bound decides, asked of an earlier checkout and of this one in turns: which became slower.

    python -m bench.turns --before FOLDER [--data DIR] [--semantics real] [--rounds 5] [--only GROUP_OR_ID ...] [--all] [--csv OUT.csv]

FOLDER is a checkout of an earlier commit. Each side is a process that stays warm, with one thread; whoever begins a round ends the one
before. Times are CPU seconds, medians of the rounds but the first, which warms up. `--all` asks every property, not only those that one
bound decides. Exit code 1 where a verdict differs, or a query takes more than 10 % and more than 20 ms longer.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

COLUMNS = ("network", "benchmark", "id", "verdict", "before", "after", "slower", "ratio", "first_before", "first_after", "runs", "note")
SHARE, SECONDS = 0.1, 0.02  # more than both is slower
TIMEOUT = 60.0


class Checkout:
    """A process that asks the polytriton of a folder."""

    def __init__(self, folder: Path) -> None:
        env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}  # one thread of torch's, too
        command = [sys.executable, str(Path(__file__).resolve()), "--answer"]
        self.process = subprocess.Popen(command, env=env, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.process.args!r} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def answer_questions() -> None:
    """One side's process: it knows the standard library and what its own checkout calls polytriton."""
    sys.path.pop(0)  # this file's folder
    import polytriton

    nets: dict[str, Any] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["net"] not in nets:
            nets.clear()
            nets[asked["net"]] = polytriton.compile(asked["net"], semantics=asked["semantics"])
        start = time.process_time()
        got = nets[asked["net"]].verify_property(asked["spec"], timeout=TIMEOUT)
        print(json.dumps({"seconds": time.process_time() - start, "verdict": got.verdict}), flush=True)


def main() -> int:
    from bench.core.command import check_checkout, parser
    from bench.core.machine import data_folder, describe
    from bench.core.table import Table, read_rows
    from bench.instances import benchmark, select

    p = parser("turns", __doc__)
    p.add_argument("--before", type=Path, required=True)
    p.add_argument("--data", type=Path)
    p.add_argument("--semantics", default="real")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--only", nargs="*", default=[])
    p.add_argument("--all", action="store_true")
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    check_checkout(p, a.before)
    data = (a.data or data_folder()).resolve()
    rows = [r for r in select(read_rows(data / "instances.csv"), a.only, undecided=False) if a.all or decided_by_one_bound(r)]
    sides = [Checkout(a.before.resolve()), Checkout(Path(__file__).resolve().parents[1])]
    table = Table(COLUMNS, a.csv, {"part": "turns", **describe("cpu", 1)}, COLUMNS[2:9] + COLUMNS[11:])
    for r in rows:
        question = {"net": str(data / r["net"]), "spec": str(data / r["spec"]), "semantics": a.semantics}
        table.add({"network": Path(r["net"]).stem, "benchmark": benchmark(r), "id": r["id"], **in_turns(sides, question, a.rounds)})
    for side in sides:
        side.end()
    table.close()
    return int(any(row["note"] for row in table.rows))


def decided_by_one_bound(row: dict[str, str]) -> bool:
    return row["crown_verified"] == "1" or row["verdict"] == "sat"


def in_turns(sides: list[Checkout], question: dict[str, Any], rounds: int) -> dict[str, Any]:
    """One property's row."""
    told: list[list[dict[str, Any]]] = [[], []]
    for k in range(rounds):
        for side in (0, 1) if k % 2 == 0 else (1, 0):
            told[side].append(sides[side].ask(question))
    before, after = (statistics.median(t["seconds"] for t in some[1:] or some) for some in told)
    verdicts = [some[0]["verdict"] for some in told]
    slower = after > (1 + SHARE) * before and after > before + SECONDS
    return {
        "verdict": verdicts[1],
        "before": before,
        "after": after,
        "slower": after - before,
        "ratio": after / max(before, 1e-9),
        "first_before": told[0][0]["seconds"],
        "first_after": told[1][0]["seconds"],
        "runs": max(1, rounds - 1),
        "note": f"was {verdicts[0]}" if verdicts[0] != verdicts[1] else "slower" if slower else "",
    }


if __name__ == "__main__":
    if sys.argv[1:] == ["--answer"]:
        answer_questions()
    else:
        sys.exit(main())
