"""Forged certificates. One is accepted only if what it says still proves the property; of a violated property none is."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polytriton import checker
from polytriton.certificate.write import certify
from tests.certificate.models import ROOT, change, dense, exact_dense, prop, refused

NET, SPECS = ROOT / "examples" / "digits_conv_normal.onnx", ROOT / "examples" / "specs"
Tensors = dict[str, Any]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[Path, Path], bytes, list[tuple[np.ndarray, np.ndarray]]]:
    """A network of two hidden layers whose property takes substitutions, its certificate and its weights."""
    folder, rng = tmp_path_factory.mktemp("small"), np.random.default_rng(8)
    layers = [(rng.normal(size=s).astype(np.float32), np.zeros(s[0], np.float32)) for s in ((6, 3), (6, 6), (1, 6))]
    path = dense(folder / "n.onnx", layers)
    box = [(Fraction(-3, 10), Fraction(2, 10))] * 3
    corners = [exact_dense(layers, [Fraction(box[i][m >> i & 1]) for i in range(3)])[-1][0] for m in range(8)]
    for extra in range(100):  # the first bound that a certificate reaches
        bound = float(max(corners)) + extra / 20
        files = path, prop(folder / "p.vnnlib", [(float(a), float(b)) for a, b in box], 1, f"(>= Y_0 {bound})")
        with suppress(checker.Refused):
            data = certify(*files)
            (folder / "c").write_bytes(data)
            assert checker.check(*files, folder / "c")[1] > 4
            return files, data, layers
    raise AssertionError


def flip(name: str, k: int, value: float) -> Callable[[Tensors], None]:
    def act(t: Tensors) -> None:
        t[name][k] = value

    return act


@pytest.mark.parametrize("name", ["0.0", "0.1"])
def test_every_line_and_bound_of_a_small_certificate(small: Any, tmp_path: Path, name: str) -> None:
    """Each number moved by itself: what must be refused follows from exact evaluation of the claim."""
    files, data, layers = small
    held = checker.read(data)[2]
    at, lo, hi, up, cut = (held[f"{name}.{part}"] for part in ("index", "lo", "hi", "up", "cut"))
    assert len(at) > 2
    points = np.random.default_rng(1).uniform(-0.3, 0.2, (200, 3)).tolist()
    reached = [exact_dense(layers, [Fraction(v) for v in x])[int(name[-1])] for x in points]
    tried = 0
    for k, neuron in enumerate(at.tolist()):
        least, most = min(v[neuron] for v in reached), max(v[neuron] for v in reached)
        mixed = lo[k] < 0 < hi[k]
        for part, value, must in [
            ("low", -1e-9, mixed), ("low", np.nextafter(1, 2), mixed), ("low", np.nan, True), ("low", np.inf, True),
            ("up", np.nan, True), ("cut", -np.inf, True), ("lo", -np.inf, True), ("lo", np.nan, True),
            ("lo", float(least) + 1e-6, True), ("hi", float(most) - 1e-6, True), ("lo", hi[k] + 1, True),
            ("lo", 2 * lo[k] - 1e-6, mixed), ("hi", 2 * hi[k] + 1e-6, mixed),  # true, but the line above is now cut
            ("cut", float(cut[k]) * 0.999 if mixed else np.nan, True), ("up", float(up[k]) * 0.99 if mixed else np.nan, True),
            ("up", float(up[k]) * 1.01 if mixed else np.nan, True),
        ]:  # fmt: skip
            why = refused(files, change(data, flip(f"{name}.{part}", k, value)), tmp_path)
            assert why is not None or not must, (name, k, part, value)
            tried += must
    assert tried > 20


def test_lines_that_stay_valid_are_judged_by_what_they_prove(small: Any, tmp_path: Path) -> None:
    """Any slope in [0, 1] is sound: accepted exactly where the margin, derived from it anew, is still the one claimed."""
    files, data, _ = small
    counts = {True: 0, False: 0}
    for slope in (0.0, 0.25, 0.5, 1.0):
        for name in ("0.0.low", "0.1.low"):
            for k in range(len(checker.read(data)[2][name])):
                why = refused(files, change(data, flip(name, k, slope)), tmp_path)
                assert why is None or "claimed" in why
                counts[why is None] += 1
    assert counts[True] > 0 < counts[False]


@pytest.mark.parametrize(
    "forge",
    [
        lambda t: t.update({"0.0.index": t["0.0.index"][::-1].copy()}),
        lambda t: t.update({"0.0.index": np.full_like(t["0.0.index"], 1)}),
        lambda t: t.update({"0.0.index": t["0.0.index"] + 10_000}),
        lambda t: t.update({"0.0.index": t["0.0.index"] - 10_000}),
        lambda t: t.update({"0.0.index": t["0.0.index"].astype(np.float64)}),
        lambda t: t.update({"0.1.lo": t["0.1.lo"][:-1].copy()}),
        lambda t: t.update({f"0.1.{n}": t[f"0.1.{n}"][1:].copy() for n in ("index", "lo", "hi", "low", "up", "cut")}),
        lambda t: t.pop("0.1.hi"),
        lambda t: [t.pop(n) for n in list(t) if n.startswith("0.0.")],
        lambda t: t.update({n.replace("0.0.", "0.1."): v for n, v in list(t.items()) if n.startswith("0.0.")}),
        lambda t: t.update({"0.0.low": t["0.0.low"].astype(np.float32)}),
    ],
)
def test_other_shapes_indices_and_names(small: Any, tmp_path: Path, forge: Callable[[Tensors], Any]) -> None:
    files, data, _ = small
    assert refused(files, change(data, forge), tmp_path) is not None


ODD = (
    '"1/0"', '"1e999999999"', '"1e-99999999"', "1e999999999", "1e-99999999", '"nan"', "NaN", "Infinity", "-Infinity", "null", "[]", "{}",
    "9" * 1_000_000, f'"{"9" * 1_000_000}"', "1e" + "9" * 1_000_000, "0." + "0" * 1_000_000, '"0x1p3"', '""',
)  # fmt: skip


@pytest.mark.parametrize(
    "forge",
    [
        lambda m: m.update(onnx="0" * 64), lambda m: m.update(vnnlib="0" * 64), lambda m: m.update(semantics="float32"),
        lambda m: m.update(version="2"), lambda m: m.pop("data"), lambda m: m.pop("rows"),
        lambda m: m.update(rows="[]"), lambda m: m.update(rows="[[[1, 0.1]]]"), lambda m: m.update(rows="[[[-1, 0.1]]]"),
        lambda m: m.update(rows="[[[0, 1e9]]]"), lambda m: m.update(rows="[[[0, 0]]]"), lambda m: m.update(rows="[[[0, -1]]]"),
        lambda m: m.update(rows="[[[0, NaN]]]"), lambda m: m.update(rows="[[[0, -Infinity]]]"), lambda m: m.update(rows="[" * 100_000),
        lambda m: m.update(rows="[[[0, 0.1], [0, 0.1]]]"), lambda m: m.update(rows='[[["0x", 0.1]]]'), lambda m: m.update(rows="1" * 5000),
        lambda m: m.update(rows=f"[[[0, 1{'0' * 1000}]]]"),
        *(lambda m, n=n: m.update(rows=f"[[[0, {n}]]]") for n in ODD), *(lambda m, n=n: m.update(rows=f"[[[{n}, 0.1]]]") for n in ODD),
        lambda m: m.update(rows="[" * 1_000_000 + "]" * 1_000_000), lambda m: m.update(rows='{"a":' * 1_000_000),
    ],
)  # fmt: skip
def test_other_headers(small: Any, tmp_path: Path, forge: Callable[[dict[str, Any]], Any]) -> None:
    files, data, _ = small
    began = time.process_time()
    assert refused(files, change(data, meta=forge), tmp_path) is not None
    assert time.process_time() - began < 5


def test_bits_flipped_anywhere_are_noticed(small: Any, tmp_path: Path) -> None:
    """Header or numbers, whole or cut short: refused, and never by another exception."""
    files, data, _ = small
    rng = np.random.default_rng(4)
    for _ in range(400):
        bad = bytearray(data)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        why = refused(files, bytes(bad), tmp_path)
        if why is None:  # a sign of the JSON that carries no meaning, or a margin that still follows
            assert checker.read(bytes(bad))[0].items() >= {k: v for k, v in checker.read(data)[0].items() if k != "rows"}.items()
    for end in (0, 3, 8, 9, 200, len(data) - 1):
        assert refused(files, data[:end], tmp_path) is not None
    assert refused(files, bytes(8) + data, tmp_path) is not None
    assert refused(files, b"\xff" * 8 + data[8:], tmp_path) is not None


def test_the_files_themselves(small: Any, tmp_path: Path) -> None:
    files, data, _ = small
    for k in (0, 1):
        other = [Path(f) for f in files]
        other[k] = tmp_path / files[k].name
        text = bytearray(files[k].read_bytes())
        other[k].write_bytes(bytes(text) + b"\n" if k else bytes(text[:-40] + bytes([text[-40] ^ 1]) + text[-39:]))
        assert refused((other[0], other[1]), data, tmp_path) is not None


# ---- violated properties


def rehashed(data: bytes, files: tuple[Path, Path], rows: Any) -> bytes:
    """Another property's certificate, claiming to be of these files."""
    hashes = checker.load(*files)[2]
    return change(data, meta=lambda m: m.update(hashes | {"rows": json.dumps(rows)}))


