"""The ledger: what became of every kernel of the zoo's and the data's networks as machine code for sm_80 and sm_90, and of one ascent's.

    python -m tests.kernels.aot_ledger        compile what the ledger lacks, drop what no network needs any more

aot/SET-TYPE-SM.csv names the Triton that compiled, then holds a line a kernel: its function, a digest, its report. The digest is
of all that the machine code depends on (`identity` of kernels/identity.py), comments and docstrings of the family's source left out, so
a line stands as long as its kernel says the same: a test makes every kernel and looks it up, which takes seconds where compiling
them all takes an hour. Lines drawn anew every day are compiled again and must come out as they are written.

Cubins stay in FOLDER/SM: a command that was stopped goes on there. Exit code 1 where a kernel does not compile, spills, fits no SM
or lacks its instruction.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

import msgspec

from bench import zoo
from bench.core.machine import found_data
from polytriton.errors import KernelError, PolytritonError, UsageError
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import COUNTED, Kernel
from polytriton.ir.net import Net
from polytriton.kernels.build import Built, Failed, check, compile_all, compile_each, triton_version
from polytriton.kernels.catalogue import place
from polytriton.kernels.identity import identity, tools
from polytriton.kernels.network import network_kernels
from polytriton.kernels.spec import Report
from polytriton.passes.pipeline import compile_net
from polytriton.whole import write_whole
from tests.kernels.steps import turn_kernels

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent / "aot"
TARGETS, TYPES, SETS = ("cuda:80", "cuda:90"), ("float64", "float32"), ("zoo", "data")
TURNS = Path("cifar10_resnet", "resnet_2b.onnx")
COMMAND = "python -m tests.kernels.aot_ledger"
REFRESH = f"run {COMMAND} and commit what it writes"
DIGITS = 12  # of a digest
HERE = 150  # kernels of a set and a type that a test compiles itself where the ledger lacks them
SAMPLE = 12  # lines of a file that are compiled again
FIGURES = ("registers", "shared", "spill_loads", "spill_stores", "occupancy", "blocks")
COLUMNS = ("function", "digest", *FIGURES, "instructions")


@dataclass(frozen=True)
class Line:
    """One kernel: `figures` are those of FIGURES, `instructions` how often those of COUNTED occur that do."""

    function: str
    digest: str
    figures: tuple[int, ...]
    instructions: tuple[tuple[str, int], ...]

    @staticmethod
    def of(kernel: Kernel, report: Report) -> Line:
        counts = tuple((name, report.instructions[name]) for name in COUNTED if report.instructions[name])
        return Line(function(kernel), digest(kernel, report.target), tuple(getattr(report, name) for name in FIGURES), counts)

    @staticmethod
    def read(row: str) -> Line:
        name, hashed, *figures, counted = row.split(",")
        words = counted.split()
        counts = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        return Line(name, hashed, tuple(map(int, figures)), tuple((n, counts[n]) for n in COUNTED if n in counts))

    def cells(self) -> dict[str, str]:
        counts = " ".join(f"{name} {count}" for name, count in self.instructions)
        return dict(zip(COLUMNS, (self.function, self.digest, *map(str, self.figures), counts), strict=True))

    def report(self, name: str, target: str) -> Report:
        """Of the kernel of that name; what is not in a line is 0."""
        counts = dict.fromkeys(COUNTED, 0) | dict(self.instructions)
        rest = {"name": name, "target": target, "instructions": counts, "stack": 0, "cubin_bytes": 0, "seconds": 0.0, "cached": True}
        return msgspec.convert(dict(zip(FIGURES, self.figures, strict=True)) | rest, Report)


@dataclass
class Ledger:
    """One file: the Triton that compiled, and the lines by digest."""

    triton: str
    lines: dict[str, Line] = field(default_factory=dict)

    def text(self) -> str:
        rows = sorted(",".join(line.cells().values()) for line in self.lines.values())
        return "\n".join([f"# Triton {self.triton}", ",".join(COLUMNS), *rows, ""])

    def find(self, kernel: Kernel, target: str) -> Line | None:
        return self.lines.get(digest(kernel, target))

    def lacks(self, kernels: Iterable[Kernel], target: str) -> list[Kernel]:
        return [k for k in kernels if self.find(k, target) is None]


def function(kernel: Kernel) -> str:
    return place(kernel.family)[1]


@cache
def digest(kernel: Kernel, target: str) -> str:
    return hashlib.sha256(identity(replace(kernel, name=function(kernel)), target, triton_version(), {})).hexdigest()[:DIGITS]


def book_path(name: str, numerics: str, target: str) -> Path:
    return FOLDER / f"{name}-{numerics}-{target.removeprefix('cuda:')}.csv"


def read(path: Path) -> Ledger:
    """UsageError where the file is not as `text` writes it: edited by hand, or merged badly."""
    try:
        text = path.read_text(encoding="utf-8")
        head, _, *rows = text.splitlines()
        ledger = Ledger(head.removeprefix("# Triton "))
        for row in rows:
            line = Line.read(row)
            ledger.lines[line.digest] = line
        if text != ledger.text():
            raise ValueError
    except OSError as error:
        raise UsageError(f"there is no ledger {path}: {error.strerror}", f"run {COMMAND}") from None
    except ValueError:
        raise UsageError(f"{path} is not as it was written", f"take it from git again, or delete it; then run {COMMAND}") from None
    return ledger


# ---- kernels --------------------------------------------------------------------------------------------


def networks(name: str, data: Path | None) -> Iterator[Net]:
    """The zoo with normal weights, which have the same kernels as robust ones, or the data's networks."""
    if name == "zoo":
        for net in zoo.NETS:
            yield load_onnx(zoo.build(net, "normal")).net
    else:
        assert data is not None
        for file in sorted((data / "nets").glob("*/*.onnx")):
            yield load_onnx(file).net


