"""Forged certificates. What is accepted follows from the checker's own bounds; of a violated property nothing is accepted."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from polytriton import checker
from polytriton.certificate import guide as guides
from polytriton.certificate.write import pack
from tests.certificate.models import ROOT, certify, change, dense, prop, refused
from tests.certificate.nodes import Node
from tests.prove.piecewise import Form, Small, drawn, least

SPECS = ROOT / "examples" / "specs"
Tensors = dict[str, Any]
Files = tuple[Path, Path]


def written(folder: Path, monkeypatch: pytest.MonkeyPatch, kind: str, semantics: str) -> tuple[Files, Files, bytes, Small]:
    """A network, a property with a certificate whose tree divides by `kind`, and one that misses being true by nothing."""
    monkeypatch.setattr(guides, "FEW", 64 if kind == "cuts" else 0)
    for seed in range(100):
        rng = np.random.default_rng(seed)
        net = drawn(rng, 2, (4, 4))
        onnx.save(net.model(), path := folder / "n.onnx")
        best, _ = least(net, [Form((Fraction(1),), (Fraction(0),) * 2, Fraction(0))], [Fraction(-1)] * 2, [Fraction(1)] * 2)
        rows = [(folder / f"{name}.vnnlib", f"(<= Y_0 {float(best) - gap})") for name, gap in (("t", 0.125), ("f", 0))]
        true, false = ((path, prop(file, [(-1, 1)] * 2, 1, row)) for file, row in rows)
        try:
            data = certify(*true, semantics=semantics)
        except checker.Refused:
            continue
        if len(checker.read(data)[1][0]["split"]) >= 5:
            return true, false, data, net
    raise AssertionError


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Files, Files, bytes, Small]]:
    with pytest.MonkeyPatch.context() as patch:
        kinds = (("cuts", "real"), ("cuts", "float32"), ("signs", "real"), ("signs", "float32"))
        return {f"{k} {s}": written(tmp_path_factory.mktemp(k), patch, k, s) for k, s in kinds}


KINDS = ("cuts real", "cuts float32", "signs real", "signs float32")


def at(name: str, k: int, value: Any) -> Callable[[Tensors], None]:
    def act(t: Tensors) -> None:
        t[f"0.{name}"][k] = value

    return act


def cell(name: str, find: Callable[[Tensors], int], value: Callable[[Tensors], Any]) -> Callable[[Tensors], None]:
    def act(t: Tensors) -> None:
        t[f"0.{name}"][find(t)] = value(t)

    return act


def divided(t: Tensors) -> int:
    return int(np.flatnonzero(t["0.split"] >= 0)[0])


def short(count: int, *names: str) -> Callable[[Tensors], None]:
    """The last entries left out."""
    return lambda t: t.update({f"0.{n}": t[f"0.{n}"][:-count].copy() for n in names})


NODES, ROWS = ("split", "cut", "inner", "query"), ("node", "piece", "row")
FORGERIES: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "a leaf is missing": (short(1, *NODES), "fit together"),
    "two leaves are missing": (short(2, *NODES), "fit together"),
    "a divided node calls itself a leaf": (cell("split", divided, lambda t: -1), "fit together"),
    "a leaf calls itself divided": (at("split", -1, 0), "fit together"),
    "no node at all": (lambda t: t.update({k: v[:0].copy() for k, v in t.items()}), "fit together"),
    "leaves above, nodes below": (lambda t: t.update({"0.split": t["0.split"][::-1].copy()}), "parent"),
    "about another box": (at("own", 0, 1), "that is none"),
    "about a negative box": (at("own", 0, -1), "that is none"),
    "about another piece": (at("own", 1, 1), "that is none"),
    "about a negative piece": (at("own", 1, -1), "that is none"),
    "about one more piece": (lambda t: t.update({"0.own": np.array([0, 0, 1], np.int32)}), "that is none"),
    "about no piece": (short(1, "own"), "fit together"),
    "about nothing": (short(2, "own"), "fit together"),
    "refuted in a node that is none": (lambda t: t["0.node"].__setitem__(-1, len(t["0.split"])), "out of order"),
    "refuted in a negative node": (at("node", 0, -1), "out of order"),
    "refuted out of order": (lambda t: t.update({"0.node": t["0.node"][::-1].copy()}), "out of order"),
    "another piece": (at("piece", -1, 1), "a row that is none"),
    "a negative piece": (at("piece", -1, -1), "a row that is none"),
    "another row": (at("row", -1, 1), "a row that is none"),
    "a negative row": (at("row", -1, -1), "a row that is none"),
    "a vast row": (at("row", -1, 2**31 - 1), "a row that is none"),
    "steps without end": (at("inner", -1, 2**31 - 1), "steps"),
    "queries without end": (at("query", -1, 1001), "steps"),
    "a neuron that is none": (cell("split", divided, lambda t: 2**31 - 1), "there is none"),
    "the neuron behind the last": (cell("split", divided, lambda t: 2 + 8), "there is none"),
    "a tensor is missing": (lambda t: t.pop("0.row"), "tensors missing"),
    "a tensor too many": (lambda t: t.update({"1.row": t["0.row"]}), "tensors missing"),
    "a tensor of another name": (lambda t: t.update({"0.rows": t.pop("0.row")}), "in its header"),
    "floats for integers": (lambda t: t.update({"0.split": t["0.split"].astype(np.float64)}), "another type"),
    "cuts in float32": (lambda t: t.update({"0.cut": t["0.cut"].astype(np.float32)}), "type|in its header"),
    "rows and pieces of two lengths": (short(1, "row"), "fit together"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORGERIES)
def test_what_no_tree_says_is_refused(small: Any, tmp_path: Path, name: str) -> None:
    forge, says = FORGERIES[name]
    for kind in KINDS:
        true, _, data, _ = small[kind]
        why = refused(true, change(data, forge), tmp_path)
        assert why is not None
        assert any(word in why for word in says.split("|")), why


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.0, -1.0, 2.0, np.nextafter(1, 2)])
def test_cuts_outside_the_box_are_refused(small: Any, tmp_path: Path, value: float) -> None:
    true, _, data, _ = small["cuts real"]
    assert "outside its box" in str(refused(true, change(data, cell("cut", divided, lambda t: value)), tmp_path))


@pytest.mark.parametrize("side", [0, 1])
def test_a_sign_assumed_twice_is_refused(small: Any, tmp_path: Path, side: int) -> None:
    """In the part that has it already, and in the one that has the other."""
    true, _, _, _ = small["signs real"]
    root = Node(0)
    half = root.divide(2, 0.0)[side]
    half.divide(2, 0.0)
    root.children[1 - side].divide(3, 0.0)  # type: ignore[index]
    assert "assumed already" in str(refused(true, pack([root.arrays()], "real", checker.load(*true)[2]), tmp_path))


def test_swapped_children_are_judged_by_what_they_prove(small: Any, tmp_path: Path) -> None:
    """Whatever is said of a node is done there: accepted only where it still refutes, which of a false property it never does."""
    accepted = 0
    for kind in KINDS:
        true, false, data, _ = small[kind]
        for k in range(1, len(checker.read(data)[1][0]["split"]) - 1, 2):

            def swap(t: Tensors, k: int = k) -> None:
                for n in ("split", "cut", "inner", "query"):
                    t[f"0.{n}"][[k, k + 1]] = t[f"0.{n}"][[k + 1, k]]

            accepted += refused(true, change(data, swap), tmp_path) is None
            assert refused(false, rehashed(change(data, swap), false), tmp_path) is not None
    assert accepted  # two leaves bounded in one way


def rehashed(data: bytes, files: Files, **more: str) -> bytes:
    """Another property's certificate, claiming to be of these files."""
    hashes = checker.load(*files)[2]
    return change(data, meta=lambda m: m.update(hashes | more))


