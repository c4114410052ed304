"""The examples run as their readers would run them, and what the pages print of them is true."""

from __future__ import annotations

import gzip
import re
import runpy
import struct
import subprocess
import sys
from fractions import Fraction
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import polytriton
from polytriton.frontend import torch_module
from tests.processes import plain_environment

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


class Script:
    """An example run in this process: its exit code must be `code`; what it wrote comes back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, script: str, *words: str | Path, code: int | None = 0) -> tuple[str, str]:
        self.monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
        self.capsys.readouterr()
        assert runpy.run_path(str(EXAMPLES / script))["main"]() == code
        out, err = self.capsys.readouterr()
        return out, err


@pytest.fixture
def python(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Script:
    return Script(monkeypatch, capsys)


# ---- deployed arithmetic ----


@pytest.mark.slow
def test_the_page_prints_what_the_example_prints(python: Script) -> None:
    out, _ = python("deployed_arithmetic.py", code=None)
    page = (ROOT / "docs" / "deployed-arithmetic.md").read_text(encoding="utf-8")
    for line in out.splitlines():
        if "--semantics float32" in line:  # onnxruntime's own order is the machine's affair
            assert line.split(":")[1].startswith((" sat", " unknown")), line
        else:
            assert f"    {line}\n" in page, line
    assert out.count("--semantics real: unsat") == 3


def test_the_orders_are_what_the_example_says() -> None:
    """Exact rationals beside float32, and the verdicts beside both."""
    held = runpy.run_path(str(EXAMPLES / "deployed_arithmetic.py"))
    big = int(held["BIG"])
    for h1, x0 in ((Fraction(3, 4), Fraction(1, 2)), (Fraction(5, 4), Fraction(1))):
        terms = [Fraction(big) * x0, h1, -Fraction(big) * x0]
        assert sum(terms) - Fraction(1, 4) >= Fraction(1, 2)
        floats = [np.float32(float(t)) for t in terms]
        assert [Fraction(float(f)) for f in floats] == terms, "a term was rounded before the sum"
        answers = {order: held["in_order"](floats, order) for order in permutations(range(3))}
        assert {order for order, y in answers.items() if y > 0.25} == {(0, 2, 1), (2, 0, 1)}
    for order in ((0, 1, 2), (0, 2, 1)):
        proto = held["cancelling"](order)
        box = np.array([0.5, 0.25]), np.array([1.0, 0.75])
        lower = {s: polytriton.compile(proto, check=False, semantics=s).margins(*box, [[1, -1]])[0, 0] for s in ("real", "float32")}
        assert 0.49 < lower["real"] <= 0.5 and lower["float32"] <= -0.25


# ---- the tour ----


def test_the_tour_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    names = runpy.run_path(str(EXAMPLES / "digits_tour.py"))
    out = capsys.readouterr().out
    assert "counterexample" in out
    proved = names["proved"]
    assert proved["digits_conv_ibp"][0] >= proved["digits_conv_normal"][0]
    assert names["again"].net.name == "digits_conv_ibp"
    text = (EXAMPLES / "digits_tour.py").read_text()
    assert text.count("\n# %% ") >= 5


# ---- the loop ----


@pytest.mark.slow
def test_a_controller_stays_safe(python: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    out, _ = python("closed_loop.py", tmp_path / "tube.svg")
    steps = [line for line in out.splitlines() if line.startswith("step ")]
    assert len(steps) == 10 and "within 3, velocity within 1.5" in out.splitlines()[-1]
    assert (tmp_path / "tube.svg").read_text().count("<circle") == 1000


def test_simulations_of_the_loop_stay_in_the_tube() -> None:
    """The controller in onnxruntime, the dynamics in float32 beside it, step by step; and what the loop must not be: always safe."""
    held = runpy.run_path(str(EXAMPLES / "closed_loop.py"))
    steps, (lo, hi) = 4, held["START"]
    loop = polytriton.compile(held["unroll"](onnx.load(held["CONTROLLER"]), steps))
    tube = polytriton.reach(loop, (lo, hi), planes=[(2 * t, 2 * t + 1) for t in range(steps)], angles=8, pieces=16, samples=0)
    controller = onnxruntime.InferenceSession(str(held["CONTROLLER"]))
    a, b = np.float32(held["A"]), np.float32(held["B"])
    rng, seen = np.random.default_rng(0), []
    for _ in range(100):
        x, states = np.float32(rng.uniform(lo, hi)), []
        for _ in range(steps):
            (u,) = controller.run(None, {"state": x[None]})
            x = np.float32(a @ x + b * u[0])
            states.append(x)
        seen.append(np.concatenate(states))
        assert tube.contains(seen[-1])
    assert (tube.hi - tube.lo < 1.6 * np.ptp(seen, axis=0) + 0.02).all(), "a tube, not a funnel"
    _, y = loop.variables()
    reached = polytriton.Property((lo, hi), unsafe=y[2 * steps - 1] <= float(np.min(seen, axis=0)[-1]))
    assert loop.verify_property(reached, timeout=20).verdict != "unsat"


@pytest.mark.slow
def test_the_controller_is_what_its_script_trains(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(EXAMPLES / "train_controller.py"), str(tmp_path / "own.onnx")], check=True, timeout=600)
    x = np.random.default_rng(0).uniform([-4, -2], [4, 2], (200, 2)).astype(np.float32)
    answers = []
    for path in (EXAMPLES / "controller.onnx", tmp_path / "own.onnx"):
        session = onnxruntime.InferenceSession(str(path))
        answers.append([session.run(None, {"state": v[None]})[0][0, 0] for v in x])
    assert np.abs(np.subtract(*answers)).max() < 0.02


# ---- certify_images ----


def idx(path: Path, values: np.ndarray, packed: bool) -> None:
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    data = header + values.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if packed else data)


@pytest.fixture
def digits() -> tuple[np.ndarray, np.ndarray]:
    with np.load(EXAMPLES / "digits.npz") as held:
        return np.rint(held["images"][:6, 0] * 255).astype(np.uint8), held["labels"][:6].astype(np.uint8)


@pytest.mark.parametrize("packed", [True, False])
def test_mnist_files(python: Script, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path, packed: bool) -> None:
    images, labels = digits
    end = ".gz" if packed else ""
    idx(tmp_path / f"t10k-images-idx3-ubyte{end}", images, packed)
    idx(tmp_path / f"t10k-labels-idx1-ubyte{end}", labels, packed)
    net = EXAMPLES / "digits_conv_ibp.onnx"
    for data in (tmp_path, tmp_path / f"t10k-images-idx3-ubyte{end}"):
        out, err = python("certify_images.py", net, data, "--epsilon", "0.05", "--batch", "4")
        assert out.splitlines()[-1].startswith("6 images, 6 classified rightly, 6 certified at epsilon 0.05")
        assert [line.split()[:3] for line in out.splitlines()[1:7]] == [[str(k), str(v), "unsat"] for k, v in enumerate(labels)]
        assert "6/6" in err
    out, _ = python("certify_images.py", net, tmp_path, "--epsilon", "0.05", "--start", "2", "--count", "2", "--csv", tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text().splitlines()[0] == "image,label,verdict,margin,seconds"
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 3 and out.splitlines()[1].split()[0] == "2"


def test_cifar_files(python: Script, tmp_path: Path) -> None:
    import torch

    python.monkeypatch.setattr(torch_module, "find_spec", lambda name: None)  # the quicker exporter
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 8, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 10))
    polytriton.compile(module, torch.rand(1, 3, 32, 32)).save(tmp_path / "net.poly")
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (5, 3072), dtype=np.uint8), np.arange(5, dtype=np.uint8)[:, None]
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    np.concatenate([labels, images], 1).tofile(folder / "test_batch.bin")
    words = ("--epsilon", "1/2550", "--mean", "0.4914,0.4822,0.4465", "--std", "0.2023,0.1994,0.2010")
    out, _ = python("certify_images.py", tmp_path / "net.poly", folder, *words)
    net = polytriton.load(tmp_path / "net.poly")
    want = net.verify(
        images.reshape(5, 3, 32, 32),
        "1/2550",
        labels.ravel(),
        clip=(0, 1),
        mean=["0.4914", "0.4822", "0.4465"],
        std=["0.2023", "0.1994", "0.2010"],
    )
    assert [line.split()[2] for line in out.splitlines()[1:6]] == [r.verdict for r in want]
    answers = net.predict(images.reshape(5, 3, 32, 32), mean=(0.4914, 0.4822, 0.4465), std=(0.2023, 0.1994, 0.2010)).argmax(1)
    assert f"5 images, {int((answers == labels.ravel()).sum())} classified rightly" in out


@pytest.mark.slow
def test_as_a_program(tmp_path: Path) -> None:
    words = (EXAMPLES / "digits_conv_ibp.onnx", EXAMPLES / "digits.npz", "--epsilon", "0.05", "--count", "2")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "certify_images.py"), *map(str, words)],
        capture_output=True, text=True, timeout=300, cwd=tmp_path, env=plain_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "2 images, 2 classified rightly, 2 certified at epsilon 0.05 (float32 arithmetic)"


def test_npz_and_csv_files(python: Script, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    images, labels = digits
    np.savez(tmp_path / "a.npz", images=images, labels=labels)
    np.savetxt(tmp_path / "a.csv", np.concatenate([labels[:, None], images.reshape(6, -1)], 1), fmt="%d", delimiter=",")
    outs = [
        python("certify_images.py", EXAMPLES / "digits_conv_ibp.onnx", tmp_path / n, "--epsilon", "0.05")[0] for n in ("a.npz", "a.csv")
    ]
    verdicts = [[line.split()[:4] for line in out.splitlines()[1:7]] for out in outs]
    assert verdicts[0] == verdicts[1] and {v[2] for v in verdicts[0]} == {"unsat"}


def test_mistakes_with_data_files_meet_a_message(python: Script, digits: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    read: Any = runpy.run_path(str(EXAMPLES / "certify_images.py"))["read"]
    images, labels = digits
    idx(tmp_path / "short-images-idx3-ubyte", images, False)
    data = (tmp_path / "short-images-idx3-ubyte").read_bytes()
    cases: dict[str, tuple[str, bytes]] = {
        "cut": ("cut-images-idx3-ubyte", data[:-5]),
        "not gzip": ("a-images-idx3-ubyte.gz", data),
        "labels for images": ("b-images-idx3-ubyte", struct.pack(">HBBI", 0, 8, 1, 6) + labels.tobytes()),
        "no labels": ("c-images-idx3-ubyte", data),
        "pickled": ("data_batch_1", b"\x80\x02}q\x01"),
        "record size": ("test_batch.bin", bytes(3072)),
        "label range": ("other_batch.bin", bytes([11]) + bytes(3072)),
    }
    for name, (file, content) in cases.items():
        (tmp_path / file).write_bytes(content)
        with pytest.raises(polytriton.PolytritonError) as caught:
            read(tmp_path / file)
        assert caught.value.remedy and "\n" not in caught.value.message, name
    (tmp_path / "empty").mkdir()
    for missing in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(polytriton.PolytritonError):
            read(missing)
    out, err = python("certify_images.py", EXAMPLES / "digits_conv_ibp.onnx", tmp_path / "nowhere", "--epsilon", "0.05", code=2)
    assert out == "" and err.count("\n") == 2 and "remedy" in err
    np.savez(tmp_path / "wide.npz", images=np.zeros((2, 28, 28), np.uint8), labels=np.zeros(2, int))
    np.savez(tmp_path / "fits.npz", images=images, labels=labels)
    _, err = python("certify_images.py", EXAMPLES / "digits_conv_ibp.onnx", tmp_path / "fits.npz", "--epsilon", "8%", code=2)
    assert "epsilon" in err
    _, err = python("certify_images.py", EXAMPLES / "digits_conv_ibp.onnx", tmp_path / "wide.npz", "--epsilon", "0.1", code=2)
    assert "64" in err


# ---- a transformer ----


def test_a_transformer_is_proved_at_small_radii() -> None:
    """Ten of the fifty images that examples/train_vit.py asks about."""
    path = EXAMPLES / "vit" / "digits_vit.onnx"
    assert path.stat().st_size < 200_000
    net = polytriton.compile(path)
    assert {"mul", "share"} <= {n.op for n in net.net}, "products of tokens, and Softmax"
    with np.load(EXAMPLES / "digits.npz") as held:
        images, labels = held["images"][:10], held["labels"][:10]
    right = net.predict(images).argmax(1) == labels
    results = net.verify(images, epsilon="0.01", label=labels, clip=(0, 1), falsifier=False)
    proved = np.array([r.verdict == "unsat" for r in results])
    assert proved.sum() >= 8 and not proved[~right].any()


@pytest.mark.slow
def test_a_transformer_is_trained(python: Script, tmp_path: Path) -> None:
    out, _ = python("train_vit.py", tmp_path, "--epochs", "30", code=None)
    assert (tmp_path / "digits_vit.onnx").stat().st_size < 200_000
    assert int(re.search(r"(\d+)% proved at 0\.01", out)[1]) >= 50  # type: ignore[index]
