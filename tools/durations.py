"""What the tests cost, by room and test, out of the files that pytest writes: CPU seconds, which another program's load leaves alone.

    python -m pytest -n 2 -m "not slow" --junitxml=build/quick.xml
    python -m tools.durations build/quick.xml [build/slow.xml ...] [--most 20]

prints two tables for CONTRIBUTING.md. Cases of one test are added up. The reason is the first sentence that the test says of itself,
or its module. tests/conftest.py writes the seconds; what the first test of a file pays for fixtures of the file is among them.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Case:
    """One run of one test."""

    module: str
    test: str
    seconds: float
    verdict: str

    @property
    def room(self) -> str:
        parts = self.module.split(".")
        return "/".join(parts[:2]) if len(parts) > 2 else "tests"


def cases(file: Path) -> Iterator[Case]:
    for found in ElementTree.parse(file).iter("testcase"):
        told = [p.get("value", "0") for p in found.iter("property") if p.get("name") == "cpu"]
        seconds = float(told[0] if told else found.get("time", "0"))
        verdict = next((kind for kind in ("failure", "error", "skipped") if found.find(kind) is not None), "passed")
        yield Case(found.get("classname", ""), found.get("name", "").partition("[")[0], seconds, verdict)


@cache
def _first_sentences(module: str) -> dict[str, str]:
    """The first sentence of every docstring of a test file; under the empty name its own."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    if not path.is_file():
        return {}
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = {"": tree, **{f.name: f for f in tree.body if isinstance(f, ast.FunctionDef)}}
    said = {name: ast.get_docstring(node) or "" for name, node in found.items()}
    return {name: " ".join(text.split()).partition(". ")[0].rstrip(".") for name, text in said.items()}


def reason(module: str, test: str) -> str:
    said = _first_sentences(module)
    return (said.get(test) or said.get("") or "").replace("|", "/")


def rooms(found: Sequence[Case]) -> list[str]:
    seconds: dict[str, float] = {}
    for c in found:
        seconds[c.room] = seconds.get(c.room, 0.0) + c.seconds
    lines = ["| room | tests | failed | skipped | CPU s |", "|---|---|---|---|---|"]
    for name, total in sorted(seconds.items(), key=lambda item: -item[1]):
        mine = Counter(c.verdict for c in found if c.room == name)
        lines.append(f"| `{name}` | {sum(mine.values())} | {mine['failure'] + mine['error']} | {mine['skipped']} | {total:.0f} |")
    return [*lines, f"| all | {len(found)} | | | {sum(seconds.values()):.0f} |"]


def slowest(found: Sequence[Case], most: int) -> list[str]:
    together: dict[tuple[str, str], list[float]] = {}
    for c in found:
        together.setdefault((c.module, c.test), []).append(c.seconds)
    lines = ["| test | cases | CPU s | what for |", "|---|---|---|---|"]
    for (module, test), seconds in sorted(together.items(), key=lambda item: -sum(item[1]))[:most]:
        where = module.removeprefix("tests.").replace(".", "/")
        lines.append(f"| `{where}.py` `{test}` | {len(seconds)} | {sum(seconds):.0f} | {reason(module, test)} |")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.durations", description="What the tests cost.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--most", type=int, default=20)
    args = parser.parse_args(argv)
    found = [c for file in args.files for c in cases(file)]
    print("\n".join([*rooms(found), "", *slowest(found, args.most)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