@pytest.mark.parametrize("name", ["digits_conv_normal_21_0.05", "digits_conv_ibp_48_0.1", "digits_resnet_normal_21_0.05"])
def test_no_certificate_of_a_violated_property_is_accepted(tmp_path: Path, name: str) -> None:
    """Made by an author who lies: another box's bounds, bounds pulled together, lines pulled down, everything settled, noise."""
    net = ROOT / "examples" / f"{'_'.join(name.split('_')[:3])}.onnx"
    files = net, SPECS / f"{name}.vnnlib"
    with pytest.raises(checker.Refused, match="do not prove"):
        certify(*files)
    donor = next(p for p in sorted(SPECS.glob(f"{net.stem}_*.vnnlib")) if p != files[1] and _certified(net, p))
    rows = [[[0, 1e-6]] * len(group) for group in checker.load(*files)[1].values()]
    base = rehashed(certify(net, donor), files, rows)
    assert refused(files, base, tmp_path) is not None
    network, pieces, _ = checker.load(*files)
    honest = _interval_claims(network, next(iter(pieces)))
    rng = np.random.default_rng(0)

    def noise(t: Tensors) -> None:
        for key in t:
            if not key.endswith("index"):
                t[key] = t[key] * rng.normal(1, 0.3, len(t[key]))

    def settle(t: Tensors) -> None:
        for key in t:
            t[key] = np.zeros_like(t[key]) if key.endswith((".lo", ".hi")) else t[key]

    def shrink(factor: float) -> Callable[[Tensors], None]:
        def act(t: Tensors) -> None:
            for key in t:
                t[key] = t[key] * factor if key.endswith((".lo", ".hi", ".cut")) else t[key]

        return act

    def flat(t: Tensors) -> None:
        for key in t:
            t[key] = np.zeros_like(t[key]) if key.endswith((".up", ".cut", ".low")) else t[key]

    def identity(t: Tensors) -> None:
        for key in t:
            t[key] = np.full_like(t[key], float(not key.endswith(".cut"))) if key.endswith((".low", ".up", ".cut")) else t[key]

    for start in (base, change(base, lambda t: (t.clear(), t.update(honest)))):
        for forge in (noise, settle, shrink(0.5), shrink(0.999), shrink(0.0), shrink(-1.0), flat, identity, lambda t: t.clear()):
            assert refused(files, change(start, forge), tmp_path) is not None