def needed(nets: Iterable[Net], numerics: str) -> list[Kernel]:
    """Every kernel that a network's run launches in its default configuration; kernels of one name are one kernel."""
    return list({k.name: k for net in nets for k in network_kernels(compile_net(net), [numerics])}.values())


def listed(name: str, numerics: str, data: Path | None) -> list[Kernel]:
    """All that a file has lines of. With the data's networks under float32: a turn of the ascent of slopes and multipliers, whose kernels
    are compiled where a search first asks for them; those of one residual network stand for all.
    """
    kernels = needed(networks(name, data), numerics)
    if name == "data" and numerics == "float32":
        assert data is not None
        kernels += turn_kernels(load_onnx(data / "nets" / TURNS).net, signed=True)
    return list({k.name: k for k in kernels}.values())


# ---- test -----------------------------------------------------------------------------------------------


def unusable(books: Mapping[str, Ledger]) -> str:
    """Why a ledger says nothing about what is installed here, if so."""
    here, there = triton_version(), {b.triton for b in books.values()}
    if there != {here}:
        return f"the ledger is of Triton {', '.join(sorted(there))}, here is {here}"
    return f"the ledger knows nothing of {', '.join(replaced)}" if (replaced := tools(os.environ)) else ""


def prove(books: Mapping[str, Ledger], kernels: Sequence[Kernel], cubins: Path) -> tuple[int, int]:
    """Every kernel is in the ledger of every target, or is compiled now, and is fit to run.

    KernelError where too many are missing to compile them here, or where one is unfit. Returns how many were missing, and how many
    lines are of kernels that no network has.
    """
    missing = {target: book.lacks(kernels, target) for target, book in books.items()}
    number = sum(map(len, missing.values()))
    if number > HERE:
        raise KernelError(f"the ledger lacks {number} of {len(books) * len(kernels)} kernels", REFRESH)
    for target, book in books.items():
        check([m.report for m in compile_all(missing[target], target, cache=cubins)], missing[target])
        found = [(line.report(k.name, target), k) for k in kernels if (line := book.find(k, target))]
        check([report for report, _ in found], [k for _, k in found])
    return number, sum(len(book.lines.keys() - {digest(k, target) for k in kernels}) for target, book in books.items())


