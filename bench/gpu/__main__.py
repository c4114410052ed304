"""Everything there is to measure and check on a machine with an NVIDIA GPU, in one command.

    python -m bench.gpu [PART ...] [--out FOLDER] [--minutes 8] [--only GROUP ...] [--dry]

kernels   every launch of small networks against an oracle, whole networks against torch; FAIL where a bound is not kept
micro     single launches: times, fractions of the ceilings, fused and separate ReLUs, tile shapes
zoo       the paper's networks, synthetic, end to end, alone and in batches, beside the torch engine and auto_LiRPA
interval  the paper's interval arithmetic beside folded errors

Every part may take --minutes and leaves out, saying so, what it has no time for. Rows go to FOLDER/DEVICE_PART.csv as they come
and to stdout; progress goes to stderr. Every group of a part runs in a process of its own, since an illegal access loses the device
to its process. --dry does the same on tiny sizes in Triton's interpreter: its times mean nothing and no file is written.

Exit code: 0, 1 where a check failed or a process died, 2 where there is no GPU or no Triton.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bench.core.machine import ROOT, describe
from bench.core.table import Row, Table, first_line, say, slug
from bench.gpu.setting import Setting, device_name

PARTS = ("kernels", "micro", "zoo", "interval")
LEAST = 45.0  # seconds a group gets at least, where the part has them and names no other number
GRACE = 15.0  # seconds past its end after which a process is stopped
MARK = "@row "
FAILED, NO_DEVICE = 1, 2


def main() -> int:
    p = argparse.ArgumentParser(prog="bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    p.add_argument("--out", type=Path, default=ROOT / "build" / "bench-gpu", help="folder of the CSV files (%(default)s)")
    p.add_argument("--minutes", type=float, default=8.0, help="time of a part (%(default)g)")
    p.add_argument("--only", nargs="+", default=[], metavar="GROUP", help="some groups of the parts")
    p.add_argument("--dry", action="store_true", help="tiny sizes in Triton's interpreter")
    p.add_argument("--child", metavar="PART", choices=PARTS, help=argparse.SUPPRESS)
    p.add_argument("--end", type=float, help=argparse.SUPPRESS)
    a = p.parse_args()
    if unknown := [part for part in a.parts if part not in PARTS]:
        p.error(f"there is no part {unknown[0]!r}: choose from {', '.join(PARTS)}")
    if a.child:
        return child(a.child, a.only, Setting(a.dry, a.end))
    if missing := absent(a.dry):
        say(missing)
        return NO_DEVICE
    device = device_name(a.dry)
    about = describe(device)
    say(f"{device}; torch {about['torch']}, triton {about['triton']}")
    codes = [run_part(part, a.only, a.minutes * 60, a.dry, a.out, device, about) for part in a.parts or PARTS]
    return max(codes)


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


# ---- the command's own process --------------------------------------------------------------------------------------


def part_module(part: str) -> ModuleType:
    return importlib.import_module(f"bench.gpu.{part}")


def run_part(part: str, only: list[str], seconds: float, dry: bool, out: Path, device: str, about: Row) -> int:
    """All groups of a part, one after another; 0 or FAILED."""
    end, code = time.time() + seconds, 0
    say(f"== {part}: up to {seconds / 60:g} minutes")
    module = part_module(part)
    least = getattr(module, "LEAST", LEAST)
    print(f"\n{part} on {device}" + (", a dry run: times mean nothing" if dry else ""), flush=True)
    path = None if dry else out / f"{slug(device)}_{part}.csv"
    table = Table(module.COLUMNS, path, {"part": part, **about}, module.SHOWN)
    wanted = [g for g in module.groups(dry) if not only or g in only]
    batches = [wanted] * bool(wanted) if dry else [[g] for g in wanted]  # a dry run can lose no device
    for k, names in enumerate(batches):
        left = end - time.time()
        if left < min(LEAST, seconds) / 3:
            say(f"   left out, no time: {', '.join(n for some in batches[k:] for n in some)}")
            break
        limit = min(left, max(least, 2 * left / (len(batches) - k)))
        say(f"   {', '.join(names)}: up to {limit:.0f} s")
        for row in rows_of(part, names, dry, time.time() + limit):
            code |= FAILED * (row.get("verdict") == "FAIL" or row.pop("died", False))
            table.add(row)
    table.close()
    if path is not None and table.rows:
        say(f"   {len(table.rows)} rows in {path}")
    if not table.rows:
        say(f"   no rows; groups: {', '.join(module.groups(dry))}")
    return code


def rows_of(part: str, names: list[str], dry: bool, end: float) -> Iterator[Row]:
    """What a process of its own finds; one row more where it dies."""
    command = [sys.executable, "-m", "bench.gpu", "--child", part, "--end", str(end), "--only", *names, *["--dry"] * dry]
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "TRITON_INTERPRET": str(int(dry)), "PYTHONPATH": os.pathsep.join(paths)}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT)
    late = threading.Event()

    def stop() -> None:
        late.set()
        process.kill()

    timer = threading.Timer(max(0.0, end - time.time()) + GRACE, stop)
    timer.start()
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(MARK):
                yield json.loads(line[len(MARK) :])
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
    if code:
        columns = part_module(part).COLUMNS
        why = "stopped: over its time" if late.is_set() else f"its process ended with code {code}"
        yield {columns[0]: ", ".join(names), "note": why, "died": not late.is_set()}


# ---- a group's process ----------------------------------------------------------------------------------------------


def child(part: str, names: list[str], setting: Setting) -> int:
    module = part_module(part)
    for name in names:
        try:
            for row in module.work(name, setting):
                print(MARK + json.dumps(row), flush=True)
        except Exception as error:
            say(f"   {name}: {first_line(error)}")
            return FAILED
        if setting.left < 0:
            say(f"   {name}: out of time")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