def mutate(rng: np.random.Generator, t: Tensors) -> None:
    """A few numbers moved, drawn anew or taken from elsewhere, rows cut off or repeated, nodes shuffled."""
    for _ in range(int(rng.integers(1, 4))):
        name = str(rng.choice(list(t)))
        v = t[name]
        if not len(v):
            continue
        k, j = (int(i) for i in rng.integers(len(v), size=2))
        what = int(rng.integers(6))
        if what == 0:
            v[k : k + 1] += v.dtype.type(rng.integers(-3, 4))  # an array: it wraps
        elif what == 1:
            v[k] = rng.choice([-1, 0, 1, 2, 9, 10, 1000, 2**31 - 1] if v.dtype.kind == "i" else [np.nan, np.inf, 0.0, 0.5, 1e300, -1e-300])
        elif what == 2:
            v[k] = v[j]
        elif what == 3:
            v[[k, j]] = v[[j, k]]
        elif what == 4:
            t[name] = v[: k + 1].copy()
        else:
            t[name] = np.concatenate([v, v[k:]])


def attack(small: Any, folder: Path, rng: np.random.Generator, count: int) -> int:
    """How many mutants the checker takes for certificates of the true property; of the false one it takes none."""
    accepted = 0
    for n in range(count):
        true, false, data, _ = small[KINDS[n % 4]]
        seed = int(rng.integers(1 << 32))
        mutant = change(data, lambda t, seed=seed: mutate(np.random.default_rng(seed), t))
        accepted += refused(true, mutant, folder) is None
        assert refused(false, rehashed(mutant, false), folder) is not None, (KINDS[n % 4], seed)
    return accepted


