"""What results look like elsewhere: pandas tables, notebooks, the log."""

from __future__ import annotations

import base64
import builtins
import logging
import re
import struct
import subprocess
import sys
import zlib
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytriton
from polytriton.errors import UsageError
from polytriton.results import Counterexample, Picture, Result
from polytriton.show.picture import difference, is_picture, plane, png

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def net() -> polytriton.Verifier:
    return polytriton.compile(EXAMPLES / "digits_conv_normal.onnx")


@pytest.fixture(scope="module")
def results(net: polytriton.Verifier) -> list[Result]:
    with np.load(EXAMPLES / "digits.npz") as held:
        return list(net.verify(held["images"][20:24], "0.05", held["labels"][20:24], clip=(0, 1)))


def unpacked(data: bytes) -> np.ndarray:
    """A PNG as `png` writes it, read by its specification: checked chunks, no filter."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + body)
        chunks[kind] = body
        at += 12 + size
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert depth == 8 and rest == [0, 0, 0] and list(chunks) == [b"IHDR", b"IDAT", b"IEND"]
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, -1)
    assert not lines[:, 0].any()
    return lines[:, 1:].reshape((height, width, 3) if colour == 2 else (height, width))


# ---- tables ----


def test_results_as_a_table(results: list[Result]) -> None:
    pytest.importorskip("pandas")
    frame = polytriton.to_pandas(results)
    assert frame["verdict"].tolist() == [r.verdict for r in results] and frame["margin"].tolist() == [r.margin for r in results]
    assert frame["epsilon"].tolist() == ["1/20"] * 4
    for r, (_, row) in zip(results, frame.iterrows(), strict=True):
        assert r.margins[r.rivals.index(row["rival"])] == r.margin
        assert (row["counterexample"] is not None) == (r.verdict == "sat")
    assert results[0].to_pandas().equals(frame[:1])
    assert list(polytriton.to_pandas([]).columns) == list(frame.columns) and not len(polytriton.to_pandas(iter(())))
    with pytest.raises(UsageError, match="str"):
        polytriton.to_pandas(["unsat"])  # type: ignore[list-item]


def test_bounds_as_a_table(net: polytriton.Verifier) -> None:
    pytest.importorskip("pandas")
    b = net.bounds(np.zeros((2, 64)), np.full((2, 64), 0.1))
    frame = b.to_pandas()
    assert len(frame) == b.lo.size + sum(side.lo.size for side in b.layers.values())
    outputs = frame[frame["layer"] == "output"]
    assert np.array_equal(outputs[outputs["box"] == 1]["hi"], b.hi[1])
    conv = frame[(frame["layer"] == "conv2") & (frame["box"] == 0)]
    assert np.array_equal(conv["lo"], b.layers["conv2"].lo[0].ravel())


def test_without_pandas_one_message_says_what_to_install(results: list[Result], monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "pandas":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(UsageError, match="pip install pandas"):
        results[0].to_pandas()


# ---- notebooks ----


def test_png_files_hold_their_pixels() -> None:
    rng = np.random.default_rng(0)
    for shape in ((5, 7), (4, 4, 3), (1, 1)):
        levels = rng.integers(0, 256, shape, dtype=np.uint8)
        assert np.array_equal(unpacked(png(levels)), levels)
    assert np.array_equal(plane(np.array([[0, 0.5], [1, 7.0]])), [[0, 128], [255, 255]])
    assert plane(np.zeros((3, 4, 5))).shape == (4, 5, 3) and plane(np.zeros((1, 4, 5))).shape == (4, 5)
    x = np.full((4, 4), 0.3)
    y = x.copy()
    y[0, 0], y[1, 1] = 0.31, 0.29
    assert difference(x, y)[0, 0] == 255 and difference(x, y)[1, 1] == 0 and difference(x, y)[2, 2] == 128


@pytest.mark.parametrize(
    "shape,seen", [((28, 28), True), ((1, 8, 8), True), ((3, 32, 32), True), ((5,), False), ((2, 8, 8), False), ((1, 1, 5), False)]
)
def test_what_can_be_looked_at(shape: tuple[int, ...], seen: bool) -> None:
    assert is_picture(shape) == seen


def test_a_notebook_shows_image_counterexample_and_difference(results: list[Result]) -> None:
    sat = next(r for r in results if r.verdict == "sat")
    unsat = next(r for r in results if r.verdict == "unsat")
    assert sat.picture is not None and sat.counterexample is not None
    html = sat._repr_html_()
    images = [unpacked(base64.b64decode(v)) for v in re.findall(r'src="data:image/png;base64,([^"]+)"', html)]
    assert np.array_equal(images[0], plane(sat.picture.pixels))
    assert np.array_equal(images[1], plane(sat.counterexample.x[0]))
    assert len(images) == 3 and len(np.unique(images[2])) > 1
    assert "✗ violated</b> <small>sat</small>" in html and f"counterexample: {sat.counterexample.y.argmax()}" in html
    assert "at most 0.05" in html
    assert unsat._repr_html_().count("<img") == 1 and unsat._repr_html_().count("<tr>") == 10


def test_normalised_counterexamples_are_shown_as_pixels() -> None:
    clean = np.arange(48, dtype=np.uint8).reshape(3, 4, 4)
    mean, std = (Fraction(1, 10), Fraction(1, 5), Fraction(3, 10)), (Fraction(1, 2),) * 3
    shown = Picture(clean, Fraction(1, 100), mean, std)
    moved = clean / 255.0 + 0.01
    x = (moved - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.5
    assert np.abs(shown.restored(x[None]) - moved).max() < 1e-12 and shown.shown.max() == 47 / 255
    result = Result("sat", np.array([-1.0]), 0.1, Counterexample(x[None], np.array([0.0, 1.0])), 0, (1,), picture=shown)
    assert "difference, at most 0.01" in result._repr_html_()


def test_what_a_notebook_shows_is_escaped() -> None:
    html = Result("<script>", np.zeros(1), 0.0, semantics="a&b")._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "a&amp;b" in html


def test_a_verifier_shows_its_layers(net: polytriton.Verifier) -> None:
    html = net._repr_html_()
    assert all(f"<td>{n.name}</td>" in html for n in net.net)
    assert "<td>conv</td><td>16x4x4</td>" in html and "<td>512</td>" in html
    assert repr(net) == "<Verifier digits_conv_normal: 1x8x8 -> 10, device cpu, semantics float32, dtype auto>"


# ---- the log ----


def test_the_log_tells_what_was_asked(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="polytriton"):
        net = polytriton.compile(EXAMPLES / "digits_conv_ibp.onnx")
        net.verify(np.zeros(64), "0.01")
        net.verify(np.zeros((2, 64)), "0.01")
    infos = [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]
    assert re.fullmatch(r"compiled digits_conv_ibp: 8 nodes in \d+\.\d{3} s", infos[0])
    assert any(re.match(r"ball: (unsat|sat|unknown), margin ", m) for m in infos)
    assert any(m.startswith("2 images together: ") for m in infos)
    debug = [r for r in caplog.records if r.levelno == logging.DEBUG and r.name.startswith("polytriton")]
    assert any("forms in float32" in r.getMessage() for r in debug)


@pytest.mark.slow
def test_a_program_that_does_not_ask_hears_nothing() -> None:
    code = f"""
import numpy as np, polytriton
net = polytriton.compile({str(EXAMPLES / "digits_conv_ibp.onnx")!r})
net.verify(np.zeros(64), "0.01")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=EXAMPLES.parent)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
