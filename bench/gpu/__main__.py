"""Everything there is to measure and check on a machine with an NVIDIA GPU, in one command.

    python -m bench.gpu [PART ...] [--out FOLDER] [--minutes 8] [--only GROUP ...] [--numerics NAME ...] [--code FOLDER] [--anew] [--dry]

first     the driver, Triton, a kernel of every family against an oracle, in a minute; without driver and Triton nothing else is tried
kernels   every launch of small networks against an oracle, whole networks against torch; FAIL where a bound is not kept
ascent    slopes and multipliers against torch, and the time of a turn
micro     single launches: times, fractions of the ceilings, fused and separate ReLUs, tile shapes
zoo       the paper's networks, synthetic, end to end, alone and in batches, beside the torch engine and auto_LiRPA
profile   where a run of a network goes, on the device and on the host
interval  the paper's interval arithmetic beside folded errors

Every part may take --minutes, its last process stopped, and leaves out, saying so, what it has no time for. Rows go to
FOLDER/DEVICE_PART.csv as they come and to stdout; progress goes to stderr. Every group of a part runs in a process of its own, since an
illegal access loses the device to its process; a part that fails takes no other with it. A run that is asked for again keeps,
of the same code, the groups that came to their end and does the others; --anew does all of them. --dry does the same on tiny sizes in
Triton's interpreter: its times mean nothing and no file is written.

Exit code: 0, 1 where a check failed or a process died, 2 where there is no GPU or no Triton.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sysconfig
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from bench.core.command import FAILED, add_parts, check_known, parser, run_groups
from bench.core.machine import ROOT, describe
from bench.core.remote import rows_of
from bench.core.table import Row, Table, first_line, say, slug
from bench.gpu.finished import GROUP, Finished
from bench.gpu.setting import Setting, all_groups, device_name
from polytriton.arithmetic import ARITHMETICS
from polytriton.knobs import interpret_triton

PARTS = ("first", "kernels", "ascent", "micro", "zoo", "profile", "interval")
LEAST = 45.0  # seconds a group gets at least, where the part has them and names no other number
GRACE = 15.0  # seconds past its end after which a process is stopped
NO_DEVICE = 2
NOTHING_RUNS = 3  # of a part: no other can do anything


def main() -> int:
    p = parser("gpu", __doc__)
    add_parts(p, PARTS)
    p.add_argument("--out", type=Path, default=ROOT / "build" / "bench-gpu", help="folder of the CSV files (%(default)s)")
    p.add_argument("--minutes", type=float, default=8.0, help="time of a part (%(default)g)")
    p.add_argument("--anew", action="store_true", help="also what an earlier run of this code has finished")
    p.add_argument("--code", type=Path, help="machine code made by bench.gpu.code: networks of the parts zoo and profile are not compiled")
    p.add_argument("--numerics", nargs="+", default=[], choices=ARITHMETICS, help="some arithmetics (first, ascent and interval take all)")
    p.add_argument("--dry", action="store_true", help="tiny sizes in Triton's interpreter")
    a = p.parse_args()
    check_known(p, "part", a.parts, PARTS)
    if missing := absent(a.dry):
        say(missing)
        return NO_DEVICE
    interpret_triton(a.dry)  # in the groups' processes
    try:
        device = device_name(a.dry)
    except RuntimeError as error:
        say(f"the driver answers with an error: {first_line(error)}")
        return NO_DEVICE
    about = describe(device)
    say(f"{device}; torch {about['torch']}, triton {about['triton']}")
    given = Setting(a.dry, 0.0, a.code, tuple(a.numerics))
    return run_parts(a.parts or PARTS, lambda part: run_part(part, a.only, a.minutes * 60, given, a.out, device, about, anew=a.anew))


def run_parts(parts: Sequence[str], run: Callable[[str], int]) -> int:
    """One after another, whatever became of those before; but nothing where not even the driver or Triton works."""
    codes, failed = [0], list[str]()
    for part in parts:
        try:
            codes.append(run(part))
        except Exception as error:  # whatever it is: other parts have results of their own
            traceback.print_exc()
            say(f"   {part} failed: {first_line(error)}")
            codes.append(FAILED)
        failed += [part] * bool(codes[-1])
        if codes[-1] == NOTHING_RUNS:
            say(f"   {', '.join(parts[len(codes) - 1 :]) or 'nothing'} left out: nothing can run before this works")
            break
    if failed:
        say(f"failed: {', '.join(failed)}")
    return FAILED if failed else 0


def absent(dry: bool) -> str:
    """What is missing for anything to run; "" where nothing is."""
    import torch

    try:
        import triton  # noqa: F401
    except ImportError:
        return "bench.gpu needs Triton: pip install triton"
    if dry:
        return ""
    if torch.cuda.is_available():
        return no_compiler()
    return "bench.gpu needs an NVIDIA GPU and a PyTorch built for CUDA; --dry runs the same code in Triton's interpreter, on tiny sizes"


def no_compiler() -> str:
    """Triton builds in C what launches a kernel."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        return f"Triton needs a C compiler to launch kernels, and there is none ({', '.join(compilers)}): install one, or name it in CC"
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return "" if header.exists() else f"Triton needs Python's C headers to launch kernels, and {header} is missing: install them"