def test_no_mutant_proves_what_is_false(small: Any, tmp_path: Path) -> None:
    assert attack(small, tmp_path, np.random.default_rng(0), 80)


@pytest.mark.slow
def test_no_mutant_of_many_proves_what_is_false(small: Any, tmp_path: Path) -> None:
    assert attack(small, tmp_path, np.random.default_rng(1), 450)


ODD = (
    '"1/0"', '"1e999999999"', '"1e-99999999"', "1e999999999", "1e-99999999", '"nan"', "NaN", "Infinity", "-Infinity", "null", "[]", "{}",
    "9" * 1_000_000, f'"{"9" * 1_000_000}"', "1e" + "9" * 1_000_000, "0." + "0" * 1_000_000, '"0x1p3"', '""',
)  # fmt: skip


HUGE = 1 << 40


@pytest.mark.parametrize(
    "forge",
    [
        lambda m: m.update(onnx="0" * 64), lambda m: m.update(vnnlib="0" * 64), lambda m: m.update(semantics="float8"),
        lambda m: m.update(semantics=""), lambda m: m.update(version="1"), lambda m: m.update(version="2"), lambda m: m.pop("data"),
        lambda m: m.pop("trees"), lambda m: m.pop("semantics"), lambda m: m.update(trees="0"), lambda m: m.update(trees="2"),
        lambda m: m.update(trees="-1"), lambda m: m.update(trees=str(HUGE)), lambda m: m.update(format="other"),
        *(lambda m, n=n: m.update(trees=n) for n in ODD),
    ],
)  # fmt: skip
def test_other_headers(small: Any, tmp_path: Path, forge: Callable[[dict[str, Any]], Any]) -> None:
    true, _, data, _ = small["cuts real"]
    began = time.process_time()
    assert refused(true, change(data, meta=forge), tmp_path) is not None
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 1_000_000, b'{"a":' * 1_000_000, b"", b"null", b"[]", b"{}", b'{"__metadata__": null}', b'{"__metadata__": []}',
        b'{"__metadata__": {"format": "polytriton certificate", "version": "3", "trees": 1e999}}', b"\xff" * 100,
    ],
)  # fmt: skip
def test_headers_that_are_none(small: Any, tmp_path: Path, header: bytes) -> None:
    true = small["cuts real"][0]
    began = time.process_time()
    for size in (len(header), 8, 1 << 62, (1 << 64) - 1):
        assert refused(true, size.to_bytes(8, "little") + header, tmp_path) is not None
    assert time.process_time() - began < 5


@pytest.mark.parametrize("offsets", [[0, 10**18], [-8, 8], [8, 0], [0, None], ["0", 8], [0], [], None, [0, 7], [0.0, 8.0]])
def test_numbers_from_elsewhere_in_the_file(small: Any, tmp_path: Path, offsets: Any) -> None:
    true, _, data, _ = small["cuts real"]
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["0.cut"]["data_offsets"] = offsets
    text = json.dumps(header).encode()
    assert refused(true, len(text).to_bytes(8, "little") + text + data[8 + size :], tmp_path) is not None


def test_numbers_that_are_named_twice_or_never(small: Any, tmp_path: Path) -> None:
    """Else a file of a few bytes asks for as many copies of them as it has tensors: 1.4 MB once took 6 GB."""
    true, _, data, _ = small["cuts real"]
    size = int.from_bytes(data[:8], "little")
    whole, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    meta = whole.pop("__metadata__")
    one = {name: {**t, "data_offsets": [0, len(body)]} for name, t in whole.items()}
    many = {f"{k}.{name}": t for k in range(3000) for name, t in {n.partition(".")[2]: t for n, t in one.items()}.items()}
    body_of_many = bytes(1 << 18)
    for header, numbers, trees in ((one, body, "1"), (whole, body + b"more", "1"), (many, body_of_many, "3000")):
        for t in header.values():
            if header is many:
                t["data_offsets"] = [0, len(numbers)]
        held = meta | {"trees": trees}
        held["data"] = checker.digest(held, numbers)
        text = json.dumps({**header, "__metadata__": held}).encode()
        began = time.process_time()
        assert "twice, or never" in str(refused(true, len(text).to_bytes(8, "little") + text + numbers, tmp_path))
        assert time.process_time() - began < 1


