"""Every published property known to be violated is falsified, and the competition's check of counterexamples passes."""

from __future__ import annotations

import csv
import re
import time
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import polytriton
from polytriton.frontend.query import Disjunct, Property
from polytriton.frontend.vnnlib import read_vnnlib, write_counterexample

Row = dict[str, str]
TOLERANCE = Fraction(1, 10**4)  # the competition's, for inputs beside the box
LIMIT = 60.0  # seconds
HARD = ("v0008", "v0029", "v0042", "v0190")  # small or thin pieces: a sample, the linear bounds' corner, and decimals decide them


def violated_rows(data: Path) -> list[Row]:
    return [r for r in csv.DictReader((data / "instances.csv").open()) if r["verdict"] == "sat"]


def official_seconds(r: Row) -> float:
    """The quickest of the published times."""
    times = [float(t.rpartition(":")[2]) for t in r["other_tool_s"].split()] + [float(v) for v in (r["abcrown_s"],) if v]
    return min(times, default=np.inf)


@lru_cache(maxsize=1)
def network(path: Path) -> polytriton.Verifier:
    return polytriton.compile(path, semantics="real", check=False)


def property_of(data: Path, r: Row) -> Property:
    return read_vnnlib(data / r["spec"], n_in=int(r["n_in"]), n_out=int(r["n_out"]))


def read_point(text: str, prop: Property) -> tuple[list[Fraction], np.ndarray]:
    """The numbers of a counterexample file as they are written."""
    pairs = {(end, int(i)): Fraction(v) for end, i, v in re.findall(r"\(([XY])_(\d+) ([^\s()]+)\)", text)}
    assert len(pairs) == prop.n_in + prop.n_out
    return [pairs["X", i] for i in range(prop.n_in)], np.array([float(pairs["Y", i]) for i in range(prop.n_out)])


def run_original(path: Path, x: list[Fraction]) -> list[Fraction]:
    """The original model on the written point, by an onnxruntime session of its own with default settings."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = {i.name for i in session.get_overridable_initializers()}
    (end,) = (i for i in session.get_inputs() if i.name not in given)
    shape = [n if isinstance(n, int) and n > 0 else 1 for n in end.shape]
    (y, *_) = session.run(None, {end.name: np.array([float(v) for v in x], np.float32).reshape(shape)})
    return [Fraction(float(v)) for v in y.ravel()]


def beside(d: Disjunct, x: list[Fraction]) -> bool:
    return all(lo - TOLERANCE <= v <= hi + TOLERANCE for lo, v, hi in zip(d.exact_lo, x, d.exact_hi, strict=True))


def falsified(data: Path, r: Row, timeout: float) -> str | None:
    """None, or what is wrong with the answer."""
    prop, net = property_of(data, r), network(data / r["net"])
    begin = time.monotonic()
    got = net.verify_property(prop, timeout=timeout)
    seconds = time.monotonic() - begin
    if got.verdict != "sat" or got.counterexample is None:
        return f"{r['id']}: {got.verdict} after {seconds:.1f} s"
    if seconds > timeout:
        return f"{r['id']}: {seconds:.1f} s"
    x, stated = read_point(write_counterexample(prop, got.counterexample.x, got.counterexample.y), prop)
    y = run_original(data / r["net"], x)
    if not np.allclose([float(v) for v in y], stated, rtol=1e-4, atol=1e-4):
        return f"{r['id']}: the stated outputs are not the model's"
    if not any(beside(d, x) and all(row.holds(x, y) for row in d.rows) for d in prop.disjuncts):
        return f"{r['id']}: the competition's check refuses the counterexample"
    if not any(all(lo <= v <= hi for lo, v, hi in zip(d.exact_lo, x, d.exact_hi, strict=True)) for d in prop.disjuncts):
        return f"{r['id']}: the written point lies outside the box"
    return None


def test_hard_instances_are_falsified(data: Path) -> None:
    chosen = [r for r in violated_rows(data) if r["id"] in HARD]
    assert len(chosen) == len(HARD)
    assert [wrong for r in chosen if (wrong := falsified(data, r, LIMIT))] == []


@pytest.mark.slow
def test_every_violated_instance_is_falsified_in_time(data: Path) -> None:
    """All of them, those that the competition's tools took longer than ten seconds for or never saw as well."""
    chosen = violated_rows(data)
    assert sum(official_seconds(r) < 10 for r in chosen) == 29
    assert [wrong for r in chosen if (wrong := falsified(data, r, LIMIT))] == []


def test_fixed_decimals_have_no_float32_execution(data: Path) -> None:
    """Under a deployed semantics no run starts in the box of the thin instance, so nothing is claimed."""
    (r,) = (r for r in violated_rows(data) if r["id"] == "v0190")
    net = polytriton.compile(data / r["net"], semantics="float32", check=False)
    assert net.verify_property(property_of(data, r), search="none").verdict == "unknown"


def test_the_seed_decides_the_counterexample(data: Path) -> None:
    (r,) = (r for r in violated_rows(data) if r["id"] == "v0008")
    net, prop = network(data / r["net"]), property_of(data, r)
    first, again, other = (net.verify_property(prop, seed=seed).counterexample for seed in (5, 5, 6))
    assert first is not None
    assert again is not None
    assert other is not None
    np.testing.assert_array_equal(first.x, again.x)
    assert (first.x != other.x).any()
