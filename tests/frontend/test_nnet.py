"""The .nnet format: answers are those that its text states, normalised or not; commands take it; errors name the line."""

from __future__ import annotations

import gzip
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest

import polytriton
from polytriton.cli import main
from polytriton.errors import PolytritonError, UsageError

HEAD = "// made for a test\n//\n2,2,1,3,\n2,3,1,\n0,\n-1.0,-2.0,\n1.0,2.0,\n0.5,0.0,10.0,\n2.0,4.0,3.0,\n"
BODY = "1.0,-1.0,\n0.5,2.0,\n-1.0,0.1,\n0.0,\n-0.5,\n1e-1,\n1.0,-1.0,2.0,\n0.25,\n"


def drawn(path: Path, widths: list[int], seed: int) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """A random network as a file: what normalises it, and its layers, as the file has them."""
    rng = np.random.default_rng(seed)
    n, spell = widths[0], "{:.5e}".format
    norm = [-1 - rng.random(n), 1 + rng.random(n), rng.standard_normal(n + 1), 0.5 + rng.random(n + 1)]
    layers = [[rng.standard_normal((b, a)), rng.standard_normal((b, 1))] for a, b in pairwise(widths)]
    rows = [*norm, *(row for layer in layers for part in layer for row in part)]
    text = ["// drawn", f"{len(widths) - 1},{n},{widths[-1]},{max(widths)},", ",".join(map(str, widths)) + ",", "0,"]
    path.write_text("\n".join([*text, *(",".join(map(spell, row)) + "," for row in rows)]) + "\n")
    read = np.vectorize(lambda v: float(np.float32(float(spell(v)))))
    return [read(v) for v in norm], [[read(v) for v in layer] for layer in layers]


def answer(layers: list[list[np.ndarray]], x: np.ndarray) -> np.ndarray:
    for k, (w, b) in enumerate(layers):
        x = w @ x + b[:, 0]
        x = np.maximum(x, 0) if k + 1 < len(layers) else x
    return x


@pytest.mark.parametrize("widths", [[5, 7, 7, 5], [1, 1], [3, 4, 2]])
@pytest.mark.parametrize("normalize", [False, True])
def test_answers_are_what_the_text_states(tmp_path: Path, widths: list[int], normalize: bool) -> None:
    path = tmp_path / "net.nnet"
    (least, most, mean, span), layers = drawn(path, widths, seed=len(widths))
    net = polytriton.compile(polytriton.read_nnet(path, normalize=True) if normalize else path, semantics="real")
    rng = np.random.default_rng(1)
    for x in 3 * rng.standard_normal((20, widths[0])):
        x = x.astype(np.float32).astype(np.float64)
        want = answer(layers, x)
        if normalize:
            want = answer(layers, (np.clip(x, least, most) - mean[:-1]) / span[:-1]) * span[-1] + mean[-1]
        assert np.allclose(net.predict(x[None])[0], want, rtol=1e-4, atol=1e-4)
        found = net.bounds(x - 0.01, x + 0.01)
        assert (found.lo - 1e-4 <= want).all() and (want <= found.hi + 1e-4).all()


def test_weights_are_the_nearest_float32(tmp_path: Path) -> None:
    (tmp_path / "net.nnet").write_text(HEAD + BODY)
    held = [onnx.numpy_helper.to_array(t) for t in polytriton.read_nnet(tmp_path / "net.nnet").graph.initializer]
    assert all(a.dtype == np.float32 for a in held)
    assert held[0].tolist() == [[1, -1], [0.5, 2], [-1, float(np.float32(0.1))]] and held[1].tolist() == [0, -0.5, float(np.float32(0.1))]


def test_commands_take_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, packed, prop = tmp_path / "net.nnet", tmp_path / "net.nnet.gz", tmp_path / "p.vnnlib"
    path.write_text(HEAD + BODY)
    packed.write_bytes(gzip.compress(path.read_bytes()))
    names = "".join(f"(declare-const {n} Real)" for n in ("X_0", "X_1", "Y_0"))
    prop.write_text(names + "".join(f"(assert (>= X_{k} -1))(assert (<= X_{k} 1))" for k in (0, 1)) + "(assert (>= Y_0 100))")
    (tmp_path / "instances.csv").write_text("net.nnet,p.vnnlib,10\n")
    for words in (
        ["verify", str(path), str(prop)], ["verify", str(packed), str(prop)], ["run", "--instances", str(tmp_path / "instances.csv")],
        ["compile", str(path), "-o", str(tmp_path / "net.poly")], ["verify", str(tmp_path / "net.poly"), str(prop)], ["inspect", str(path)],
    ):  # fmt: skip
        assert main(words) == 0
        out = capsys.readouterr().out
        assert "unsat" in out or words[0] in ("compile", "inspect")
    assert main(["verify", str(path), str(prop), "--certificate", str(tmp_path / "a.cert")]) == 2
    assert "polytriton.read_nnet" in capsys.readouterr().err
    onnx.save(polytriton.read_nnet(path), tmp_path / "net.onnx")
    assert main(["verify", str(tmp_path / "net.onnx"), str(prop), "--certificate", str(tmp_path / "a.cert")]) == 0
    assert (tmp_path / "a.cert").is_file()


BROKEN = {
    "no numbers": ("", "ends too early"),
    "cut off": (HEAD + BODY[:30], "ends too early"),
    "a row of three": (HEAD + BODY.replace("0.5,2.0,", "0.5,2.0,1.0,"), "line 11: 2 numbers must stand here, not 3"),
    "a word": (HEAD + BODY.replace("0.5,2.0,", "0.5,two,"), "line 11: numbers must stand here"),
    "too large": (HEAD + BODY.replace("0.25", "1e39"), "line 17: it holds a number that no float32 is"),
    "nan": (HEAD + BODY.replace("0.25", "nan"), "no float32"),
    "more": (HEAD + BODY + "1.0,\n", "line 18: the file goes on"),
    "widths": (HEAD.replace("2,3,1,", "2,3,2,") + BODY, "are not those of 2 inputs and 1 outputs"),
    "no layers": (HEAD.replace("2,2,1,3", "0,2,1,3") + BODY, "whole numbers above 0"),
    "negative": (HEAD.replace("2,3,1,", "2,-3,1,") + BODY, "whole numbers above 0"),
    "bytes": ("\x00\x01,\xff", "whole numbers above 0"),
    "huge": (HEAD.replace("2,2,1,3,\n2,3,1,", "2,2,1,3,\n2,999999999,1,") + BODY, "more than 268435456 weights"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_wrong_is_told_by_its_line(tmp_path: Path, name: str) -> None:
    text, words = BROKEN[name]
    (tmp_path / "net.nnet").write_bytes(text.encode("latin-1"))
    with pytest.raises(PolytritonError, match=words) as caught:
        polytriton.compile(tmp_path / "net.nnet")
    assert caught.value.exit_code == 2 and "ONNX" in caught.value.remedy


def test_a_normalisation_that_cannot_be(tmp_path: Path) -> None:
    for text in (HEAD.replace("2.0,4.0,3.0", "2.0,0.0,3.0"), HEAD.replace("-1.0,-2.0", "-1.0,5.0")):
        (tmp_path / "net.nnet").write_text(text + BODY)
        polytriton.read_nnet(tmp_path / "net.nnet")
        with pytest.raises(UsageError, match="normalisation"):
            polytriton.read_nnet(tmp_path / "net.nnet", normalize=True)
    with pytest.raises(UsageError, match="cannot read"):
        polytriton.compile(tmp_path / "none.nnet")