def compiled_again(book: Ledger, kernels: Sequence[Kernel], target: str, seed: str) -> list[str]:
    """Lines drawn by `seed` against what the compiler makes now, without a cache: one text a line that differs."""
    known = [k for k in kernels if book.find(k, target)]
    drawn = random.Random(f"{seed} {target}").sample(known, min(SAMPLE, len(known)))
    differ = []
    for made in compile_each(drawn, target, cache=None):
        line, name = book.lines[digest(made.kernel, target)], made.kernel.name
        if isinstance(made, Failed):
            differ.append(f"{name} for {target} does not compile: {made.reason}")
        elif (now := Line.of(made.kernel, made.report)) != line:
            there, here = line.cells(), now.cells()
            texts = [f"{c} {there[c] or 'none'}, compiled now {here[c] or 'none'}" for c in COLUMNS if there[c] != here[c]]
            differ.append(f"{name} for {target}: {', '.join(texts)}")
    return differ


def lying(name: str, differ: Sequence[str]) -> str:
    return "\n  ".join([f"the ledger says otherwise than the compiler: delete aot/{name}-*.csv and build/aot, then {REFRESH}", *differ])


def today() -> str:
    return datetime.now(timezone.utc).date().isoformat()


# ---- command --------------------------------------------------------------------------------------------


def refresh(path: Path, kernels: Sequence[Kernel], target: str, *, jobs: int, cubins: Path) -> list[str]:
    """Writes the file anew, whole or not at all, compiling what it lacks; returns what is wrong with kernels."""
    old = read(path) if path.exists() else Ledger(triton_version())
    todo = old.lacks(kernels, target)
    made = compile_each(todo, target, cache=cubins / target.removeprefix("cuda:"), jobs=jobs, progress=Progress(path.stem))
    wrong = [f"{m.kernel.name} for {target} does not compile: {m.reason}" for m in made if isinstance(m, Failed)]
    new = {line.digest: line for m in made if isinstance(m, Built) for line in [Line.of(m.kernel, m.report)]}
    kept = {line.digest: line for k in kernels if (line := old.find(k, target))}
    book = Ledger(triton_version(), kept | new)
    for kernel in kernels:
        if line := book.find(kernel, target):
            try:
                check([line.report(kernel.name, target)], [kernel])
            except KernelError as error:
                wrong.append(error.message)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, book.text().encode())
    print(f"{path.stem}: {len(book.lines)} kernels, {len(new)} new, {len(old.lines.keys() - book.lines.keys())} gone", flush=True)
    return wrong


class Progress:
    """One line on stderr that is written over, or where that is no screen a line every 20 seconds."""

    def __init__(self, name: str) -> None:
        self.name, self.began, self.said = name, time.monotonic(), time.monotonic()

    def __call__(self, done: int, total: int, kernel: str) -> None:
        now, screen = time.monotonic(), sys.stderr.isatty()
        if done < total and now - self.said < (0.2 if screen else 20):
            return
        left = f", {(total - done) / done * (now - self.began) / 60:.0f} min left" if done < total else ""
        text = f"{self.name}: {done} of {total}{left}, {kernel}"
        print(f"\r{text:<79}" if screen else text, end="" if screen and done < total else "\n", file=sys.stderr, flush=True)
        self.said = now


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog=COMMAND, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--target", nargs="+", choices=TARGETS, default=TARGETS, help="default: both")
    p.add_argument("--numerics", nargs="+", choices=TYPES, default=TYPES, help="default: both")
    p.add_argument("--set", nargs="+", choices=SETS, default=SETS, dest="sets", help="default: both")
    p.add_argument("--jobs", type=int, default=2, help="compilers at a time (%(default)s)")
    p.add_argument("--cubins", type=Path, default=ROOT / "build" / "aot", metavar="FOLDER", help="where cubins are kept (build/aot)")
    a = p.parse_args(arguments)
    data = found_data()
    try:
        if a.jobs < 1:
            raise UsageError("--jobs is 1 or more")
        if replaced := tools(os.environ):
            raise UsageError(f"{', '.join(replaced)} would compile otherwise than the wheel of Triton does", "unset it")
        wrong: list[str] = []
        kernels = cache(lambda name, numerics: listed(name, numerics, data))
        for name in a.sets:
            if name == "data" and data is None:
                print("no verification data: data-*.csv stay as they are; set POLYTRITON_DATA", file=sys.stderr)
                continue
            for target in a.target:
                for numerics in a.numerics:
                    wrong += refresh(book_path(name, numerics, target), kernels(name, numerics), target, jobs=a.jobs, cubins=a.cubins)
    except PolytritonError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on from {a.cubins}", file=sys.stderr)
        return 130
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
