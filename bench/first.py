"""What a first answer costs: CPU seconds of processes that do one thing and end.

    python -m bench.first [--before FOLDER] [--artifact NET.poly] [--rounds 7] [--csv OUT.csv]

`verify`: `polytriton verify --device interpret` of the smallest example; with `--before`, a checkout of an earlier commit, in turns with
it. `open`: an artifact with kernels is opened (`polytriton compile NET.onnx --target cuda:90` writes one): what it holds is checked, and
nothing is emitted or compiled. `seconds` are those behind the imports of torch and Triton, `process` all of the process; medians of the
rounds.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from bench.core.command import check_checkout, parser
from bench.core.machine import ROOT, describe
from bench.core.table import Table

COLUMNS = ("asked", "side", "kernels", "seconds", "process", "runs")
EXAMPLE = ("digits_conv_normal.onnx", "specs/digits_conv_normal_35_0.01.vnnlib")
BEGIN = "import time, torch, triton, polytriton.api, polytriton.cli; begun = time.process_time(); "
END = "; print(json.dumps([time.process_time() - begun, time.process_time(), found]))"
VERIFY = f"import json, sys; {BEGIN}found = polytriton.cli.main(['verify', *sys.argv[1:], '--device', 'interpret']){END}"
OPEN = f"import json, sys; {BEGIN}found = len(polytriton.load(sys.argv[1], device='interpret')._kernels.reports){END}"


def main() -> int:
    p = parser("first", __doc__)
    p.add_argument("--before", type=Path)
    p.add_argument("--artifact", type=Path)
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--csv", type=Path)
    a = p.parse_args()
    if a.before is not None:
        check_checkout(p, a.before)
    table = Table(COLUMNS, a.csv, {"part": "first", **describe("cpu", 1)}, COLUMNS)
    sides = {"now": ROOT} if a.before is None else {"before": a.before.resolve(), "now": ROOT}
    example = [str(ROOT / "examples" / name) for name in EXAMPLE]
    asked = [("verify", side, folder, VERIFY, example) for side, folder in sides.items()]
    if a.artifact is not None:
        asked.append(("open", "now", ROOT, OPEN, [str(a.artifact.resolve())]))
    told: list[list[tuple[float, float, int]]] = [[] for _ in asked]
    for k in range(a.rounds):
        for j in range(len(asked)) if k % 2 == 0 else reversed(range(len(asked))):
            told[j].append(run_once(asked[j][2], asked[j][3], asked[j][4]))
    for (what, side, *_), some in zip(asked, told, strict=True):
        seconds, process = (statistics.median(t[n] for t in some) for n in (0, 1))
        table.add(
            {"asked": what, "side": side, "kernels": some[0][2] if what == "open" else "", "seconds": seconds, "process": process,
             "runs": len(some)}
        )  # fmt: skip
    table.close()
    return 0


def run_once(folder: Path, code: str, files: list[str]) -> tuple[float, float, int]:
    """Seconds behind the imports, seconds of all, and what was found, of a process that knows this checkout alone."""
    env = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    ended = subprocess.run([sys.executable, "-c", code, *files], env=env, cwd=folder, capture_output=True, text=True, check=False)
    seconds, process, found = json.loads(ended.stdout.splitlines()[-1]) if ended.returncode == 0 else (0.0, 0.0, -1)
    if found < 0 or (code == VERIFY and found):
        raise SystemExit(f"a process ended with {ended.returncode or found}: {ended.stderr[-500:]}")
    return float(seconds), float(process), int(found)


if __name__ == "__main__":
    sys.exit(main())
