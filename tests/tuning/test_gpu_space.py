"""What a session on a GPU chooses among, and in which order, without a GPU."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch
from typer.testing import CliRunner

from polytriton.api import Verifier
from polytriton.arithmetic import ARITHMETICS
from polytriton.artifact import Artifact, read_artifact
from polytriton.cli import app
from polytriton.commands.tune import _check_allowed
from polytriton.errors import UsageError
from polytriton.kernels.choose import GPU
from polytriton.prove.decider import Decider
from polytriton.rounding import INNER
from polytriton.runtime.config import DEFAULT, Config, Tile
from polytriton.runtime.gpu.binding import Part
from polytriton.runtime.gpu.triton_backend import TritonBackend
from polytriton.tuning import sessions
from polytriton.tuning.checks import Check, Seen
from polytriton.tuning.cross import kinds
from polytriton.tuning.device import SHEETS
from polytriton.tuning.gpu_cost import kernel_cost, work
from polytriton.tuning.gpu_times import GpuTimes
from polytriton.tuning.session import SessionSettings
from polytriton.tuning.space import TILE, Space

HOPPER = SHEETS["cuda:90"]


@pytest.fixture(scope="module")
def held(compiled: Path) -> Artifact:
    return read_artifact(compiled)


def dense(split: int, rows: int, k: int = 4096) -> float:
    constants = {"K": k, "N": 512, **GPU.product(ARITHMETICS["float64"], 0, k, 512).constants, "SK": split}
    return kernel_cost("dense_step", constants, "float64", rows, HOPPER, None, "cuda:90").seconds


def test_a_split_pays_where_rows_are_few() -> None:
    assert dense(8, 64) < dense(1, 64)
    assert dense(8, 1 << 16, 512) > 2 * dense(1, 1 << 16, 512)  # there are tiles enough: the stretches are traffic in vain
    assert dense(8, 64, 16) > dense(1, 64, 16)  # nothing to split


def test_a_split_product_moves_its_stretches() -> None:
    plain, split = (
        work("dense_step", {"K": 512, "N": 256, **GPU.product(ARITHMETICS["float32"], 0, 512, 256).constants, "SK": s}, "float32", 64)
        for s in (1, 4)
    )
    assert split.programs - plain.programs == 3 * 4
    assert split.memory - plain.memory == 4 * (2 * 64 * 256 * 4)
    assert split.ops == plain.ops


# ---- the space ---------------------------------------------------------------------------------------------------


def gpu(held: Artifact, monkeypatch: pytest.MonkeyPatch, first: str = "float64", **settings: Any) -> tuple[Space, Any]:
    """As on an H100."""
    verifier = Verifier.from_artifact(held)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(sessions, "device_name", lambda device: "cuda:90 NVIDIA H100")
    monkeypatch.setattr(Decider, "first_dtype", lambda self: first)
    seen = Seen({("gemm5", "relu1"): Check(9)})
    chosen = SessionSettings({"device": "cuda", "dtype": "auto"}, 1, **settings)
    space, predict, peak = sessions._gpu(verifier, chosen, seen)
    assert peak == HOPPER.rates[ARITHMETICS[first].instruction]
    return space, predict


def test_the_choices_of_a_session(held: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    space, predict = gpu(held, monkeypatch)
    assert space.choices["dtype"] == ("", "float32")
    assert space.choices["graphs"] == space.choices["lanes"] == (True, False)
    assert list(space.choices["skips"]) == [{}, {"gemm5": ["relu1"]}]
    assert "whole" in space.choices
    assert space.config({}) == DEFAULT
    start = predict(space.config({}), None)
    assert 0 < start < 1
    for point in space.neighbours({}):
        assert space.config(point) != DEFAULT and space.point(space.config(point)) == point


def test_kernels_of_other_coefficients_are_no_choice(held: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    space, _ = gpu(held, monkeypatch)
    for point, mine in (({}, "float64"), ({"dtype": "float32"}, "float32")):
        tiles = {k for p in space.neighbours(point) for k in p if k.startswith(TILE)}
        assert tiles and all(f":{mine}:" in k for k in tiles)
    there = next(p for p in space.neighbours({"dtype": "float32"}) if len(p) == 2 and any(k.startswith(TILE) for k in p))
    assert space.plain({k: v for k, v in there.items() if k != "dtype"}) == {}  # and nothing is left of it where that changes
    rng = random.Random(0)
    for _ in range(50):
        point = space.sample(rng, {}, 0.3)
        assert all(f":{point.get('dtype', 'float64')}:" in k for k in point if k.startswith(TILE))


def test_split_products_only_where_they_are_allowed(held: Artifact, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu(held, monkeypatch, "float32")[0].choices["dtype"] == ("", "float64")
    space, predict = gpu(held, monkeypatch, "float32", allow=("tf32x3",))
    assert space.choices["dtype"] == ("", "float64", "tf32x3")
    assert predict(Config(dtype="tf32x3"), None) > 0


@pytest.mark.parametrize(
    "names, device, dtype, word",
    [("tf32x3", "cpu", "auto", "tensor cores"), ("fp8", "cuda", "auto", "fp8"), ("tf32x3", "cuda:1", "float64", "--dtype float64")],
)
def test_leave_that_cannot_be_given_is_refused(names: str, device: str, dtype: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        _check_allowed([names], {"device": device, "dtype": dtype})
    assert _check_allowed(["tf32x3", "bf16x6", "tf32x3"], {"device": "cuda", "dtype": "auto"}) == ("tf32x3", "bf16x6")
    assert _check_allowed([], {"device": "cpu", "dtype": "float64"}) == ()


def test_the_command_refuses_leave_on_a_cpu(poly: Path) -> None:
    said = CliRunner().invoke(app, ["tune", str(poly), "--allow", "tf32x3"])
    assert isinstance(said.exception, UsageError) and "tensor cores" in said.exception.message
    assert not poly.with_name(poly.name + ".tune").exists()


@pytest.mark.parametrize(
    "device, asked, chosen, want",
    [
        ("cpu", "auto", "tf32x3", "float32"), ("cpu", "auto", "float64", "float64"), ("cpu", "float32", "float64", "float32"),
        ("cuda", "auto", "float32", "float32"), ("cuda", "auto", "tf32x3", "tf32x3"), ("cuda", "float64", "float32", "float64"),
        ("cuda", "auto", "", "float64"),
    ],
)  # fmt: skip
def test_the_users_choice_of_coefficients_comes_first(
    device: str, asked: str, chosen: str, want: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from polytriton.runtime import settings

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(settings, "exact_float32", lambda: True)
    options = SimpleNamespace(dtype=asked, config=Config(dtype=chosen))
    decider = SimpleNamespace(options=options, device=torch.device(device), kernels="triton" if device == "cuda" else "")
    assert Decider.first_dtype(cast(Decider, decider)) == want


# ---- predicted times of a run ------------------------------------------------------------------------------------


def test_predicted_times_know_what_a_configuration_changes(held: Artifact) -> None:
    times = GpuTimes(held.compiled, HOPPER, "cuda:90", "float64")
    start = times.seconds(DEFAULT)
    assert times.seconds(Config(graphs=False)) > start
    assert times.seconds(Config(skips={"gemm5": ["relu1"]})) < start
    assert times.seconds(Config(whole=1e-9)) > start
    free = msgspec.structs.replace(HOPPER, launch=0.0)  # launches hide what a small network computes
    slow = GpuTimes(held.compiled, free, "cuda:90", "float64")
    assert slow.seconds(Config(dtype="float32")) < slow.seconds(DEFAULT)
    _, emitter = kinds(held.compiled, "float64")
    products = [k for k in emitter.asked if k.startswith(("dense_step", "conv_step"))]
    assert products
    assert slow.seconds(Config(tiles={k: Tile({"BM": 128, "BN": 128}) for k in products})) != slow.seconds(DEFAULT)
    assert times.seconds(Config(tiles={"dense_step:float64:unknown": Tile({"SK": 8})})) == start
    _, emitter = kinds(held.compiled, "float32")
    key = next(k for k in emitter.asked if k.startswith("dense_step"))
    refused = Config(dtype="float32", tiles={key: Tile({"BK": 2 * INNER})})
    assert times.seconds(refused) == float("inf")


# ---- graphs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graphs, captured", [(True, 1), (False, 0)])
def test_launches_are_captured_unless_the_configuration_says_otherwise(
    graphs: bool, captured: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a device that only counts: the second time is captured, and the third replays."""
    made: list[str] = []

    class Graph:
        def capture_begin(self, **how: Any) -> None:
            made.append("capture")

        def capture_end(self) -> None:
            made.append("captured")

        def replay(self) -> None:
            made.append("replay")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    bound = SimpleNamespace(parts=[Part([lambda: made.append("call")], 1)])
    backend = SimpleNamespace(graphs=graphs, device=torch.device("cuda"), streams=SimpleNamespace(capture=None, settle=lambda: None))
    backend._play = lambda part: TritonBackend._play(cast(TritonBackend, backend), part)
    backend._capture = lambda part: TritonBackend._capture(cast(TritonBackend, backend), part)
    backend.part = lambda part: TritonBackend.part(cast(TritonBackend, backend), part)
    for _ in range(3):
        TritonBackend.play(cast(TritonBackend, backend), cast(Any, bound))
    assert made.count("capture") == captured
    assert made == (["call", "capture", "call", "captured", "replay", "replay"] if graphs else ["call"] * 3)
