"""`compile --target` and what `inspect` shows of it; machine code itself is tests/kernels/test_build.py's."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from polytriton.commands import screen
from polytriton.errors import KernelError
from polytriton.ir.launches import COUNTED, Kernel
from polytriton.kernels import build
from polytriton.kernels.build import Built
from polytriton.kernels.spec import Report
from tests.cli import tiny
from tests.cli.conftest import Cli


def tree(path: Path) -> dict[str, bytes]:
    return {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def kernels(path: Path) -> list[str]:
    """The names of an artifact's kernels."""
    return list(json.loads((path / "kernels" / "index.json").read_text())["kernels"])


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """In the place of Triton: what it was asked, and kernels with two spills, each containing the word dense."""
    asked: list[Any] = []

    def compile_all(kernels: Sequence[Kernel], target: str, *, cache: Path | None, jobs: int, progress: build.Progress) -> list[Built]:
        asked.append((target, cache, jobs))
        out = []
        for k, kernel in enumerate(kernels):
            spills = 1 if "dense" in kernel.name else 0
            report = Report(kernel.name, target, 40, 64, spills, spills, 8, dict.fromkeys(COUNTED, 1), 48, 9000, 1.5, False)
            out.append(Built(kernel, report, b""))
            progress(k + 1, len(kernels), kernel.name)
        return out

    monkeypatch.setattr(build, "compile_all", compile_all)
    monkeypatch.setattr(build, "triton_version", lambda: "9.8.7")
    return asked


# ---- emission ---------------------------------------------------------------------------------------------------


def test_interpret_compiles_nothing(cli: Cli, here: Path) -> None:
    said = cli("compile", "net.onnx", "--target", "interpret")
    assert (said.code, said.out, said.err) == (0, "net.poly\n", "")
    names = kernels(here / "net.poly")
    assert len(names) > 4
    assert {p.name for p in (here / "net.poly" / "kernels").iterdir()} == {"index.json", "launches.ptir"}
    assert not (here / "cache").exists(), "no compiler was asked"
    assert cli("verify", "net.poly", "safe.vnnlib").out == "unsat\n"

    text = cli("inspect", "net.poly").out
    assert "kernels for interpret in float64, float32" in text
    for name in names:
        assert name in text
        head, _, source = cli("inspect", "net.poly", "--kernel", name).out.partition("import triton\n")
        assert head.startswith(f"# {name}\n#   steps     %") and f"\ndef {name.rpartition('_')[0]}(" in source
    assert cli("inspect", "net.poly", "--launches").out == (here / "net.poly" / "kernels" / "launches.ptir").read_text()
    assert f"{len(names)} kernels and their launches, made again and the same" in cli("inspect", "net.poly", "--remake").out
    held = json.loads(cli("inspect", "net.poly", "--json").out)
    assert sorted(k["name"] for k in held["kernels"]) == sorted(names)
    assert all(k["steps"] and k["steps"][0].startswith("%") for k in held["kernels"])
    assert (held["targets"], held["numerics"], held["reports"]) == (["interpret"], ["float64", "float32"], [])


def test_the_same_kernels_every_time(cli: Cli, here: Path) -> None:
    assert cli("compile", "net.onnx", "--target", "interpret").code == 0
    first = tree(here / "net.poly")
    assert cli("compile", "net.onnx", "--target=interpret,cpu", "--target", "interpret").code == 0
    assert tree(here / "net.poly") == first
    assert cli("compile", "net.onnx", "--target", "interpret", "--numerics", "float32").code == 0
    assert set(kernels(here / "net.poly")) < set(json.loads(first["kernels/index.json"])["kernels"])
    assert cli("compile", "net.onnx", "--target", "cpu").code == 0
    assert not (here / "net.poly" / "kernels").exists()


def test_a_kernel_is_found_by_the_beginning_of_its_name(cli: Cli, here: Path) -> None:
    assert cli("compile", "net.onnx", "--target", "interpret", "--numerics", "float64").code == 0
    (name,) = (n for n in kernels(here / "net.poly") if n.startswith("move_rows"))
    assert cli("inspect", "net.poly", "--kernel", "move").out == cli("inspect", "net.poly", "--kernel", name).out
    for wrong, word, shown in (("concretize", "begin with", "concretize_rows_"), ("nothing", "no kernel", "dense_step_")):
        said = cli("inspect", "net.poly", "--kernel", wrong)
        assert said.code == 2
        assert word in said.err
        assert shown in said.err
    said = cli("inspect", "net.onnx", "--kernel", name)
    assert said.code == 2
    assert "compile net.onnx --target" in said.err


# ---- GPUs -------------------------------------------------------------------------------------------------------


