"""Prints what a search proved of the published instances, family by family, as a table in Markdown.

    python -m bench.instances --search --open --csv OUT.csv
    python -m bench.families OUT.csv [...]

The rows of several files count together: an instance is proved where one of them proves it. What plain CROWN proves counts as
one bound's (`python -m bench.instances --crown` shows that it does).
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from bench.core.command import parser
from bench.core.machine import data_folder
from bench.core.table import read_rows

PARTS = {"256x2": "256x2", "256x4": "256x4", "9_200": "9x200", "resnet_2b": "resnet_2b", "resnet_3b2": "sri_resnet_a"}  # of names
GOALS = {"256x2": 19, "256x4": 19, "9x200": 24, "acasxu": 22, "resnet_2b": 14, "sri_resnet_a": 8, "cifar_biasfield": 6}


def family(row: dict[str, str]) -> str:
    """By the file's name where a benchmark has networks of several kinds."""
    name, folder = Path(row["net"]).stem, Path(row["net"]).parts[1]
    for part, told in PARTS.items():
        if part in name:
            return told
    return folder if folder in GOALS else "others"


def table(instances: Sequence[dict[str, str]], answers: Sequence[dict[str, str]]) -> list[str]:
    """One line a family, and one for all."""
    proved: dict[str, list[float]] = defaultdict(list)
    for a in answers:
        if a["verdict"] == "unsat":
            proved[a["id"]].append(float(a["seconds"]))
    known = [r for r in instances if r["verdict"] == "unsat"]
    names = [f for f in GOALS if any(family(r) == f for r in known)]
    lines = ["| family | official unsat | one bound | with search | goal | median s of those searched |", "|---|---|---|---|---|---|"]
    for name in [*names, "others", "all"]:
        mine = [r for r in known if name in (family(r), "all")]
        one = sum(r["crown_verified"] == "1" for r in mine)
        more = [min(proved[r["id"]]) for r in mine if r["crown_verified"] != "1" and r["id"] in proved]
        middle = f"{statistics.median(more):.1f}" if more and name != "all" else ""
        goal = {"all": "165", "others": ""}.get(name) or str(GOALS.get(name, ""))
        lines.append(f"| {name} | {len(mine)} | {one} | {one + len(more)} | {goal} | {middle} |")
    return lines


def main() -> int:
    p = parser("families", __doc__)
    p.add_argument("files", nargs="+", type=Path)
    p.add_argument("--data", type=Path)
    a = p.parse_args()
    answers = [row for path in a.files for row in read_rows(path)]
    print("\n".join(table(read_rows((a.data or data_folder()) / "instances.csv"), answers)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