@pytest.mark.parametrize("within", ["header", "meta", "tensor"])
def test_a_name_said_twice_is_refused(small: Any, tmp_path: Path, within: str) -> None:
    """Readers differ in which of the two they take: one certificate would state two semantics, each confirmed by somebody."""
    true, _, data, _ = small["cuts real"]
    size = int.from_bytes(data[:8], "little")
    whole, text = json.loads(data[8 : 8 + size]), data[8 : 8 + size].decode()
    said = whole if within == "header" else whole["__metadata__" if within == "meta" else "0.cut"]
    for name, value in said.items():
        own = f"{json.dumps(name)}: {json.dumps(value)}"
        assert own in text
        twice = text.replace(own, f"{own}, {own}").encode()
        assert refused(true, len(twice).to_bytes(8, "little") + twice + data[8 + size :], tmp_path) is not None


def test_bits_flipped_anywhere_are_noticed(small: Any, tmp_path: Path) -> None:
    """Header or numbers, whole or cut short: refused, and never by another exception."""
    true, _, data, _ = small["cuts real"]
    rng = np.random.default_rng(4)
    for _ in range(120):
        bad = bytearray(data)
        bad[rng.integers(len(bad))] ^= 1 << rng.integers(8)
        if refused(true, bytes(bad), tmp_path) is None:  # a shape, or a blank of the JSON: nothing that is read
            assert checker.read(bytes(bad))[0] == checker.read(data)[0]
    for end in (0, 3, 8, 9, 200, len(data) - 1):
        assert refused(true, data[:end], tmp_path) is not None
    assert refused(true, bytes(8) + data, tmp_path) is not None
    assert refused(true, b"\xff" * 8 + data[8:], tmp_path) is not None


def test_the_files_themselves(small: Any, tmp_path: Path) -> None:
    true, _, data, _ = small["cuts real"]
    for k in (0, 1):
        other = [Path(f) for f in true]
        other[k] = tmp_path / true[k].name
        text = bytearray(true[k].read_bytes())
        other[k].write_bytes(bytes(text) + b"\n" if k else bytes(text[:-40] + bytes([text[-40] ^ 1]) + text[-39:]))
        assert refused((other[0], other[1]), data, tmp_path) is not None


def test_exact_arithmetic_does_not_certify_what_rounding_breaks(tmp_path: Path) -> None:
    """A certificate of `real` that says it were one of float32: the checker charges what it says, and refuses."""
    big = 2.0**27
    layers = [(np.array([[big, 0], [0, 1], [big, 0]]), np.array([0, 0.5, 0])), (np.array([[1.0, 1.0, -1.0]]), np.zeros(1))]
    path = dense(tmp_path / "n.onnx", layers)
    files = path, prop(tmp_path / "p.vnnlib", [(0.5, 1), (0.25, 0.75)], 1, "(<= Y_0 0.25)")
    data = certify(*files)
    assert refused(files, data, tmp_path) is None
    assert "left open" in str(refused(files, rehashed(data, files, semantics="float32"), tmp_path))


# ---- violated properties of networks of some size


VIOLATED = ["digits_conv_normal_21_0.05", "digits_conv_ibp_48_0.1", pytest.param("digits_resnet_normal_21_0.05", marks=pytest.mark.slow)]


@pytest.mark.parametrize("name", VIOLATED)
def test_no_certificate_of_a_violated_property_is_accepted(tmp_path: Path, name: str) -> None:
    """Neither the writer's, nor another property's under its name."""
    net = ROOT / "examples" / f"{'_'.join(name.split('_')[:3])}.onnx"
    files = net, SPECS / f"{name}.vnnlib"
    with pytest.raises(checker.Refused, match="time"):
        certify(*files)
    for donor in [p for p in sorted(SPECS.glob(f"{net.stem}_*.vnnlib")) if p != files[1]][:4]:
        try:
            data = certify(net, donor)
        except checker.Refused:
            continue
        assert refused(files, rehashed(data, files), tmp_path) is not None
        return
    raise AssertionError