def test_compiled_for_several_gpus(cli: Cli, here: Path, compiler: list[Any]) -> None:
    said = cli("compile", "net.onnx", "--target", "cuda:80,cuda:90", "--max-spills", "2", "--jobs", "3")
    assert (said.code, said.err) == (0, "")
    assert compiler == [(t, here / "cache" / "cubins", 3) for t in ("cuda:80", "cuda:90")]
    assert said.out.endswith("\nnet.poly\n")
    names = kernels(here / "net.poly")
    for target in ("cuda:80", "cuda:90"):
        assert f"{target}: {len(names)} kernels by Triton 9.8.7\n" in said.out
    assert all(said.out.count(name) == 2 for name in names)
    assert {"registers", "shared", "spills", "warps", "arithmetic"} <= set(said.out.split())
    report = json.loads((here / "net.poly" / "kernels" / "report.json").read_text())
    assert report["triton"] == "9.8.7"
    assert {(r["target"], r["name"]) for r in report["kernels"]} == {(t, n) for t in ("cuda:80", "cuda:90") for n in names}
    assert not {"seconds", "cached"} & report["kernels"][0].keys()
    line = next(line for line in cli("inspect", "net.poly").out.splitlines() if line.startswith("dense_step"))
    assert line.split()[1:5] == ["40", "2", "40", "2"]


def test_json_says_the_same(cli: Cli, here: Path, compiler: list[Any]) -> None:
    said = cli("compile", "net.onnx", "--target", "cuda:90", "--numerics", "float32", "--max-spills", "2", "--json")
    assert (said.code, said.err) == (0, "")
    held = json.loads(said.out)
    assert (held["artifact"], held["targets"], held["numerics"], held["triton"]) == ("net.poly", ["cuda:90"], ["float32"], "9.8.7")
    assert [k["name"] for k in held["kernels"]] == [r["name"] for r in held["reports"]]
    assert held["reports"][0]["registers"] == 40
    plain = json.loads(cli("compile", "net.onnx", "--json").out)
    assert plain == {"artifact": "net.poly", "targets": [], "numerics": [], "kernels": [], "triton": "", "reports": []}


def test_the_interpreters_sizes_are_not_compiled(cli: Cli, here: Path, compiler: list[Any]) -> None:
    assert cli("compile", "net.onnx", "--target", "interpret", "--target", "cuda:90", "--max-spills", "2").code == 0
    names = set(kernels(here / "net.poly"))
    held = json.loads(cli("inspect", "net.poly", "--json").out)
    assert {r["name"] for r in held["reports"]} < names == {k["name"] for k in held["kernels"]}
    blank = [
        line for line in cli("inspect", "net.poly").out.splitlines() if line.startswith(tuple(names)) and line.split()[1].startswith("%")
    ]
    assert len(blank) == len(names) - len(held["reports"])


@pytest.mark.parametrize("existing", [False, True])
@pytest.mark.parametrize("given", [("--max-spills", "0"), ("--max-spills", "1"), ("--max-spills", "0", "--json")])
def test_spills_leave_no_artifact(cli: Cli, here: Path, compiler: list[Any], given: Sequence[str], existing: bool) -> None:
    if existing:
        assert cli("compile", "net.onnx").code == 0
    before = tree(here)
    said = cli("compile", "net.onnx", "--target", "cuda:90", *given)
    assert (said.code, said.out) == (3, "")
    assert "spill registers to memory" in said.err
    assert "dense_step_" in said.err
    assert "--max-spills 2 accepts" in said.err
    assert tree(here) == before


