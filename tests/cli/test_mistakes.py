"""Mistakes that a newcomer makes, on the command line and in Python: each meets one message that names the remedy."""

from __future__ import annotations

import builtins
import errno
import gzip
import io
import json
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import polytriton
from tests.cli import tiny
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]
Python = Callable[[polytriton.Verifier, np.ndarray], Any]


@dataclass(frozen=True)
class Mistake:
    """What was typed, and what must stand in the message and in its remedy."""

    command: str
    message: str
    remedy: str
    code: int = 2
    python: Python | None = None
    python_remedy: str = ""  # where it has other words than the command's


BALL = "run net.poly --images ok.npz --epsilon 0.01"
OTHER = "of_seven.vnnlib"
MISTAKES = {
    "wrong shape": Mistake(
        "run net.poly --images big.npz --epsilon 0.01",
        "48 pixels, the network takes 1x2x2 = 4",
        "images this network was trained on",
        python=lambda net, x: net.verify(np.zeros((3, 4, 4)), epsilon=0.01),
        python_remedy="give [batch, 1, 2, 2]",
    ),
    "pixels 0..255": Mistake(
        "run net.poly --images levels.npz --epsilon 0.01",
        "run from 0 to 255",
        "--scale 1/255",
        python=lambda net, x: net.verify(255 * x, epsilon="1/255"),
        python_remedy="uint8 levels or pixels / 255",
    ),
    "label out of range": Mistake(
        f"{BALL} --label 3",
        "label 3 is out of range",
        "labels run from 0 to 2",
        python=lambda net, x: net.verify(x, epsilon=0.01, label=3),
    ),
    "label of a file out of range": Mistake("run net.poly --images labels.npz --epsilon 0.01", "label 7 of image 1", "in 0..2"),
    "missing network": Mistake("compile lost.onnx", "lost.onnx", "check the path", python=lambda net, x: polytriton.compile("lost.onnx")),
    "missing artifact": Mistake(
        "run lost.poly --images ok.npz --epsilon 0.01", "lost.poly", "check the path", python=lambda net, x: polytriton.load("lost.poly")
    ),
    "missing property": Mistake(
        "verify net.onnx lost.vnnlib", "lost.vnnlib", "check the path", python=lambda net, x: net.verify_vnnlib("lost.vnnlib")
    ),
    "missing images": Mistake(
        "run net.poly --images lost.npz --epsilon 0.01",
        "lost.npz",
        "check the path",
        python=lambda net, x: net.verify("lost.npz", epsilon=0.01),
    ),
    "missing list": Mistake("run --instances lost.csv", "lost.csv", "check the path"),
    "more means than deviations": Mistake(
        f"{BALL} --mean 0.5,0.5,0.5 --std 0.2",
        "3 means and 1 standard deviation for images of 1 channel",
        "give one mean and one std",
        python=lambda net, x: net.verify(x, epsilon=0.01, mean=(0.5, 0.5, 0.5), std=0.2),
    ),
    "more deviations than means": Mistake(
        "run rgb.poly --images rgb.npz --epsilon 0.01 --mean 0.5 --std 0.2,0.2,0.2",
        "1 mean and 3 standard deviations for images of 3 channels",
        "or 3 of each",
    ),
    "epsilon in per cent": Mistake(
        "run net.poly --images ok.npz --epsilon 2%",
        "`2%` is no epsilon",
        "for 2% write 0.02",
        python=lambda net, x: net.verify(x, epsilon="2%"),
    ),
    "epsilon in per cent, without the sign": Mistake(
        "run net.poly --images ok.npz --epsilon 2",
        "larger than the whole pixel range",
        "2/255, or 0.02",
        python=lambda net, x: net.verify(x, epsilon=2),
    ),
    "another network's property": Mistake(
        f"verify net.onnx {OTHER}",
        "declares 7 inputs, the network has 4",
        "pair the property with its own network",
        code=3,
        python=lambda net, x: net.verify_vnnlib(OTHER),
    ),
    "property and network exchanged": Mistake("verify safe.vnnlib net.onnx", "where the network belongs", "verify net.onnx safe.vnnlib"),
    "unsupported operator": Mistake(
        "compile cosh.onnx",
        "node 'squash' (Cosh)",
        "polytriton inspect --operators",
        code=3,
        python=lambda net, x: polytriton.compile("cosh.onnx"),
    ),
    "softmax at the end": Mistake(
        "compile softmax.onnx", "(LogSoftmax)", "up to the logits", code=3, python=lambda net, x: polytriton.compile("softmax.onnx")
    ),
    "old artifact": Mistake(
        "run old.poly --images ok.npz --epsilon 0.01",
        "old.poly is stale: polytriton 0.0.1 wrote it",
        "polytriton compile",
        python=lambda net, x: polytriton.load("old.poly"),
    ),
    "empty list": Mistake("run --instances empty.csv", "empty.csv lists no instances", "onnx,vnnlib,timeout"),
    "a list of headings only": Mistake("run --instances heading.csv", "heading.csv lists no instances", "onnx,vnnlib,timeout"),
    "a file in place of a folder": Mistake(
        "compile net.onnx -o net.onnx/net.poly",
        "no folder net.onnx",
        "make the folder",
        python=lambda net, x: net.save("net.onnx/net.poly"),
    ),
    "a Keras file": Mistake(
        "compile keras.h5", "a Keras or HDF5 file", "tf2onnx.convert --keras keras.h5", python=lambda net, x: polytriton.compile("keras.h5")
    ),
    "a TensorFlow Lite file": Mistake("compile small.tflite", "a TensorFlow Lite file", "tf2onnx.convert --tflite small.tflite"),
    "weights of torch": Mistake(
        "verify weights.pth safe.vnnlib", "a torch file", "compile(module, example_input)",
        python=lambda net, x: polytriton.compile("weights.pth"),
    ),
    "a quantised network": Mistake(
        "compile quantised.onnx", "node 'q' (QuantizeLinear)", "verify the float network", code=3,
        python=lambda net, x: polytriton.compile("quantised.onnx"),
    ),
    "a pointer of Git LFS": Mistake(
        "compile pointer.onnx", "a pointer of Git LFS", "git lfs pull", python=lambda net, x: polytriton.compile("pointer.onnx")
    ),
    "a property that is a pointer of Git LFS": Mistake(
        "verify net.onnx pointer.vnnlib", "pointer.vnnlib is a pointer of Git LFS", "git lfs pull",
        python=lambda net, x: net.verify_vnnlib("pointer.vnnlib"),
    ),
    "a page about the file": Mistake("compile page.onnx", "a page of the web", "download the file itself"),
    "images without a radius": Mistake(
        "run net.poly --images ok.npz", "--images needs a radius", "--epsilon 2/255",
        python=lambda net, x: net.verify(x), python_remedy='epsilon="8/255"',
    ),
    "images that are normalised already": Mistake(
        "run net.poly --images normal.npz --epsilon 0.01", "they look normalised already", "give --mean and --std"
    ),
    "too few labels": Mistake(
        "run net.poly --images few.npz --epsilon 0.01", "2 images and labels of shape [1]", "one integer label an image",
        python=lambda net, x: net.verify(np.zeros((3, 1, 2, 2)), epsilon=0.01, label=[0, 1]), python_remedy="one an image",
    ),
    "one end of a range": Mistake(f"{BALL} --clip 1", "--clip 1 is no range", "--clip 0,1"),
    "results that are there": Mistake(f"{BALL} --json old.jsonl", "old.jsonl holds results already", "--resume goes on with it"),
    "a report about something else": Mistake("report labels.npz", "not a result of polytriton", "--json FILE"),
    "a semantics that is none": Mistake(
        "verify net.onnx safe.vnnlib --semantics exact", "semantics='exact' is unknown", "real, float32",
        python=lambda net, x: polytriton.compile("net.onnx", semantics="exact"),
    ),
    "a device that is none": Mistake(
        "verify net.onnx safe.vnnlib --device gpu", "device 'gpu' is unknown", "cpu, cuda",
        python=lambda net, x: polytriton.compile("net.onnx", device="gpu"),
    ),
    "an option misspelt": Mistake("verify net.onnx safe.vnnlib --semantic real", "Possible options: --search,", "verify --help"),
    "a command misspelt": Mistake("verfy net.onnx safe.vnnlib", "Did you mean 'verify'", "polytriton --help"),
    "no time at all": Mistake(
        "verify net.onnx safe.vnnlib --timeout 0", "--timeout 0 is no time", "seconds above 0",
        python=lambda net, x: polytriton.reach(net, (0, 1), timeout=0),
    ),
    "an output that is none": Mistake(
        "compile net.onnx --output logits", "no output 'logits'", "choose one of: 'y'",
        python=lambda net, x: polytriton.compile("net.onnx", output="logits"),
    ),
    "no property": Mistake("verify net.onnx", "a network and a property are needed", "polytriton verify NET.onnx PROP.vnnlib"),
    "no box": Mistake(
        "reach net.onnx", "from a property or from --box", "--box=0,1",
        python=lambda net, x: polytriton.reach(net, x), python_remedy="polytriton.reach(net, (lo, hi))",
    ),
    "a property in place of a network": Mistake(
        "inspect safe.vnnlib", "safe.vnnlib is a property, not a network", "the network first",
        python=lambda net, x: polytriton.compile("safe.vnnlib"),
    ),
    "a folder of properties": Mistake("verify net.onnx props", "props is a folder, not a property file", "props/*.vnnlib"),
    "a folder of properties, in a run": Mistake("run net.poly --vnnlib props", "props is a folder, not a property file", "props/*.vnnlib"),
    "a model that is no .gz": Mistake(
        "verify plain.onnx.gz safe.vnnlib", "cannot read model plain.onnx.gz", "damaged, or no .gz",
        python=lambda net, x: polytriton.compile("plain.onnx.gz"),
    ),
    "a property that is cut off": Mistake(
        "verify net.onnx cut.vnnlib.gz", "cannot read cut.vnnlib.gz", "damaged, or no .gz",
        python=lambda net, x: net.verify_vnnlib("cut.vnnlib.gz"),
    ),
    "images that are none": Mistake(
        "run net.poly --images text.npz --epsilon 0.01", "cannot read the images of text.npz", "np.savez(FILE",
        python=lambda net, x: net.verify("text.npz", epsilon=0.01),
    ),
    "a list with semicolons": Mistake("run --instances semicolons.csv", "semicolons.csv, line 1: 1 column", "with commas between"),
    "a list of another coding": Mistake("run --instances wide.csv", "cannot read the instance list wide.csv", "in UTF-8"),
    "a list the wrong way round": Mistake(
        "run --instances turned.csv", "line 1: safe.vnnlib stands where the network belongs", "onnx,vnnlib,timeout"
    ),
    "a compiled network in a list": Mistake("run --instances compiled.csv", "line 1: net.poly is a folder", "run NET.poly --instances"),
    "an array in place of results": Mistake(
        "run net.poly --vnnlib safe.vnnlib --json net.npy", "net.npy is no results file", "choose another file"
    ),
    "images to be overwritten": Mistake(
        "run net.poly --vnnlib safe.vnnlib --csv ok.npz --overwrite", "ok.npz is no results file: it is not overwritten", "another file"
    ),
    "pixels times nothing": Mistake(f"{BALL} --scale 0", "--scale 0 leaves no image", "--scale 1/255"),
    "a box and a property": Mistake("reach net.onnx safe.vnnlib --box=0,1", "safe.vnnlib is given too", "leave one out"),
    "a network without a name": Mistake("compile .", "`.` names no file", "compile NET.onnx"),
    "an artifact without a name": Mistake("compile net.onnx -o .", "`.` names no file", "-o NET.poly"),
    "a network in place of a command": Mistake("net.onnx safe.vnnlib", "No such command 'net.onnx'", "verify net.onnx safe.vnnlib"),
    "a property behind run": Mistake("run net.poly safe.vnnlib", "(safe.vnnlib)", "polytriton run NET.poly --vnnlib safe.vnnlib"),
    "a decimal comma": Mistake(
        "verify net.onnx comma.vnnlib", "`1,5` is no number", "write a point for the comma: 1.5", code=3,
        python=lambda net, x: net.verify_vnnlib("comma.vnnlib"),
    ),
    "an operator that onnxruntime lacks": Mistake(
        "verify double.onnx safe.vnnlib", "no HardSigmoid for the types of node 'h'", "with float32 weights", code=3,
        python=lambda net, x: polytriton.compile("double.onnx"),
    ),
    "a picture of another kind, and a file in place of a compiled network": Mistake(
        "reach net.onnx --box=0,1 -o reach.png", "no reachable set is written as reach.png", "reach.svg",
        python=lambda net, x: polytriton.reach("net.onnx", (0, 1)), python_remedy='polytriton.compile("NET.onnx")',
    ),
    "time that has passed": Mistake(
        "verify net.onnx safe.vnnlib --timeout -1", "--timeout -1 is no time", "seconds above 0",
        python=lambda net, x: net.verify(x, epsilon=0.01, timeout=-1),
    ),
    "time that has passed, of a property": Mistake(
        "run net.poly --vnnlib safe.vnnlib --timeout=-1", "--timeout -1 is no time", "seconds above 0",
        python=lambda net, x: net.verify_vnnlib("safe.vnnlib", timeout=-1),
    ),
    "an artifact to tune that is none": Mistake("tune net.onnx", "a model, not an artifact", "polytriton compile net.onnx"),
}
assert len(MISTAKES) > 25
if not torch.cuda.is_available():
    MISTAKES["no GPU"] = Mistake(
        "verify net.onnx safe.vnnlib --device cuda",
        "no CUDA GPU",
        "--device cpu",
        python=lambda net, x: polytriton.compile("net.onnx", device="cuda"),
    )


