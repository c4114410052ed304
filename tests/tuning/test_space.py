"""What may be chosen, and that every choice means the same."""

from __future__ import annotations

import random
from dataclasses import asdict
from itertools import product
from pathlib import Path

import msgspec
import pytest
import torch
import torch.nn.functional as F

from polytriton.api import Verifier
from polytriton.arithmetic import ARITHMETICS
from polytriton.artifact import read_artifact
from polytriton.ir.plan import Axis, Window
from polytriton.kernels.choose import GPU, Tiles, retile
from polytriton.rounding import INNER
from polytriton.runtime.config import DEFAULT, FORMS, Config, Tile, conv_key
from polytriton.runtime.cpu.torch_backend import ConvShape, TorchBackend, crop
from polytriton.tuning.space import cpu_space, name, plan_convs

CPU = torch.device("cpu")


@pytest.mark.thinned(3)
@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_form_of_a_convolution_is_the_same_sum(form: str, dtype: torch.dtype) -> None:
    """Small integers: exact in any order."""
    rng, taken = random.Random(form), 0
    for _ in range(60):
        k, s = ((rng.randint(1, 4), rng.randint(1, 4)) for _ in range(2))
        s, d = (min(s[0], 3), rng.randint(1, 2)), rng.choice([(1, 1), (1, 1), (2, 1), (1, 2)])
        h, w, co, ci, rows = (rng.randint(1, 6) for _ in range(5))
        g = torch.Generator().manual_seed(rng.randint(0, 999))
        m, weight = (torch.randint(-9, 9, shape, generator=g).to(dtype) for shape in ((rows, h, w, co), (co, ci, *k)))
        full = F.conv_transpose2d(m.permute(0, 3, 1, 2).double(), weight.double(), None, s, 0, 0, 1, d).permute(0, 2, 3, 1)
        lead = (rng.randint(-2, 3), rng.randint(-2, 3))
        window = Window(Axis(rng.randint(1, full.shape[1] + 2), 1, -lead[0]), Axis(rng.randint(1, full.shape[2] + 2), 1, -lead[1]))
        conv = ConvShape(k, s, d, (0, 0, 0, 0), 1, Window(Axis(h, 1, 0), Axis(w, 1, 0)))
        forms = {conv_key((h, w, co), (co, ci, *k), s, 1): form}
        config = Config(convs=forms, taps=rng.choice([20, 1 << 18]), split=rng.choice([1, 1 << 16]))
        backend = TorchBackend(CPU, rng.choice([1, 2]), config)
        taken += backend.form(m, weight, conv) == form
        got = backend.conv(m, weight.contiguous(memory_format=torch.channels_last), conv, window)
        assert torch.equal(got.double(), crop(full, lead, window))
    assert taken > 5 or (dtype == torch.float64 and form in ("library", "planar")) or not backend.fast


def test_a_form_that_is_not_admitted_is_not_taken() -> None:
    """float64 and grouped convolutions have no library form or gather; asking for one is not enough."""
    conv = ConvShape((3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 2, Window(Axis(4, 1, 0), Axis(4, 1, 0)))
    m, weight = torch.ones(2, 4, 4, 8), torch.ones(8, 2, 3, 3)
    key = conv_key((4, 4, 8), (8, 2, 3, 3), (1, 1), 2)
    for form in ("gather", "planes"):
        assert TorchBackend(CPU, 1, Config(convs={key: form})).form(m, weight, conv) != form
    single = ConvShape((3, 3), (1, 1), (1, 1), (0, 0, 0, 0), 1, conv.source)
    key = conv_key((4, 4, 8), (8, 2, 3, 3), (1, 1), 1)
    assert TorchBackend(CPU, 1, Config(convs={key: "library"})).form(m.double(), weight.double(), single) not in ("library", "planar")
    foreign = TorchBackend(CPU, 1, Config(convs={key: "library"}))
    foreign.direct = False  # a library that may choose Winograd
    assert foreign.form(m, weight, single) != "library"


@pytest.mark.parametrize(
    "wrong",
    [{"block": 0}, {"threads": -1}, {"leave": 1.0}, {"dtype": "float16"}, {"convs": {"x": "winograd"}}, {"speed": 1}, {"counts": 0}]
    + [{"whole": 0.0}, {"whole": 1.5}, {"whole": float("nan")}, {"graphs": "no"}, {"dtype": "bf16"}]
    + [{"skips": {"a": "b"}}, {"skips": {"a": [1]}}, {"tiles": {"k": {"constants": {"SK": 3}}}}]
    + [{"tiles": [1]}, {"tiles": {"k": 1}}, {"tiles": {"k": {"constants": 1.0}}}, {"tiles": {"k": {"x": 1}}}, {"convs": []}, {"skips": [1]}]
    + [{"rooms": 1.0}, {"rooms": {"k": 33}}, {"block": 1.5}, {"threads": True}, {"threads": 1 << 31}]
    + [{"tiles": {"k": {"constants": {"BM": 48}}}}, {"tiles": {"k": {"constants": {"K": 16}}}}, {"tiles": {"k": {"warps": 3}}}],
)
def test_a_configuration_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError):
        Config.of(wrong)


