"""Interval kernels as machine code for GPUs: they round as said, flush nothing and spill nothing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.launches import Constant, Kernel
from polytriton.ir.net import Builder, Net
from polytriton.kernels.build import check, compile_all
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.choose import GPU
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.header import source
from polytriton.kernels.interval_launches import product_tiles
from polytriton.kernels.network import network_kernels
from polytriton.kernels.worker import dump
from polytriton.passes.pipeline import compile_net
from tests.kernels.small_kernels import each_choice
from tests.kernels.test_interval import Shape
from tests.kernels.test_interval_runs import routes, small
from tests.oracle.small import scale

TAPS = ("H", "W", "HO", "WO", "KH", "KW", "SH", "SW", "DH", "DW", "TOP", "LEFT", "PH", "PW")
WIDE = Shape((3, 3), (5, 5), (3, 3), (1, 1), (1, 1), (0, 0), 1, (64, 64))
WINDOW = {"SIZE": 90, "LINE": 45, "C": 9, "RH": 2, "OH": 1, "RW": 1, "OW": 0, "START": 270, "PLANE": 2700, "PITCH": 270}
ROWS = {**WINDOW, "SLOT": True, **GPU.rows(90, tensors=2).constants}
MASKED = {"MASK": True, "IH": 9, "IW": 9, "TO_RH": 1, "TO_OH": 1, "TO_RW": 1, "TO_OW": 1}
JOIN = {
    "SECOND": True, "A_SLOT": True, "B_SLOT": True, "A_SIGN": 1, "B_SIGN": -1, "C": 16, "HO": 5, "WO": 5, "RH": 1, "OH": 1, "RW": 1,
    "OW": 1, "AH": 3, "AW": 3, "A_RH": 1, "A_OH": 0, "A_RW": 1, "A_OW": 0, "BH": 5, "BW": 5, "B_RH": 1, "B_OH": 1, "B_RW": 1, "B_OW": 1,
    **GPU.rows(400, tensors=2).constants,
}  # fmt: skip
POOL = {  # 5 x 5 windows of 3 x 3 taps that overlap, of 16 channels
    **{k: v for k, v in Shape((5, 5), (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, (16, 16)).constants().items() if k in TAPS}, "C": 16,
    "RH": 1, "OH": 1, "RW": 1, "OW": 1, "START": 270, "PLANE": 2700, "PITCH": 270,
}  # fmt: skip
CASES: dict[str, dict[str, int]] = {
    "interval_dense": {"K": 784, "N": 500, "SLOT": True},
    "interval_conv": {**WIDE.constants(), **MASKED, "SLOT": True},
    "interval_relax": {**ROWS, "LOWER": True},
    "interval_concretize": ROWS,
    "interval_check": {**ROWS, "FIRST": True, "LAST": True},
    "interval_scale": ROWS,
    "interval_join": JOIN,
    "interval_pool": {**POOL, "SLOT": True, **GPU.rows(400, tensors=2).constants},
    "interval_gather": {"SLOT": True, "FROM": 90, "SIZE": 45, "CO": 18, "CI": 9, "REPEATS": 3, **GPU.rows(45, tensors=2).constants},
    "interval_neurons": {"C": 9, "START": 270, "PLANE": 2700, "PITCH": 270, "BR": 128},
}
PRODUCTS = ("interval_dense", "interval_conv")


def kernel(function: str, bits: int) -> Kernel:
    given: dict[str, Constant] = {**CASES[function], "INTERPRET": False}
    if function in PRODUCTS:
        wide = function == "interval_dense"
        tiles = product_tiles(ARITHMETICS[f"interval{bits}"], GPU, 500 if wide else 64, 784 if wide else 64, 0 if wide else 25)
        given |= tiles.constants
    if function in (*PRODUCTS, "interval_pool", "interval_gather"):
        given["T"] = f"tl.float{bits}"
    return make_kernel(function, tuple(sorted(given.items())), f"interval{bits}", 4, 3)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_kernels_round_as_said_and_do_not_spill(target: str, bits: int, tmp_path: Path) -> None:
    """In the machine code a product is rounded down or up, never to nearest."""
    kernels = [kernel(function, bits) for function in CASES]
    built = compile_all(kernels, target, cache=tmp_path, jobs=1)
    check([b.report for b in built], kernels)
    for made, report, cubin in built:
        assert report.spills == 0, (made.name, report)
        assert ".ftz" not in source(made)
        function, single = made.family, "*fp32" in made.types
        file = tmp_path / made.name
        file.write_bytes(cubin)
        code = dump(file)
        assert ".FTZ" not in code  # least of all where a weight's part below zero is taken
        found = Counter(re.findall(r"\b([FD](?:FMA|MUL|ADD))((?:\.\w+)*) ", code))
        kinds = {
            "interval_dense": {"FFMA", "FADD"}, "interval_conv": {"FFMA", "FADD"}, "interval_relax": {"DFMA", "DADD", "FMUL"},
            "interval_join": {"FADD"}, "interval_gather": {"FADD"}, "interval_pool": {"DFMA", "DADD", "FADD"},
            "interval_concretize": {"DFMA", "DADD"}, "interval_scale": {"FMUL"}, "interval_neurons": {"DADD"},
        }.get(function, set())  # fmt: skip
        if not single:
            kinds = {f"D{k[1:]}" for k in kinds}
        directed = {(kind, mode) for kind in kinds for mode in (".RM", ".RP")}
        if function == "interval_check":
            directed = {("DFMA", ".RM"), ("DADD", ".RM")}
        if function in PRODUCTS:  # two steps' product
            directed.add(("FMUL" if single else "DMUL", ".RP"))
            assert re.search(r"\b(IMMA|IGMMA)\.", code), made.name
        assert directed <= found.keys(), (made.name, found)
        if function in (*PRODUCTS, "interval_join", "interval_scale", "interval_gather"):
            assert found.keys() == directed, (made.name, found)  # these round in no other way


def scaled() -> Net:
    b = Builder("scaled")
    x = b.add("relu", (scale(b, b.add("relu", (b.input((6,)),)), 2.0, 1.0),))
    return b.build(scale(b, x, -1.5, 0.5))


@pytest.mark.slow
@pytest.mark.parametrize("target, numerics", [("cuda:80", "interval32"), ("cuda:90", "interval64")])
def test_kernels_of_whole_networks_compile(target: str, numerics: str, tmp_path: Path) -> None:
    """The first of each choice of pointers, each type on one of the targets; every function of both types on both is above."""
    nets = (small(stride=2), routes(), small(residual=True, slope=0.125), scaled())
    every = list[Kernel]()
    for net in nets if numerics == "interval64" else nets[:2]:
        emitter = Emitter()
        kernels = network_kernels(compile_net(net), (numerics,), GPU, emitter)
        assert any(k.name.startswith("interval_check") for k in kernels)
        folded = ("concretize_rows", "dense_step", "conv_step", "relax_rows", "join_rows", "pool_rows")
        assert not any(k.name.startswith(folded) for k in kernels)
        every += kernels
    compiled = each_choice(every)
    assert len(compiled) > 30
    check([b.report for b in compile_all(compiled, target, cache=tmp_path, jobs=1)], compiled)
