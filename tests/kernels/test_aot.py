"""Every kernel of real networks as machine code: compiled ahead of time, without a spill, with the instruction it was written for.

Cubins are kept in the folder POLYTRITON_TEST_CUBINS, or else in pytest's cache: only what changed is compiled again.
"""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path

import pytest

from bench import zoo
from polytriton.errors import KernelError
from polytriton.frontend.onnx import load_onnx
from polytriton.kernels.build import check, compile_all, triton_version
from polytriton.kernels.emit import NUMERICS, Constants, specialised
from polytriton.kernels.files import network_kernels
from polytriton.kernels.sass import LIMITS
from polytriton.kernels.spec import Kernel
from polytriton.passes.pipeline import compile_net

EXAMPLES = Path(__file__).parents[2] / "examples"
TARGETS = ("cuda:80", "cuda:90")
TYPES = ("float64", "float32")


def _missing() -> str:
    try:
        triton_version()
        return ""
    except KernelError as error:
        return error.message


pytestmark = pytest.mark.skipif(bool(_missing()), reason=_missing())


@pytest.fixture
def cubins(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    given, kept = os.environ.get("POLYTRITON_TEST_CUBINS"), getattr(request.config, "cache", None)
    return Path(given) if given else kept.mkdir("cubins") if kept is not None else tmp_path


@cache
def of_file(path: Path, numerics: str) -> list[Kernel]:
    return network_kernels(compile_net(load_onnx(path).net), [numerics])


def compiled_clean(kernels: list[Kernel], target: str, folder: Path) -> None:
    """Kernels of one name are one kernel."""
    distinct = list({k.name: k for k in kernels}.values())
    check([m.report for m in compile_all(distinct, target, cache=folder)], distinct)


@pytest.mark.parametrize("numerics", TYPES)
def test_an_example_on_hopper(numerics: str, cubins: Path) -> None:
    kernels = of_file(EXAMPLES / "digits_conv_normal.onnx", numerics)
    products = [k for k in kernels if k.name.startswith(("dense_step", "conv_step"))]
    assert products and all(k.instruction == NUMERICS[numerics].instruction for k in products)
    assert all(k.divisible == k.parameters for k in kernels)
    compiled_clean(kernels, "cuda:90", cubins)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("model", sorted(p.name for p in EXAMPLES.glob("*.onnx")))
def test_examples(model: str, numerics: str, target: str, cubins: Path) -> None:
    compiled_clean(of_file(EXAMPLES / model, numerics), target, cubins)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", TYPES)
def test_networks_of_the_data(numerics: str, target: str, data: Path, cubins: Path) -> None:
    files = sorted((data / "nets").glob("*/*.onnx"))
    assert files
    compiled_clean([k for f in files for k in of_file(f, numerics)], target, cubins)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("numerics", TYPES)
def test_networks_of_the_paper(numerics: str, target: str, cubins: Path, tmp_path: Path) -> None:
    """Two networks whole and a ResNet's products; all of all twelve with POLYTRITON_AOT=all, which takes over half an hour."""
    if os.environ.get("POLYTRITON_AOT") == "all":
        kernels = [k for name in zoo.NETS for k in of_zoo(name, numerics, tmp_path)]
    else:
        kernels = [k for name in ("mnist-6x500", "mnist-convbig") for k in of_zoo(name, numerics, tmp_path)]
        kernels += [k for k in of_zoo("resnet18", numerics, tmp_path) if k.name.startswith(("conv_step", "dense_step"))]
    compiled_clean(kernels, target, cubins)


@cache
def of_zoo(name: str, numerics: str, folder: Path) -> list[Kernel]:
    path = folder / f"{name}.onnx"
    path.write_bytes(zoo.build(name, "normal").SerializeToString())
    return of_file(path, numerics)


@pytest.mark.parametrize("target", LIMITS)
def test_error_constants_stay_float64(target: str, cubins: Path) -> None:
    """A factor whose lower word float32 would lose is found whole in the machine code, in both types of coefficients."""
    factor = struct.unpack("<d", bytes.fromhex("795634120000f03f"))[0]  # 1 + 2^-23.8
    constants: Constants = {
        "RELU": False, "CHARGE": True, "SLOT": False, "SIZE": 21, "LINE": 21, "C": 21, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "START": 0,
        "PLANE": 21, "PITCH": 21, "T_START": 0, "T_PLANE": 21, "T_PITCH": 21, "BIAS": "none", "SUM_ERROR": factor, "BR": 4, "BQ": 32,
    }  # fmt: skip
    for numerics in TYPES:
        kernel = specialised("relax_rows", tuple(sorted(constants.items())), numerics, 4, 1)
        cubin = compile_all([kernel], target, cache=cubins)[0].cubin
        assert bytes.fromhex("79563412") in cubin and bytes.fromhex("0000f03f") in cubin
