"""One turn of bench.compare.search: polytriton, or alpha-beta-CROWN, as a process of its own that answers one property and ends.

Both are called as their users call them, by the two files and a limit, with nothing kept of earlier instances: each gets copies in an
empty folder, since the peer leaves what it read beside its files.
"""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.core.machine import ROOT
from bench.core.table import Row
from polytriton.workers.process import POOLS

GRACE = 60.0  # seconds beyond the limit that a process may take to start, to read its files and to end
LATE = 0.5  # seconds beyond the limit at which a verdict still counts
ERROR, TIMEOUT = "error", "timeout"
TURN = ("verdict", "wall", "seconds", "cpu_seconds")

# The peer's configuration of a benchmark and of the networks that have this part in their names; of what its authors never ran, the
# nearest: a dense network's, or one of convolutions at the same radii.
CONFIGS = (
    ("acasxu", "", "vnncomp21/acasxu.yaml"),
    ("mnist_fc", "256x2", "vnncomp22/mnistfc_small.yaml"),
    ("mnist_fc", "", "vnncomp22/mnistfc.yaml"),
    ("eran_mnist", "", "vnncomp21/eran_mlp.yaml"),
    ("cora", "", "vnncomp25/cora.yaml"),
    ("cifar10_resnet", "", "vnncomp21/cifar10-resnet.yaml"),
    ("sri_resnet_a", "", "vnncomp22/resnet_A.yaml"),
    ("cifar_biasfield", "", "vnncomp22/cifar_biasfield.yaml"),
    ("metaroom", "", "vnncomp23/metaroom.yaml"),
)
NEAREST = (("relu_5_100", "vnncomp21/eran_mlp.yaml"), ("", "vnncomp22/cifar2020_2_255.yaml"))
# Branch and bound alone, where a configuration would call a commercial solver first; kernels compiled before its clock starts, as its own
# runner for competitions has it.
CALL = ("--device", "cpu", "--complete_verifier", "bab", "--precompile_jit")
RAISED = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b.*", re.M)


def config(net: Path) -> str:
    """The configuration's file, with a word where it is another family's."""
    for benchmark, part, file in CONFIGS:
        if net.parent.name == benchmark and part in net.stem:
            return file
    return next(f"{file} (nearest)" for part, file in NEAREST if part in net.stem)


@dataclass(frozen=True)
class Turn:
    """What a process answered. `wall`: from its start to its end; `seconds`: its own figure, None where it told none."""

    verdict: str
    wall: float
    seconds: float | None
    cpu_seconds: float
    note: str = ""

    def row(self, prefix: str) -> Row:
        return {prefix + name: "" if (value := getattr(self, name)) is None else value for name in TURN}


class SearchSide(Protocol):
    """A verifier that is asked about one property by a command."""

    name: str

    def command(self, net: Path, spec: Path, timeout: float) -> list[str]:
        """What to run."""
        ...

    def answer(self, output: str) -> tuple[str, float | None]:
        """The verdict and the process's own seconds; an empty verdict where it told none."""
        ...


class OurSearch:
    """`polytriton verify` under real semantics."""

    name = "polytriton"

    def __init__(self, threads: int) -> None:
        self.threads = threads

    def command(self, net: Path, spec: Path, timeout: float) -> list[str]:
        options = ["--semantics", "real", "--timeout", f"{timeout:g}", "--threads", str(self.threads), "--json", "-"]
        return [sys.executable, "-m", "polytriton", "verify", str(net), str(spec), *options]

    def answer(self, output: str) -> tuple[str, float | None]:
        for line in output.splitlines():
            if line.startswith("{"):
                record = json.loads(line)
                return record["verdict"], record["seconds"]
        return "", None


class AlphaBetaCrown:
    """The checkout's program, by its own interpreter."""

    name = "alpha-beta-CROWN"

    def __init__(self, folder: Path, python: str) -> None:
        self.program, self.python = folder.resolve() / "complete_verifier" / "abcrown.py", python

    def command(self, net: Path, spec: Path, timeout: float) -> list[str]:
        file = self.program.parent / "exp_configs" / config(net).split()[0]
        files = {"--config": file, "--onnx_path": net, "--vnnlib_path": spec, "--results_file": net.parent / "answer.txt"}
        named = [str(word) for pair in files.items() for word in pair]
        return [self.python, str(self.program), *named, "--timeout", f"{timeout:g}", *CALL]

    def answer(self, output: str) -> tuple[str, float | None]:
        verdicts, seconds = re.findall(r"^Result: (\w+)", output, re.M), re.findall(r"^Time: ([\d.]+)\s*$", output, re.M)
        return (verdicts[-1] if verdicts else ""), (float(seconds[-1]) if seconds else None)

    def version(self) -> str:
        """Of its torch; OSError or CalledProcessError where it does not run."""

        def ask(*words: str) -> str:
            env = environment(1, ours=False)
            return subprocess.run([self.python, *words], env=env, capture_output=True, text=True, check=True).stdout.strip()

        ask(str(self.program), "--help")  # imports all that it needs
        return f"torch {ask('-c', 'import torch; print(torch.__version__)')}"


def environment(threads: int, ours: bool) -> dict[str, str]:
    """So many threads, no GPU, and of this checkout only what is ours."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])) if ours else ""
    return {**os.environ, **dict.fromkeys(POOLS, str(threads)), "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": path}


def run_turn(side: SearchSide, net: Path, spec: Path, timeout: float, threads: int) -> Turn:
    """Asks, waits, and reads what was told; a process that does not end is ended."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / net.parent.name  # the benchmark's name chooses the configuration
        folder.mkdir()
        copies = Path(shutil.copy(net, folder)), Path(shutil.copy(spec, folder))
        env = environment(threads, ours=side.name == OurSearch.name) | {"POLYTRITON_CACHE": str(folder / "cache")}
        code, wall, cpu, output = run_process(side.command(*copies, timeout), env, folder, timeout + GRACE)
    verdict, seconds = side.answer(output)
    if code is None:
        return Turn(TIMEOUT, wall, None, cpu, f"{side.name}: stopped after {wall:.0f} s")
    if not verdict:
        return Turn(ERROR, wall, None, cpu, f"{side.name}: {complaint(output, code)}")
    if verdict in ("unsat", "sat") and (wall if seconds is None else seconds) > timeout + LATE:
        return Turn(TIMEOUT, wall, seconds, cpu, f"{side.name}: {verdict} too late")
    return Turn(verdict, wall, seconds, cpu)


def run_process(command: Sequence[str], env: Mapping[str, str], folder: Path, limit: float) -> tuple[int | None, float, float, str]:
    """Exit code (None: it was stopped), seconds, CPU seconds of it and of its children, and all it printed."""
    before, start = _children_seconds(), time.monotonic()
    with tempfile.TemporaryFile("w+", errors="replace") as out:
        process = subprocess.Popen(
            command, env=env, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        code: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(limit)
        finally:
            wall = time.monotonic() - start
            with suppress(ProcessLookupError):  # what it started may outlive it
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(0)
        return code, wall, _children_seconds() - before, out.read()


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def complaint(output: str, code: int) -> str:
    """Why a process told no verdict, in one line."""
    raised = RAISED.findall(output)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return (raised or lines or [f"its process ended with code {code}"])[-1][:200]
