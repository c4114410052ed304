"""The published networks and properties: imports, CROWN's reference margins, verdicts beside the official ones."""

from __future__ import annotations

import csv
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polytriton
from polytriton.frontend.query import Property
from polytriton.frontend.vnnlib import read_vnnlib
from polytriton.ir import interp
from polytriton.prove.questions import questions

Row = dict[str, str]
QUICK = ("acasxu", "mnist_fc", "eran_mnist", "cora", "metaroom", "generated_props")
WORST = {"fc6x500": ("mnist_x", -47.02), "resnet_small": ("cifar_x", -0.2068), "convbig": ("cifar_x", -15.46)}


@lru_cache(maxsize=2)
def network(path: Path, semantics: str, dtype: str, candidates: str) -> Any:
    return polytriton.compile(path, semantics=semantics, dtype=dtype, candidates=candidates, check=False)


def rows_of(data: Path, **wanted: str) -> list[Row]:
    rows = list(csv.DictReader((data / "instances.csv").open()))
    return [r for r in rows if all(r[k] == v for k, v in wanted.items())]


def bench_of(r: Row) -> str:
    return Path(r["net"]).parts[1]


def prop_of(data: Path, r: Row) -> Property:
    return read_vnnlib(data / r["spec"], n_in=int(r["n_in"]), n_out=int(r["n_out"]))


def test_every_network_compiles_and_agrees_with_onnxruntime(data: Path) -> None:
    nets = sorted((data / "nets").rglob("*.onnx"))
    assert len(nets) == 28
    for path in nets:
        net = polytriton.compile(path)  # compares with onnxruntime
        assert net.compiled.plan.query.steps


def missed(data: Path, rows: list[Row], semantics: str) -> list[str]:
    """Instances that are not proved."""
    out = []
    for r in rows:
        got = network(data / r["net"], semantics, "auto", "all").verify_property(prop_of(data, r), falsifier=False)
        if got.verdict != "unsat":
            out.append(f"{r['id']} {got.verdict} {got.margin}")
    return out


def test_what_crown_proves_is_proved(data: Path) -> None:
    assert missed(data, [r for r in rows_of(data, crown_verified="1") if bench_of(r) in QUICK][::6], "real") == []


@pytest.mark.slow
def test_everything_that_crown_proves_is_proved(data: Path) -> None:
    assert missed(data, rows_of(data, crown_verified="1"), "real") == []


@pytest.mark.slow
def test_deployed_float32_keeps_98_percent(data: Path) -> None:
    rows = rows_of(data, crown_verified="1")
    lost = missed(data, rows, "float32")
    assert len(lost) <= 0.02 * len(rows), lost


def crown_margins(data: Path, rows: list[Row]) -> None:
    """candidates="input" is CROWN: the published margins of proved instances within one per cent."""
    for r in rows:
        net = network(data / r["net"], "real", "float64", "input")
        q = questions(prop_of(data, r))
        best = net._decider.prove(q, exhaustive=True).best
        per = np.full(int(q.group.max()) + 1, -np.inf)
        np.maximum.at(per, q.group, best)
        assert per.min() == pytest.approx(float(r["crown_margin"]), rel=0.01, abs=1e-5), r["id"]


def test_crown_margins(data: Path) -> None:
    rows = [r for r in rows_of(data, crown_verified="1") if bench_of(r) in QUICK and "45k" not in r["net"]]
    crown_margins(data, rows[::6])


@pytest.mark.slow
def test_all_crown_margins(data: Path) -> None:
    crown_margins(data, rows_of(data, crown_verified="1"))


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["float32", "real"])
def test_never_unsat_where_a_counterexample_is_known(semantics: str, data: Path) -> None:
    rows = rows_of(data, verdict="sat")
    assert len(rows) == 32
    found = 0
    for r in rows:
        got = network(data / r["net"], semantics, "auto", "all").verify_property(prop_of(data, r), timeout=2)
        assert got.verdict != "unsat", r["id"]
        found += got.verdict == "sat"
    assert found >= 16  # the falsifier is at work too


@pytest.mark.slow
def test_never_sat_where_the_property_holds(data: Path) -> None:
    """A quarter of them: they end by the clock."""
    for r in rows_of(data, verdict="unsat", crown_verified="0")[::4]:
        got = network(data / r["net"], "real", "auto", "all").verify_property(prop_of(data, r), timeout=3)
        assert got.verdict != "sat", r["id"]


def peer_nets(data: Path, folder: Path) -> Path:
    script = data.parent / "peers" / "make_nets.py"
    if not script.exists():
        pytest.skip("the peer networks' script is not beside the verification data")
    subprocess.run([sys.executable, str(script), str(folder)], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fc6x500", "resnet_small", "convbig"])
def test_crown_worst_margins_of_the_peer_networks(name: str, data: Path, tmp_path: Path) -> None:
    folder = peer_nets(data, tmp_path / "nets")
    image, worst = WORST[name]
    net = polytriton.compile(folder / f"{name}.onnx", semantics="real", dtype="float64", candidates="input", check=False)
    x = np.load(folder / f"{image}.npy").astype(np.float64).reshape(1, -1)
    label = int(interp.run(net.net, x)[0].argmax())
    forms = np.array([[(i == label) - (i == j) for i in range(10)] for j in range(10) if j != label], dtype=float)
    margins = net.margins(np.clip(x - 1 / 255, 0, 1), np.clip(x + 1 / 255, 0, 1), forms)
    assert margins.min() == pytest.approx(worst, rel=1e-3)
