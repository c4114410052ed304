"""What the documentation shows is run, commands and Python alike, page by page, in a folder with what a reader would have by then.

A line with a word in capitals (`NET.onnx`) or with brackets shows the form of a command and is not run; its options are
checked in test_docs.py. Of programs that take minutes or change the environment (`make`, `pip`, `python -m bench.suite`) the options
are checked alone. Where a page shows what a command prints, the words must be the same; numbers may differ.
"""

from __future__ import annotations

import importlib.util
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from polytriton.cli import main
from polytriton.tuning import calibrate
from tests.docs.test_docs import PAGES, ROOT
from tests.processes import quick_environment

FORM = re.compile(r"(?<![\w/.-])[A-Z]{3,}\b|(?<![\w.-])[A-Z](?![\w:])|\[[-No]|\|")
START = re.compile(r"^(?:    )?(\$ )?((?:polytriton|python|make|pip|vnncomp_scripts/\w+\.sh) .*)$")
SLOW = (
    "--target cuda", "--engine ray", "polytriton tune", "load_digits", "run_instance", "--end 12", "deployed_arithmetic.py",
    "closed_loop.py", "certified_training.py",
)  # fmt: skip


SMALL = {"gpu.md"}  # a page whose network is compiled into kernels and not asked: a smaller one serves
LONG = {"many-properties.md", "own-images.md", "own-model.md", "several-networks.md"}  # beside README.md and python.md


@dataclass(frozen=True)
class Shown:
    """A command of a page with the output shown under it (none where none is), or a block of Python."""

    command: str = ""
    output: tuple[str, ...] = ()
    python: str = ""


def shown(page: Path) -> list[Shown]:
    found: list[Shown] = []
    fence: str | None = None  # the language of the fenced block we are in
    listens = False  # whether what follows is a command's output
    for line in page.read_text(encoding="utf-8").split("\n"):
        if line.startswith("```"):
            fence, listens = (line[3:].strip() if fence is None else None), False
            if fence == "python":
                found.append(Shown())
        elif fence == "python":
            found[-1] = Shown(python=f"{found[-1].python}{line}\n")
        elif fence is None and not line.startswith("    "):
            listens = False
        elif match := START.match(line):
            found.append(Shown(match[2].split(" #")[0].strip()))
            listens = match[1] is not None
        elif listens and line.strip():
            found[-1] = Shown(found[-1].command, (*found[-1].output, line.strip()))
    return found


def furnish(folder: Path, network: str) -> None:
    """The reader's own files, under the names that the pages use."""
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(ROOT / "vnncomp_scripts", folder / "vnncomp_scripts")
    specs = folder / "examples" / "specs"
    shutil.copy(folder / "examples" / network, folder / "net.onnx")
    for name, spec in (("property", "30_0.05"), ("prop", "30_0.05"), ("a", "30_0.05"), ("b", "48_0.1")):
        shutil.copy(specs / f"digits_conv_ibp_{spec}.vnnlib", folder / f"{name}.vnnlib")
    data = np.load(folder / "examples" / "digits.npz")
    np.savez(folder / "images.npz", images=data["images"][:4], labels=data["labels"][:4])
    lines = (folder / "examples" / "instances.csv").read_text().splitlines()
    chosen = [line for line in lines if line.startswith("digits_conv_ibp")][:2]
    (folder / "instances.csv").write_text("".join(f"examples/{a},examples/{b},{c}\n" for a, b, c in (x.split(",") for x in chosen)))
    assert main(["compile", "net.onnx", "-o", "net.poly"]) == 0


def normal(text: str) -> str:
    """Words only: numbers, rules, spaces and what a tuning session chose may differ."""
    text = re.sub(r"Config\.of\(.*\)", "Config.of(...)", text)
    return " ".join(re.sub(r"_[0-9a-f]{10}\b|[-+]?\d[\d.e+,-]*", "#", text).split())


def like(printed: str, wanted: tuple[str, ...]) -> bool:
    """Whether the lines shown are among those printed, in their order; `...` stands for any lines."""
    lines = [normal(line) for line in printed.splitlines() if line.strip()]
    for want in wanted:
        if want == "...":
            continue
        if normal(want) not in lines:
            return False
        lines = lines[lines.index(normal(want)) + 1 :]
    return True


def helped(module: str, capfd: pytest.CaptureFixture[str]) -> str:
    """What `python -m MODULE --help` says; run here, where torch is imported already."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [module, "--help"])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)  # other tests import it as well
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(module, run_name="__main__", alter_sys=True)
    told, said = capfd.readouterr()
    assert not ended.value.code, (module, said)
    return told


def run(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(command.replace("--budget 5m", "--budget 5s"))
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert words[1] in targets, command
        return
    if words[0] == "pip" or words[0].endswith("install_tool.sh"):
        return  # would change this environment
    if "--engine ray" in command and importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed")
    if command.startswith(("python -m bench.", "python -m tests.")):  # these take minutes and have tests of their own
        told = helped(words[2], capfd)
        assert {w for w in words if w.startswith("--")} <= set(re.findall(r"--[a-z-]+", told)), (command, told)
        return
    if words[0] != "polytriton":
        start = [sys.executable, *words[1:]] if words[0] == "python" else words
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ran = subprocess.run(start, capture_output=True, text=True, env={**os.environ, "PATH": path})
        assert ran.returncode == 0, (command, ran.stderr)
        sys.stdout.write(ran.stdout)
        return
    threads = torch.get_num_threads()
    try:
        code = main(words[1:])
    finally:
        torch.set_num_threads(threads)
    if "cuda" in command.replace("--target", "") and "--device" in command and not torch.cuda.is_available():
        assert code == 2, command
    else:
        assert code == 0, (command, capfd.readouterr().err)


def parameters() -> list[object]:
    slow = [p for p in PAGES if p.name in LONG or any(s in c.command + c.python for c in shown(p) for s in SLOW)]
    return [pytest.param(p, id=p.name, marks=[pytest.mark.slow] if p in slow else []) for p in PAGES if shown(p)]


@pytest.mark.parametrize("page", parameters())
def test_what_a_page_shows_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(calibrate, "VALUES", (1 << 14,))  # nobody reads the times that are measured
    # for workers, here and on a cluster, where polytriton is not installed
    monkeypatch.setenv("PYTHONPATH", quick_environment()["PYTHONPATH"])
    furnish(tmp_path, "controller.onnx" if page.name in SMALL else "digits_conv_ibp.onnx")
    names: dict[str, object] = {"__name__": "page"}
    for k, one in enumerate(shown(page)):
        if one.python:
            if page.name != "README.md":  # test_docs.py runs its block, which takes the reader's own numbers
                exec(compile(one.python, f"{page.name}, block {k}", "exec"), names)
            continue
        if FORM.search(one.command):
            continue
        capfd.readouterr()
        run(one.command, capfd)
        printed = capfd.readouterr().out
        assert like(printed, one.output), (one.command, printed)


def test_what_counts_as_a_form() -> None:
    for text in ("polytriton verify NET.onnx PROP.vnnlib", "polytriton run NET.poly --epsilon E", "polytriton inspect net.poly [--json]"):
        assert FORM.search(text), text
    for text in ("polytriton run net.poly --images images.npz --epsilon 2/255 --clip 0,1", "polytriton verify net.onnx property.vnnlib"):
        assert not FORM.search(text), text
    assert like("a 1\nb 2.5 x\nc", ("a 7", "...", "c")) and not like("a 1\nc\nb", ("c", "a 2"))