def test_a_configuration_is_what_it_changes() -> None:
    plan = {"whole": 0.5, "skips": {"a": ["b"]}, "graphs": False}
    made = Config.of({"block": 1 << 20, "convs": {"a": "shifts"}, "tiles": {"k": asdict(Tile({"BM": 32, "SK": 4}, 4, 2))}, **plan})
    assert Config.of(made.changes()) == made == Config.of(msgspec.json.decode(msgspec.json.encode(made.changes())))
    assert DEFAULT.changes() == {}


def test_points_of_a_plan(compiled: Path) -> None:
    held = read_artifact(compiled)
    space = cpu_space(held.compiled.net, held.compiled.plan, "float32", 2, ("float32", "float64"))
    assert set(plan_convs(held.compiled.net, held.compiled.plan)) == set(space.convs)
    assert {"dtype", "threads", "split"} <= set(space.choices)
    assert space.config({}) == DEFAULT
    seen = set()
    for point in space.neighbours({}):
        config = space.config(point)
        assert config != DEFAULT
        assert space.point(config) == point
        seen.add(name(point))
    assert len(seen) == sum(len(v) - 1 for v in space.choices.values())
    rng = random.Random(0)
    for _ in range(50):
        point = space.sample(rng, {}, 0.5)
        assert space.plain(point) == point
        space.config(point)


def test_convolutions_of_a_plan_are_those_that_a_run_multiplies_by(compiled: Path) -> None:
    from polytriton.tuning.costs import measure_costs

    held = read_artifact(compiled)
    found = measure_costs(Verifier.from_artifact(held))
    ran = {line["kernel"].removeprefix("conv ") for line in found["kernels"] if line["kernel"].startswith("conv ")}
    assert ran
    assert ran <= set(plan_convs(held.compiled.net, held.compiled.plan))
    assert all(line["predicted"] is not None and line["limit"] for line in found["kernels"])


# ---- tiles ------------------------------------------------------------------------------------------------------


def test_tiles_that_the_rounding_term_does_not_cover_are_refused() -> None:
    numerics = ARITHMETICS["float32"]
    default = GPU.product(numerics, 64, 256, 64)
    assert retile(default, Tile({"BK": INNER}), numerics).constants["BK"] == INNER
    with pytest.raises(ValueError, match="rounding term"):
        retile(default, Tile({"BK": 2 * INNER}), numerics)
    with pytest.raises(ValueError, match="the same rows"):
        retile(default, Tile({"BM": 16, "BR": 32}), numerics)
    with pytest.raises(ValueError, match="no size"):
        retile(GPU.rows(64), Tile({"BM": 32}), numerics)


@pytest.mark.parametrize("cells, bm", list(product((1, 3, 64, 400), (32, 64, 128))))
def test_a_products_programs_cover_the_scalars_of_all_rows(cells: int, bm: int) -> None:
    """The programs that charge rows share the grid's first axis: fewer of them would leave rows uncharged."""
    tiles: Tiles = retile(GPU.product(ARITHMETICS["float64"], cells, 256, 64), Tile({"BM": bm}), ARITHMETICS["float64"])
    for rows in (1, 63, 64, 1000):
        programs = -(-rows * cells // bm)
        assert programs * tiles.constants["BS"] >= rows
        assert tiles.block == bm
