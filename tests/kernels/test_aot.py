"""Every kernel of real networks as machine code: compiled ahead of time, without a spill, with the instruction it was written for.

Cubins are kept in the folder POLYTRITON_TEST_CUBINS, or else in pytest's cache: only what changed is compiled again.
"""

from __future__ import annotations

import os
import struct
import warnings
from functools import cache
from pathlib import Path

import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.errors import KernelError
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Constants, Kernel
from polytriton.kernels.build import check, compile_all, triton_version
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.network import network_kernels
from polytriton.kernels.sass import LIMITS
from polytriton.passes.pipeline import compile_net
from tests.kernels import aot_ledger as ledger
from tests.kernels.aot_ledger import SETS, TARGETS, TYPES

EXAMPLES = Path(__file__).parents[2] / "examples"
PRODUCTS = ("dense_step", "conv_step")


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
    """A product of each type, the largest, with its instruction; test_examples compiles those of the other functions too."""
    kernels = of_file(EXAMPLES / "digits_conv_normal.onnx", numerics)
    products = [k for k in kernels if k.name.startswith(PRODUCTS)]
    assert products and all(k.instruction == ARITHMETICS[numerics].instruction for k in products)
    of_function = {k.family: k for k in sorted(kernels, key=lambda k: -len(k.parameters))}
    assert len(of_function) >= 8 and all(any(name.startswith(p) for name in of_function) for p in PRODUCTS)
    chosen = PRODUCTS[TYPES.index(numerics) % 2]
    compiled_clean([k for name, k in of_function.items() if name.startswith(chosen)], "cuda:90", cubins)


@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("numerics", ["tf32x3", "bf16x6"])
def test_split_products_on_hopper(numerics: str, each: bool, cubins: Path) -> None:
    """The opt-in types are there for the tensor cores' sake: HGMMA, of which `check` sees to it that it is there.

    One dense layer and one convolution, or each of them.
    """
    products = [k for k in of_file(EXAMPLES / "digits_conv_normal.onnx", numerics) if k.name.startswith(PRODUCTS)]
    assert products and all(k.instruction == "HGMMA" for k in products)
    of_function = {k.family: k for k in sorted(products, key=lambda k: len(k.parameters))}
    assert sorted(of_function) == sorted(PRODUCTS) and len(products) > len(PRODUCTS)
    compiled_clean(products if each else list(of_function.values()), "cuda:90", cubins)


@pytest.mark.slow
def test_examples(cubins: Path) -> None:
    """The two largest of every function and type; the ledger holds larger networks' kernels."""
    of_kind: dict[tuple[str, str], dict[str, Kernel]] = {}
    for numerics in TYPES:
        for path in sorted(EXAMPLES.glob("*.onnx")):
            for k in of_file(path, numerics):
                of_kind.setdefault((k.family, numerics), {})[k.name] = k
    kept = [k for found in of_kind.values() for k in sorted(found.values(), key=lambda k: -len(k.parameters))[:2]]
    compiled_clean(kept, "cuda:90", cubins)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", TYPES)
@pytest.mark.parametrize("name", SETS)
def test_networks_of_the_paper_and_the_data(name: str, numerics: str, cubins: Path, request: pytest.FixtureRequest) -> None:
    """All of them: by the ledger, of which some lines are compiled again; see aot_ledger.py."""
    books = {target: ledger.read(ledger.book_path(name, numerics, target)) for target in TARGETS}
    if reason := ledger.unusable(books):
        pytest.skip(reason)
    kernels = ledger.listed(name, numerics, request.getfixturevalue("data") if name == "data" else None)
    assert {k.instruction for k in kernels if k.name.startswith(PRODUCTS)} == {ARITHMETICS[numerics].instruction}
    missing, stale = ledger.prove(books, kernels, cubins)
    differ = [text for target, book in books.items() for text in ledger.compiled_again(book, kernels, target, ledger.today())]
    assert not differ, ledger.lying(name, differ)
    assert not stale, f"{stale} lines of the ledger are of kernels that no network has any more: {ledger.REFRESH}"
    if missing:
        warnings.warn(f"{missing} kernels are not in the ledger and were compiled here: {ledger.REFRESH}", stacklevel=1)


@pytest.mark.parametrize("target", [pytest.param(t, marks=() if t == "cuda:90" else pytest.mark.slow) for t in LIMITS])
def test_error_constants_stay_float64(target: str, cubins: Path) -> None:
    """A factor whose lower word float32 would lose is found whole in the machine code, in both types of coefficients."""
    factor = struct.unpack("<d", bytes.fromhex("795634120000f03f"))[0]  # 1 + 2^-23.8
    constants: Constants = {
        "RELU": False, "CHARGE": True, "SLOT": False, "SIZE": 21, "LINE": 21, "C": 21, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "START": 0,
        "PLANE": 21, "PITCH": 21, "T_START": 0, "T_PLANE": 21, "T_PITCH": 21, "BIAS": "none", "SUM_ERROR": factor, "BR": 4, "BQ": 32,
    }  # fmt: skip
    kernels = [make_kernel("relax_rows", tuple(sorted(constants.items())), numerics, 4, 1) for numerics in TYPES]
    made = compile_all(kernels, target, cache=cubins, jobs=1)
    assert len(made) == len(TYPES)
    for built in made:
        assert bytes.fromhex("79563412") in built.cubin and bytes.fromhex("0000f03f") in built.cubin