def test_a_neuron_that_is_not_listed_is_not_taken_for_settled(tmp_path: Path) -> None:
    """relu(x) over [-1, 1] reaches 1; without lines it would seem to be zero."""
    path = dense(tmp_path / "r.onnx", [(np.ones((2, 1)), np.array([0.0, 1.0])), (np.ones((1, 2)), np.zeros(1))])
    true = path, prop(tmp_path / "t.vnnlib", [(-1, 1)], 1, "(>= Y_0 3.1)")
    false = path, prop(tmp_path / "f.vnnlib", [(-1, 1)], 1, "(>= Y_0 2.9)")
    data = certify(*true)
    assert refused(true, data, tmp_path) is None
    empty = change(data, lambda t: t.update({name: value[:0].copy() for name, value in t.items()}))
    assert "no lines" in str(refused(true, empty, tmp_path))
    assert "no lines" in str(refused(false, rehashed(empty, false, [[[0, 0.01]]]), tmp_path))
    assert "margin" in str(refused(false, rehashed(data, false, [[[0, 0.01]]]), tmp_path))


def _certified(net: Path, spec: Path) -> bool:
    try:
        certify(net, spec)
    except checker.Refused:
        return False
    return True


def _interval_claims(net: checker.Network, box: checker.Box) -> Tensors:
    """True bounds and lines for every neuron of both signs, found by intervals alone."""
    from polytriton.certificate.write import claim

    boxes, made, relus = checker.Boxes(net, box), {}, 0
    for k in range(1, len(net.ops)):
        if net.ops[k].kind == "relu":
            found = claim(boxes, k, refine=False)
            boxes.accept(k, found)
            made |= {f"0.{relus}.{name}": value for name, value in found.items()}
            relus += 1
        boxes.interval(k)
    return made