@pytest.fixture
def furnished(cli: Cli, poly: Path, here: Path) -> Path:
    tiny.unsupported(here / "cosh.onnx")
    tiny.save(here / "softmax.onnx", [tiny.helper.make_node("LogSoftmax", ["x"], ["y"], name="p")], [1, 3], 3, {})
    colours = [tiny.helper.make_node("Flatten", ["x"], ["f"]), tiny.helper.make_node("MatMul", ["f", "w"], ["y"])]
    tiny.save(here / "rgb.onnx", colours, [1, 3, 2, 2], 3, {"w": np.eye(12)[:, :3]})
    assert cli("compile", "rgb.onnx", "-o", "rgb.poly").code == 0
    assert cli("compile", "net.onnx", "-o", "old.poly").code == 0
    manifest = json.loads((here / "old.poly" / "manifest.json").read_text())
    (here / "old.poly" / "manifest.json").write_text(json.dumps({**manifest, "polytriton": "0.0.1"}))
    tiny.vnnlib(here / OTHER, [(0, 1)] * 7, "(<= Y_0 Y_1)")
    (here / "empty.csv").write_text("")
    tiny.vnnlib(here / "comma.vnnlib", [(0, 1)] * 4, "(<= Y_0 1,5)")
    steep = [tiny.helper.make_node("HardSigmoid", ["x"], ["h"], name="h"), tiny.helper.make_node("MatMul", ["h", "w"], ["y"])]
    tiny.save(here / "double.onnx", steep, [1, 4], 3, {"w": np.eye(4)[:, :3]}, double=True)
    (here / "props").mkdir()
    np.save(here / "net.npy", np.arange(3))
    (here / "plain.onnx.gz").write_bytes((here / "net.onnx").read_bytes())
    (here / "cut.vnnlib.gz").write_bytes(gzip.compress((here / "safe.vnnlib").read_bytes())[:40])
    (here / "text.npz").write_text("hello")
    (here / "semicolons.csv").write_text("net.onnx;safe.vnnlib;60\n")
    (here / "wide.csv").write_text("net.onnx,safe.vnnlib,60\n", encoding="utf-16")
    (here / "turned.csv").write_text("safe.vnnlib,net.onnx,60\n")
    (here / "compiled.csv").write_text("net.poly,safe.vnnlib,60\n")
    (here / "heading.csv").write_text("onnx,vnnlib,timeout\n")
    pixels = np.linspace(0, 1, 8).reshape(2, 1, 2, 2)
    np.savez(here / "ok.npz", images=pixels, labels=[0, 1])
    np.savez(here / "rgb.npz", images=np.repeat(pixels, 3, axis=1), labels=[0, 1])
    np.savez(here / "labels.npz", images=pixels, labels=[0, 7])
    np.savez(here / "levels.npz", images=255 * pixels, labels=[0, 1])
    np.savez(here / "normal.npz", images=4 * pixels - 2, labels=[0, 1])
    np.savez(here / "few.npz", images=pixels, labels=[0])
    steps = (("Quantize", "x", "q"), ("Dequantize", "q", "y"))
    quantise = [tiny.helper.make_node(f"{kind}Linear", [x, "s", "z"], [y], name=y) for kind, x, y in steps]
    tiny.save(here / "quantised.onnx", quantise, [1, 3], 3, {"s": np.float32(0.1), "z": np.float32(0)})
    (here / "keras.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (here / "small.tflite").write_bytes(b"\0\0\0\0TFL3")
    (here / "weights.pth").write_bytes(b"PK\x03\x04")
    for name in ("pointer.onnx", "pointer.vnnlib"):
        (here / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n")
    (here / "page.onnx").write_text("\n<!DOCTYPE html><html>a model</html>")
    (here / "old.jsonl").write_text("{}\n")
    np.savez(here / "big.npz", images=np.zeros((2, 3, 4, 4)), labels=[0, 1])
    return here


def test_every_mistake_on_the_command_line(cli: Cli, furnished: Path) -> None:
    before = sorted(p.name for p in furnished.iterdir())
    for name, m in MISTAKES.items():
        said = cli(*m.command.split())
        assert said.code == m.code and not said.out, (name, said)
        message, _, remedy = said.err.partition("remedy: ")
        assert m.message in message and m.remedy in remedy, (name, said.err)
        assert said.err.count("remedy: ") == 1 and len(said.err.splitlines()) == 2, (name, said.err)
    assert sorted(p.name for p in furnished.iterdir()) in (before, sorted([*before, "cache"]))


def test_every_mistake_in_python(furnished: Path) -> None:
    net = polytriton.load("net.poly")
    x = np.array([[[0.9, 0.1], [0.2, 0.5]]])
    assert net.verify(x, epsilon="0.01").verdict == "unsat"
    assert net.verify(255 * x, epsilon="0.01", clip=(0, 255)).verdict == "unsat"  # a network may take levels: then one says so
    for name, m in MISTAKES.items():
        if m.python is None:
            continue
        with pytest.raises(polytriton.PolytritonError) as raised:
            m.python(net, x)
        assert (m.python_remedy or m.remedy) in raised.value.remedy, (name, str(raised.value))
        assert raised.value.exit_code == m.code, name


@pytest.fixture
def read_only(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder nobody may write to. Permissions do not hold back the superuser: for it the calls that would write are refused."""
    folder = here / "locked"
    folder.mkdir()
    (folder / "results.jsonl").write_text("")
    folder.chmod(0o555)
    (folder / "results.jsonl").chmod(0o444)
    if not os.access(folder, os.W_OK):
        return folder

    def refuse(module: Any, name: str, writes: Callable[..., bool]) -> None:
        real = getattr(module, name)

        def call(path: Any, *args: Any, **options: Any) -> Any:
            with suppress(TypeError):  # a file descriptor is no path
                if folder in Path(os.path.abspath(os.fspath(path))).parents and writes(*args, **options):
                    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            return real(path, *args, **options)

        monkeypatch.setattr(module, name, call)

    refuse(os, "mkdir", lambda *args, **options: True)
    refuse(os, "open", lambda flags=0, *args, **options: bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
    for module in (builtins, io):
        refuse(module, "open", lambda mode="r", *args, **options: any(c in mode for c in "wax+"))
    return folder


def test_a_folder_nobody_may_write_to(cli: Cli, furnished: Path, read_only: Path) -> None:
    assert cli("run", "net.poly", "--vnnlib", "safe.vnnlib", "--json", "results.jsonl").code == 0
    held = sorted(p.name for p in read_only.iterdir())
    for command in (
        "compile net.onnx -o locked/net.poly",
        "compile net.onnx --dump-ir --dump-dir locked/ir",
        "run net.poly --vnnlib safe.vnnlib --json locked/new.jsonl",
        "run net.poly --vnnlib safe.vnnlib --json locked/results.jsonl",
        "run net.poly --vnnlib safe.vnnlib --csv locked/results.csv",
        "report results.jsonl -o locked/report.html",
    ):
        said = cli(*command.split())
        assert said.code == 2 and "cannot write" in said.err and "locked/" in said.err and "Permission denied" in said.err, (command, said)
        assert said.err.count("remedy: choose") == 1, (command, said)
    net = polytriton.load("net.poly")
    with pytest.raises(polytriton.PolytritonError, match="cannot write") as raised:
        net.save("locked/net.poly")
    assert "choose a folder you may write to" in raised.value.remedy
    assert sorted(p.name for p in read_only.iterdir()) == held


def test_a_cache_nobody_may_write_to_costs_only_time(cli: Cli, read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTRITON_CACHE", str(read_only))
    said = cli("verify", "net.onnx", "safe.vnnlib")
    assert (said.code, said.out) == (0, "unsat\n")
