"""Predicted times: the fit, the ranks, and what must hold of any prediction."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.artifact import read_artifact
from polytriton.kernels.choose import GPU, retile
from polytriton.kernels.interval_launches import product_tiles
from polytriton.kernels.sass_loop import read
from polytriton.kernels.spec import Report
from polytriton.runtime.config import GATHER, LIBRARY, PLANAR, PLANES, SHIFTS, Config, Tile
from polytriton.tuned import TUNED, Entry, Tuned, plan_key, versions
from polytriton.tuning import cross
from polytriton.tuning.calibrate import SHAPES, measure, shape
from polytriton.tuning.cpu_cost import LIMITS, Load, conv_cost, features, fit, form_of, nonnegative, plan_cost
from polytriton.tuning.device import SHEETS, TYPICAL, keep_cpu, this_cpu
from polytriton.tuning.gpu_cost import INTERVAL_PRODUCTS, interval_pipes, kernel_cost, work
from polytriton.tuning.space import TILE, gpu_space

LAYER = shape(32, 32, 4, 2, 6)
FORMS = (LIBRARY, PLANAR, SHIFTS, PLANES, GATHER)


def test_least_squares_finds_what_samples_were_made_of() -> None:
    rng = np.random.default_rng(0)
    counts, true = rng.random((40, 4)), np.array([2.0, 0.0, 0.5, 1.0])
    samples = [(list(row), float(row @ true)) for row in counts]
    assert fit(samples) == pytest.approx(true, abs=1e-3)
    assert (nonnegative(counts, -counts @ true) == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_prediction_grows_with_the_rows_and_names_its_limit(form: str) -> None:
    conv = shape(32, 3, 3, 1, 16)
    costs = [conv_cost(conv, form, rows, Config(), TYPICAL) for rows in (1, 10, 100, 1000)]
    assert all(a.seconds < b.seconds for a, b in pairwise(costs))
    assert all(c.limit in LIMITS[form] for c in costs)
    assert len(features(conv, form, 3, Config(), TYPICAL)) == len(TYPICAL.forms[form]) == len(LIMITS[form])


def test_a_plan_costs_what_its_forms_cost() -> None:
    load = Load({LAYER.key: 1000}, {LAYER.key: 10}, 1e6, 20, 0.25, Config().block)
    costs = {form: plan_cost({LAYER.key: LAYER}, load, Config(convs={LAYER.key: form}), TYPICAL) for form in (LIBRARY, SHIFTS, GATHER)}
    alone = {form: 10 * conv_cost(LAYER, form, 100, Config(), TYPICAL).seconds for form in costs}
    assert costs[SHIFTS] - costs[GATHER] == pytest.approx(alone[SHIFTS] - alone[GATHER])
    assert min(costs.values()) > 0.25
    assert form_of(LAYER, Config(convs={LAYER.key: GATHER})) == GATHER
    assert plan_cost({LAYER.key: LAYER}, load, Config(leave=0.5), TYPICAL) > plan_cost({LAYER.key: LAYER}, load, Config(), TYPICAL)


def test_the_held_out_layer_is_held_out() -> None:
    from bench.tuning import HELD_OUT

    assert HELD_OUT not in SHAPES


def test_what_is_measured_is_the_form_that_was_asked_for() -> None:
    took = measure(shape(8, 3, 3, 1, 6), SHIFTS, 4, Config(convs={shape(8, 3, 3, 1, 6).key: SHIFTS}))
    assert took is not None and took > 0
    assert measure(LAYER, PLANES, 4, Config(convs={LAYER.key: PLANES})) is None  # its stride is two


def test_a_measured_table_is_kept_and_a_damaged_one_is_not_used() -> None:
    assert this_cpu() == TYPICAL
    path = keep_cpu(TYPICAL.__class__("here", 1e9, TYPICAL.forms, TYPICAL.passes))
    assert path is not None
    assert this_cpu().source == "here"
    path.write_text("{")
    assert this_cpu() == TYPICAL


# ---- GPUs -------------------------------------------------------------------------------------------------------

DENSE = {"K": 512, "N": 512, **replace(GPU, columns=64).product(ARITHMETICS["float64"], 0, 512, 512).constants}


def report(**changes: int) -> Report:
    made = {"registers": 64, "shared": 0, "spill_loads": 0, "spill_stores": 0, "stack": 0, "occupancy": 32, "cubin_bytes": 1}
    return Report(name="k", target="cuda:90", instructions={}, seconds=0.0, cached=True, **{**made, **changes})


def test_a_kernels_time_follows_what_limits_it() -> None:
    gpu = SHEETS["cuda:90"]

    def cost(rows: int, **changes: int) -> float:
        return kernel_cost("dense_step", DENSE, "float64", rows, gpu, report(**changes), "cuda:90").seconds

    does = work("dense_step", DENSE, "float64", 1 << 16)
    assert does.ops == 2 * (1 << 16) * 512 * 512
    assert cost(1 << 16) >= does.ops / gpu.rates["DMMA"]
    assert kernel_cost("dense_step", {**DENSE, "K": 16, "N": 16}, "float64", 1, gpu, report(), "cuda:90").limit == "launch"
    assert kernel_cost("dense_step", DENSE, "float64", 1 << 16, gpu, report(), "cuda:90").limit == "cache"  # 8 operations a byte
    large = {**DENSE, "BM": 128, "BN": 128}
    assert kernel_cost("dense_step", large, "float64", 1 << 16, gpu, report(), "cuda:90").limit == "arithmetic"
    assert cost(1 << 16, occupancy=4) > cost(1 << 16, occupancy=8) == cost(1 << 16), "an eighth of the warps, for it loads ahead"
    assert cost(1 << 16, spill_loads=4) > cost(1 << 16)
    assert math.isinf(cost(1 << 16, occupancy=0))


def test_a_tile_wider_than_its_window_does_work_in_vain() -> None:
    wide, fitting = (work("dense_step", {**DENSE, "N": 16, "BN": bn}, "float64", 4096) for bn in (64, 16))
    assert wide.ops == 4 * fitting.ops


def interval(numerics: str, **tile: int) -> dict[str, int]:
    return {"K": 512, "N": 512, **product_tiles(ARITHMETICS[numerics], GPU, 512, 512).constants, **tile}


@pytest.mark.parametrize("numerics", ["interval64", "interval32"])
def test_tiles_of_an_interval_product_are_whole_threads_shares(numerics: str) -> None:
    """Every choice is a tile that the kernel takes, with as many threads as it is emitted with, and predicted like the default."""
    default = product_tiles(ARITHMETICS[numerics], GPU, 512, 512)
    for function in INTERVAL_PRODUCTS:
        key = f"{function}:{numerics}:0"
        first, *options = gpu_space({key: default}, {}).choices[TILE + key]
        assert first == {} and len(options) > 10
        for option in options:
            made = retile(default, Tile(**option), ARITHMETICS[numerics])
            size = made.constants
            assert (size["BM"] // size["RM"]) * (size["BN"] // size["RN"]) == 32 * made.warps
            assert Config(tiles={key: Tile(**option)}).changes()
    with pytest.raises(ValueError, match="two terms at a time"):
        retile(default, Tile({"BK": 1}), ARITHMETICS[numerics])
    with pytest.raises(ValueError, match="one thread"):
        retile(default, Tile({"BM": 2}), ARITHMETICS[numerics])


@pytest.mark.parametrize("numerics", ["interval64", "interval32"])
def test_an_interval_products_time_is_that_of_its_loop(numerics: str) -> None:
    gpu, rows = SHEETS["cuda:90"], 1 << 16

    def seconds(pipes: dict[str, float] | None = None, **tile: int) -> float:
        constants, made = interval(numerics, **tile), report(occupancy=12)
        return kernel_cost("interval_dense", constants, numerics, rows, gpu, made, "cuda:90", pipes).seconds

    does = work("interval_dense", interval(numerics), numerics, rows)
    assert does.ops == 4 * rows * 512 * 512  # two FMAs a product
    least = does.ops / gpu.rates[ARITHMETICS[numerics].instruction]
    assert seconds({"issue": 0.5, "float64": 0.7}) == pytest.approx(2 * least, rel=0.02)
    assert 1.05 * least < seconds() < 2 * least
    assert seconds(RM=1, RN=1, BM=32, BN=4) > 1.5 * seconds()  # ends, widths and parts below zero for one product each


BLOCKS = """
        /*0000*/                   LDG.E R1, [R2.64] ;
        /*0010*/                   FADD.RP R3, R1, R4 ;
        /*0018*/                   FFMA.RP R3, R3, R4, R9 ;
        /*0020*/                   IMMA.16832.S8.S8 R8, R6.ROW, R7.COL, RZ ;
        /*0030*/                   FFMA.RP R5, R1, R4, R5 ;
        /*0040*/                   FFMA.RM R6, R1, R4, R6 ;
        /*0050*/                   LDG.E R1, [R2.64] ;
        /*0060*/               @P0 BRA 0x30 ;
        /*0070*/               @P1 BRA 0x0 ;
        /*0080*/                   EXIT ;
