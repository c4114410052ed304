"""Compiles a kernel of every family under other Tritons: python -m tests.kernels.versions [VERSION ...]

A Triton's own compiler decides what a kernel may say, and a GPU machine has the Triton that came with its torch. Each version is installed
into a folder of its own (FOLDER/triton-VERSION) and put before the environment's. The kernels of the ascent are among them.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from polytriton.ir.launches import Kernel

ROOT = Path(__file__).parents[2]
VERSIONS = ("3.6.0", "3.7.1", "3.8.0", "3.9.0")  # kernels.spec.OLDEST says what is missing before
NETS = ("digits_conv_ibp.onnx", "digits_resnet_ibp.onnx")
NUMERICS = ("float64", "float32", "tf32x3", "bf16x6", "interval64", "interval32")
INTERPRETED = ("test_rows_kernels.py", "test_directed.py")


def sample(numerics: str) -> Iterator[Kernel]:
    """The first kernel of each family that the examples have, in one type those of the ascent as well."""
    from polytriton.frontend.onnx import load_onnx
    from polytriton.kernels.network import network_kernels
    from polytriton.passes.pipeline import compile_net
    from polytriton.runtime.gpu.ascent_kernels import NUMERICS as ASCENT
    from tests.kernels.steps import turn_kernels

    first: dict[tuple[str, tuple[str, ...], object], Kernel] = {}
    for net in (load_onnx(ROOT / "examples" / name).net for name in NETS):
        for kernel in network_kernels(compile_net(net), [numerics]):
            first.setdefault((kernel.family, (), None), kernel)
        for kernel in (k for signed in (False, True) for k in turn_kernels(net, signed)) if numerics == ASCENT else ():
            first.setdefault((kernel.family, kernel.parameters, dict(kernel.constants).get("FORM")), kernel)
    yield from first.values()


def compile_here(target: str) -> int:
    """Compiles the sample with the Triton that this process imports; prints what failed and one line of the whole."""
    from polytriton.kernels.load import prepare, version
    from polytriton.kernels.worker import build

    prepare(interpret=False)
    began, count, failed, spilling = time.perf_counter(), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for numerics in NUMERICS:
            for kernel in sample(numerics):
                count += 1
                try:
                    report = build(kernel, target, Path(folder, f"{kernel.name}_{count}")).report
                    spilling += bool(report and report.spills)
                except Exception as error:  # whatever a compiler raises is what is asked for here
                    failed += 1
                    print(f"  {kernel.name} in {numerics}: {type(error).__name__}: {str(error)[-300:]}", flush=True)
    seconds = time.perf_counter() - began
    print(f"Triton {version()}, {target}: {count} kernels, {failed} failed, {spilling} spill, {seconds:.0f} s", flush=True)
    return min(failed, 1)


def run_version(version: str, target: str, into: Path) -> int:
    folder = into / f"triton-{version}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", folder, f"triton=={version}"]
        subprocess.run(pip, check=True, stdout=sys.stderr)
    environment = os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}", "TRITON_CACHE_DIR": str(folder / "cache")}
    compiled = subprocess.run([sys.executable, "-m", __spec__.name, "--here", "--target", target], env=environment, cwd=ROOT)
    tests = [ROOT / "tests" / "kernels" / name for name in INTERPRETED]
    interpreted = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "not slow", *tests], env=environment, cwd=ROOT)
    return compiled.returncode or interpreted.returncode


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.kernels.versions", description=__doc__)
    parser.add_argument("versions", nargs="*", default=VERSIONS)
    parser.add_argument("--target", default="cuda:90")
    parser.add_argument("--into", type=Path, default=ROOT / "build", metavar="FOLDER", help="where versions are installed")
    parser.add_argument("--here", action="store_true", help="with the Triton of this environment, and nothing else")
    given = parser.parse_args()
    if given.here:
        return compile_here(given.target)
    return max(run_version(version, given.target, given.into) for version in given.versions)


if __name__ == "__main__":
    sys.exit(main())
