"""Plants every fault of mutants.py, one at a time, in a copy of the package, and sees which test notices.

    python -m tests.mutation [--jobs 2] [--only TEXT] [--results FILE] [--fresh]

The copy holds the package and the tests. A mutant runs its own tests first, then the rest of the quick subset. Results are
written line by line, so an interrupted run goes on; exit code 1 where a mutant survives that is not argued away.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock, get_ident

from tests.mutation.mutants import KERNELS, MUTANTS, QUICK, Mutant

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results.csv"
COPIED = ("polytriton", "tests", "bench", "examples", "pyproject.toml", "constraints.txt")
LIMIT = 1800.0  # seconds; a mutant that hangs is noticed too


@dataclass(frozen=True)
class Found:
    """caught: by the test named; survived: nothing noticed; argued: it did, for the reason given."""

    name: str
    file: str
    verdict: str
    by: str
    seconds: float


def applies(mutant: Mutant) -> bool:
    return mutant.old in (ROOT / mutant.path).read_text()


@contextmanager
def copy() -> Iterator[Path]:
    """The package and its tests in a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, Path(folder) / name)
            elif source.exists():
                shutil.copy2(source, Path(folder) / name)
        yield Path(folder)


def try_mutant(mutant: Mutant, folder: Path) -> Found:
    """Runs the tests on the mutated copy, which is put back afterwards."""
    path = folder / mutant.path
    plain = path.read_bytes()
    start = time.monotonic()
    path.write_text(plain.decode().replace(mutant.old, mutant.new))
    try:
        by = first_failure(folder, mutant.tests)
        if not by:
            rest = [t for t in (KERNELS if mutant.file.startswith("kernels/") else QUICK) if t not in mutant.tests]
            by = first_failure(folder, rest)
    finally:
        path.write_bytes(plain)
        os.utime(path)
    verdict = "caught" if by else "argued" if mutant.argued else "survived"
    return Found(mutant.name, mutant.file, verdict, by or mutant.argued, time.monotonic() - start)


def first_failure(folder: Path, tests: Sequence[str]) -> str:
    """The first test that fails, or an empty string; a suite that cannot even start has noticed, too."""
    present = [t for t in tests if (folder / t.split("::")[0]).exists()]
    command = [sys.executable, "-B", "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-rfE", "-m", "not slow"]
    command += ["-p", "no:xdist", "-p", "no:cacheprovider", *present]
    environment = {**os.environ, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "a time limit"
    if run.returncode in (0, 5):  # all passed, or all that is named is slow
        return ""
    found = re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", run.stdout, re.MULTILINE)
    return found[1] if found else f"pytest's exit code {run.returncode}"


def read_results(path: Path) -> dict[str, Found]:
    if not path.exists():
        return {}
    with path.open(newline="") as f:
        return {r["mutant"]: Found(r["mutant"], r["file"], r["verdict"], r["by"], float(r["seconds"])) for r in csv.DictReader(f)}


def write_results(path: Path, found: dict[str, Found]) -> None:
    """Those of the list, in its order; whole or not at all."""
    draft, listed = path.with_suffix(".tmp"), [found[m.name] for m in MUTANTS if m.name in found]
    with draft.open("w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["mutant", "file", "verdict", "by", "seconds"])
        for r in listed:
            out.writerow([r.name, r.file, r.verdict, r.by, f"{r.seconds:.0f}"])
    draft.replace(path)
    if path == RESULTS:
        _tell(listed)


def summary(found: Sequence[Found]) -> str:
    """What docs/trust.md says of the record."""
    counts = {v: sum(r.verdict == v for r in found) for v in ("caught", "argued", "survived")}
    more = f", {counts['survived']} not noticed" if counts["survived"] else ""
    faults = f"{len(found)} faults in {len({r.file for r in found})} files"
    return f"| Planted faults | {faults}: {counts['caught']} noticed by a test, {counts['argued']} argued away in the list{more} |"


def _tell(found: Sequence[Found]) -> None:
    page = ROOT / "docs" / "trust.md"
    text = page.read_text(encoding="utf-8")
    page.write_text(re.sub(r"^\| Planted faults \|.*$", lambda _: summary(found), text, count=1, flags=re.M), encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description="Single faults, and the tests that notice them.")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="", help="mutants whose name or file holds this text")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--fresh", action="store_true", help="try again what the results hold already")
    args = parser.parse_args(argv)
    stale = [m.name for m in MUTANTS if not applies(m)]
    if stale:
        print("these mutants no longer apply, adapt their texts: " + "; ".join(stale), file=sys.stderr)
        return 2
    chosen = [m for m in MUTANTS if args.only in m.name or args.only in m.file]
    found = read_results(args.results)
    todo = [m for m in chosen if args.fresh or found.get(m.name, Found("", "", "survived", "", 0)).verdict == "survived"]
    run_all(todo, args.jobs, found, args.results)
    write_results(args.results, found)
    here = [found[m.name] for m in chosen if m.name in found]
    for r in here:
        print(f"{r.verdict:9} {r.name:50} {r.by}")
    counts = {v: sum(r.verdict == v for r in here) for v in ("caught", "argued", "survived")}
    print(f"{len(here)} mutants: " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    return 1 if counts["survived"] else 0


def run_all(todo: Sequence[Mutant], jobs: int, found: dict[str, Found], results: Path) -> None:
    """One copy a worker; a result is written as soon as it is known."""
    lock, copies = Lock(), {}

    def work(mutant: Mutant) -> None:
        with lock:
            folder = copies.setdefault(get_ident(), None)
        if folder is None:
            folder = copies[get_ident()] = stack.pop()
        result = try_mutant(mutant, folder)
        with lock:
            found[mutant.name] = result
            write_results(results, found)
            print(f"{result.verdict:9} {result.name}: {result.by} ({result.seconds:.0f} s)", file=sys.stderr, flush=True)

    stack: list[Path] = []
    with _copies(min(jobs, max(1, len(todo)))) as folders, ThreadPoolExecutor(len(folders)) as pool:
        stack += folders
        list(pool.map(work, todo))


@contextmanager
def _copies(count: int) -> Iterator[list[Path]]:
    if count == 0:
        yield []
        return
    with copy() as first, _copies(count - 1) as rest:
        yield [first, *rest]


if __name__ == "__main__":
    sys.exit(main())