"""


def test_cycles_of_an_interval_product_are_those_of_its_blocks_and_its_terms() -> None:
    """By hand: two blocks of five instructions around four turns of four, one product each; a turn loads two ends at once and a weight."""
    constants = {"K": 8, "BK": 4, "BM": 4, "BN": 32, "RM": 1, "RN": 1}
    ideal = 2 * 8 * 32 / 128
    found = interval_pipes(read(BLOCKS), constants, "interval32", "cuda:90")
    assert found == {
        "issue": ideal / (2 * 5 / 4 + 8 * 4 / 4),
        "float32": ideal / (2 * 2 * 32 / 128 + 8 * 2 * 32 / 128),
        "port": ideal / (2 * 1 + 8 * (1 + 1)),
        "matrix": ideal / (2 * 16 * 8 * 32 / 2048),
    }
    rows = interval_pipes(read(BLOCKS), {**constants, "BN": 8}, "interval32", "cuda:90")
    assert rows["port"] == ideal / (2 * 1 + 8 * (4 + 1)), "a warp's threads are of four rows"
    assert interval_pipes(read(BLOCKS)[:3], constants, "interval32", "cuda:90") == {}


def test_kernels_of_either_arithmetic_have_tiles_to_choose(poly: Path) -> None:
    found = {kind.function for kind in cross.kinds(read_artifact(poly).compiled, "float64")[0]}
    assert {"dense_step", "conv_step"} <= found
    found = {kind.function for kind in cross.kinds(read_artifact(poly).compiled, "interval32")[0]}
    assert found == set(INTERVAL_PRODUCTS)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["float64", "interval32"])
def test_tiles_for_a_gpu_that_is_not_here(poly: Path, monkeypatch: pytest.MonkeyPatch, numerics: str) -> None:
    """Compiled for cuda:90 without one: the artifact names sizes that every kernel admits, by predicted time; other arithmetic's stay."""
    if find_spec("triton") is None:  # not imported here: this process may be one that interprets kernels
        pytest.skip("Triton is not installed")
    monkeypatch.setattr(cross, "COMPILED", 1)
    held, stays = read_artifact(poly), {"relax_rows:float32:0": Tile({"BR": 2})}
    entry = Entry(plan_key(held.compiled), "cuda:90", versions("cuda"), Config(tiles=stays).changes(), 1.0, 1.0, 1, 0)
    held = replace(held, tuned=Tuned(entries=(entry,)))
    made = cross.tune_target(poly, held, "cuda:90", numerics, 1 << 16)
    assert made["kernels"]
    assert all(0 < line["predicted"] <= line["default"] for line in made["kernels"])
    after = read_artifact(poly)
    assert TUNED in after.manifest.files and after.tuned is not None
    (entry,) = after.tuned.entries
    config = Config.of(entry.config)
    assert config.tiles.items() >= stays.items() and len(config.tiles) == made["changed"] + 1
    _, emitter = cross.kinds(held.compiled, numerics)
    for key in config.tiles.keys() - stays.keys():
        tile = config.tiles[key]
        assert isinstance(tile, Tile)
        retile(emitter.asked[key], tile, ARITHMETICS[numerics])
