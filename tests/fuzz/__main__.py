"""`python -m tests.fuzz TARGET --seconds N --jobs J`: fuzzes one reader, or `all` of them one after the other.

Prints executions, coverage where Atheris counts it, and findings; each finding is saved under --findings. Exit code 1 where
there is one. With `pip install atheris` the search is guided by branch coverage; else by messages not seen before.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
NAMES = ("onnx", "compile", "vnnlib", "net", "plan", "artifact", "images", "instances", "results")


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=(*NAMES, "all"))
    parser.add_argument("--seconds", type=float, default=60.0, help="for each target")
    parser.add_argument("--jobs", type=int, default=1, help="processes for each target, each with a seed of its own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=("atheris", "plain"), default="atheris" if importlib.util.find_spec("atheris") else "plain")
    parser.add_argument("--findings", type=Path, default=Path(tempfile.gettempdir(), "polytriton-findings"))
    parser.add_argument("--corpus", type=Path, help="folder that collects inputs that reach new branches (Atheris)")
    parser.add_argument(
        "--keep", action="store_true", help="do not fuzz: take from --corpus into tests/fuzz/corpus what goes where nothing there does"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return _worker(args)
    failed = 0
    for name in NAMES if args.target == "all" else (args.target,):
        failed |= _target(name, args)
    return failed


def _target(name: str, args: argparse.Namespace) -> int:
    """Runs the jobs of one target in processes of their own, and says what they did."""
    corpus = args.corpus or Path(tempfile.gettempdir(), "polytriton-corpus")
    if args.keep:
        from tests.fuzz.engine import keep
        from tests.fuzz.targets import CORPUS, TARGETS

        print(f"{name}: {keep(TARGETS[name], corpus / name, CORPUS / name)} inputs kept")
        return 0
    command = [
        sys.executable, "-m", "tests.fuzz", name, "--worker", "--engine", args.engine, "--seconds", str(args.seconds),
        "--findings", str(args.findings / name), "--corpus", str(corpus / name),
    ]  # fmt: skip
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    jobs = [
        subprocess.Popen(
            [*command, "--seed", str(args.seed + k)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, errors="replace"
        )
        for k in range(args.jobs)
    ]
    told = [job.communicate()[0] for job in jobs]
    findings = [line for text in told for line in text.splitlines() if line.startswith(f"{name}: ")]
    executions = sum(
        int(n) for text in told for n in re.findall(r"^(?:stat::number_of_executed_units:|executions:) *(\d+)", text, re.MULTILINE)
    )
    covered = max((int(n) for text in told for n in re.findall(r"\bcov: (\d+)", text)), default=None)
    crashed = [(job.returncode, text) for job, text in zip(jobs, told, strict=True) if job.returncode]
    for line in findings:
        print(line)
    for code, text in crashed:
        print(f"{name}: the process ended with code {code}:\n" + "\n".join(text.splitlines()[-15:]))
    reached = "" if covered is None else f", {covered} branches"
    print(f"{name}: {executions:,} executions{reached}, {len(findings) + len(crashed)} findings", flush=True)
    return int(bool(findings or crashed))


def _worker(args: argparse.Namespace) -> int:
    if args.engine == "plain":
        from tests.fuzz.engine import plain
        from tests.fuzz.targets import TARGETS

        tally = plain(TARGETS[args.target], args.seconds, args.seed, args.findings)
        print(f"executions: {tally.executions}\noutcomes: {len(tally.outcomes)}")
        return 0
    import atheris

    with atheris.instrument_imports(include=["polytriton"]):
        from tests.fuzz.engine import guided
        from tests.fuzz.targets import TARGETS
    guided(TARGETS[args.target], args.seconds, args.seed, args.findings, args.corpus)
    return 0


if __name__ == "__main__":
    sys.exit(main())