def part_module(part: str) -> ModuleType:
    return importlib.import_module(f"bench.gpu.{part}")


def run_part(
    part: str, only: list[str], seconds: float, given: Setting, out: Path, device: str, about: Row, *, anew: bool = False
) -> int:  # fmt: skip
    """All groups of a part, one after another; 0, FAILED, or NOTHING_RUNS where a group failed without which no other can do anything."""
    module, dry = part_module(part), given.dry
    seconds = seconds if dry else min(seconds, getattr(module, "PART_SECONDS", seconds))
    end = time.time() + seconds - min(GRACE, seconds / 4)  # the last process is stopped within the part's time
    say(f"== {part}: up to {seconds / 60:g} minutes")
    least, needed = getattr(module, "LEAST", LEAST), getattr(module, "NEEDED", ())
    print(f"\n{part} on {device}" + (", a dry run: times mean nothing" if dry else ""), flush=True)
    path = None if dry else out / f"{slug(device)}_{part}.csv"
    groups = module.groups(dry)
    wanted = [g for g in groups if not only or g in only]
    kept = Finished(path, wanted if anew else ())
    code = FAILED * any(row.get("verdict") == "FAIL" and row[GROUP] in wanted for row in kept.rows)
    table = Table((*module.COLUMNS, GROUP), path, {"part": part, **about}, module.SHOWN, goes_on=True)
    for group in (g for g in wanted if g in kept.groups):
        say(f"   {group}: finished before, by this code")
    wanted = [g for g in wanted if g not in kept.groups]
    batches = [wanted] * bool(wanted) if dry and not needed else [[g] for g in wanted]  # a dry run can lose no device
    for k, some in enumerate(batches):
        name, left = ", ".join(some), end - time.time()
        if left < min(LEAST, seconds) / 3:
            say(f"   {name}: left out, no time")
            continue
        limit = min(left, max(least, 2 * left / (len(batches) - k)))
        say(f"   {name}: up to {limit:.0f} s")
        until = time.time() + limit
        ended, before = Ended(), len(table.rows)
        code |= run_groups(table, [name], lambda _: ended.rows(some, module, replace(given, end=until)))  # noqa: B023
        if ended.whole and time.time() < until:
            kept.add(name)
        if set(some) & set(needed) and any(is_failure(row) for row in table.rows[before:]):
            code = NOTHING_RUNS
            break
    if path is not None and (table.rows or kept.rows):
        say(f"   {len(table.rows) + len(kept.rows)} rows in {path}")
    elif not table.rows:
        say(f"   no rows; groups: {', '.join(groups)}")
    return code


def is_failure(row: Row) -> bool:
    """A check that failed, or a process that died."""
    return row.get("verdict") == "FAIL" or ("verdict" not in row and bool(row.get("note")))


class Ended:
    """Rows of some groups, by a process of its own; `whole`: it came to its end."""

    whole = False

    def rows(self, some: list[str], module: ModuleType, setting: Setting) -> Iterator[Row]:
        grace = min(GRACE, setting.left / 4)
        made = rows_of(all_groups, module.work, some, setting, seconds=lambda: max(0.0, setting.left) + grace)
        for row in made:
            yield {**row, GROUP: ", ".join(some)}
        self.whole = True


if __name__ == "__main__":
    raise SystemExit(main())