def test_a_kernel_that_does_not_compile_leaves_no_artifact(
    cli: Cli, here: Path, compiler: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise KernelError("Triton 9.8.7 cannot compile for cuda:90", "please report it")

    monkeypatch.setattr(build, "compile_all", fail)
    said = cli("compile", "net.onnx", "--target", "cuda:90")
    assert (said.code, said.out) == (3, "")
    assert not (here / "net.poly").exists()


def test_no_cache_no_folder(cli: Cli, here: Path, compiler: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTRITON_CACHE", "off")
    assert cli("compile", "net.onnx", "--target", "cuda:90", "--max-spills", "2").code == 0
    assert [cache for _, cache, _ in compiler] == [None]


def test_the_gpus_here(cli: Cli, compiler: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(9, 0), (8, 0), (9, 0)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(found))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda k: found[k])
    assert cli("compile", "net.onnx", "--target", "cuda,cuda:89", "--max-spills", "2").code == 0
    assert [target for target, _, _ in compiler] == ["cuda:90", "cuda:80", "cuda:89"]
    found[0] = (7, 5)
    said = cli("compile", "net.onnx", "--target", "cuda")
    assert said.code == 2
    assert "cuda:75" in said.err
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    said = cli("compile", "net.onnx", "--target", "cuda")
    assert said.code == 2
    assert "cuda:80" in said.err
    assert "cuda:90" in said.err


@pytest.fixture
def no_triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    build.triton_version.cache_clear()
    yield
    build.triton_version.cache_clear()


@pytest.mark.usefixtures("no_triton")
def test_without_triton(cli: Cli, here: Path) -> None:
    said = cli("compile", "net.onnx", "--target", "cuda:90", "--dump-ir")
    assert said.code == 3
    assert "Triton is not installed" in said.err
    assert not (here / "net.poly").exists()
    assert not (here / "net.ir").exists()  # it is said before any work is done
    assert cli("compile", "net.onnx", "--target", "interpret").code == 0
    assert cli("inspect", "net.poly").code == 0


@pytest.mark.parametrize(
    "given, words",
    [
        (("--target", "tpu"), ("'tpu'", "interpret", "cuda:80", "cuda:90")),
        (("--target", "cuda:75"), ("'cuda:75'", "cuda:80")),
        (("--target", "cuda:90,"), ("''",)),
        (("--target", ""), ("''",)),
        (("--target", "CPU"), ("'CPU'",)),
        (("--target", "interpret", "--numerics", "float16"), ("'float16'", "bf16x6")),
        (("--target", "interpret", "--numerics", "float64,"), ("''",)),
        (("--target", "interpret", "--max-spills", "1"), ("--max-spills is about kernels",)),
        (("--target", "interpret", "--jobs", "1"), ("--jobs is about kernels",)),
        (("--numerics", "float64"), ("--numerics is about kernels", "--target cuda:90")),
        (("--target", "cuda:90", "--max-spills", "-1"), ("negative",)),
        (("--target", "cuda:90", "--max-spills", "few"), ("--max-spills", "integer")),
        (("--target", "cuda:90", "--jobs", "0"), ("out of range",)),
        (("--json", "--dump-ir=fold"), ("standard output",)),
    ],
)
def test_mistakes_are_said_before_any_work(cli: Cli, here: Path, given: Sequence[str], words: Sequence[str]) -> None:
    before = tree(here)
    said = cli("compile", "net.onnx", *given)
    assert (said.code, said.out) == (2, "")
    assert all(word in said.err for word in words)
    assert tree(here) == before


# ---- what a person sees -----------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_bar(cli: Cli, compiler: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        assert cli("compile", "net.onnx", "--target", "cuda:90", "--max-spills", "2").code == 0
    assert "kernels for cuda:90" in terminal.getvalue()


def test_a_log_gets_a_line_now_and_then(cli: Cli, compiler: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "PAUSE", 0.0)
    said = cli("compile", "net.onnx", "--target", "cuda:90", "--numerics", "float64", "--max-spills", "2")
    lines = said.err.splitlines()
    assert lines[-1] == f"polytriton: kernels for cuda:90: {len(lines)}/{len(lines)}"


def test_dumped_ir_has_standard_output_for_itself(cli: Cli, compiler: list[Any]) -> None:
    said = cli("compile", "net.onnx", "--target", "cuda:90", "--max-spills", "2", "--dump-ir=layout")
    assert said.out.startswith("// ")
    assert "registers" not in said.out
    assert "registers" in said.err
    assert said.err.endswith("net.poly\n")


# ---- the real compiler ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_triton_compiles_the_kernels(cli: Cli, here: Path) -> None:
    try:
        build.triton_version()
    except KernelError as error:
        pytest.skip(error.message)
    # one layer: tests/kernels/test_aot.py compiles kernels of every function
    weights = {"w": np.eye(4)[:3], "b": np.zeros(3)}
    tiny.save(here / "net.onnx", [helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="only", transB=1)], [1, 4], 3, weights)
    said = cli("compile", "net.onnx", "--target", "cuda:90", "--numerics", "float64", "--json")
    assert said.code == 0
    held = json.loads(said.out)
    dense = [r for r in held["reports"] if r["name"].startswith("dense_step")]
    assert dense
    assert all(r["instructions"]["DMMA"] and 0 < r["registers"] < 256 for r in dense)
    assert not any(r["spill_loads"] or r["cached"] for r in held["reports"])
    first = tree(here / "net.poly")
    shutil.rmtree(here / "net.poly")
    again = json.loads(cli("compile", "net.onnx", "--target", "cuda:90", "--numerics", "float64", "--json").out)
    assert all(r["cached"] for r in again["reports"])
    assert tree(here / "net.poly") == first
