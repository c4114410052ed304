"""What the specialiser writes runs as the library kernel does: as plain Python, in Triton's interpreter, and as machine code."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polytriton.kernels.specialise import specialise

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
KERNELS = (SAMPLES / "sample_kernels.py").read_text()
HELPERS = {"sample_helpers": (SAMPLES / "sample_helpers.py").read_text()}
SCALE = {"T": "tl.float32", "W": 3, "C": 2, "SHIFT": 0, "BIAS": "cell", "GAP": None, "TOTAL": True, "RAGGED": True, "BM": 4, "BK": 16}
EXIT = {"MODE": 1, "DEPTH": 3, "FACTOR": 2, "FLAG": True, "B": 8}
_number = itertools.count()


def load(name: str, path: Path) -> ModuleType:
    """Import a file under a name, for the files it is imported by too."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


programs = load("specialiser_programs", HERE / "programs.py")


@given(seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_random_kernels_store_the_same(seed: int) -> None:
    source, draw = programs.Writer(seed).text, random.Random(seed)
    constants = {name: draw.choice(values) for name, values in programs.CONSTANTS.items()}
    dtype = draw.choice(["float32", "float64"])
    given_ = {"x_ptr": 3, "y_ptr": 100, "n": draw.randint(-3, 9), "m": draw.randint(-3, 9)}
    made = specialise(source, "f", {**constants, "T": f"tl.{dtype}"}, "g")

    wanted = programs.run(source, "f", {**given_, **constants, "T": dtype})
    assert programs.run(made.text, "g", {name: given_[name] for name in made.parameters}) == wanted

    names = {part.id for part in ast.walk(ast.parse(made.text).body[-1]) if isinstance(part, ast.Name)}
    assert names.isdisjoint({*constants, "T"}), "a constant is left"
    assert set(made.parameters) <= names, "a parameter nobody reads is left"
    again = specialise(made.text, "g", {}, "g")
    assert programs.run(again.text, "g", {name: given_[name] for name in again.parameters}) == wanted


def launch(function: Any, arguments: dict[str, Any], constants: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors after a run of two programs in Triton's interpreter."""
    import triton.language as tl

    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    words = {k: getattr(tl, v[3:]) if isinstance(v, str) and v.startswith("tl.") else v for k, v in constants.items()}
    function[(2,)](**copies, **words)
    return {name: value for name, value in copies.items() if isinstance(value, torch.Tensor)}


def compare(function: str, constants: dict[str, Any], arguments: dict[str, Any], folder: Path) -> None:
    """Run the library kernel and its specialisation; they must leave the same bits."""
    pytest.importorskip("triton")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("triton was imported before TRITON_INTERPRET could be set")
    load("sample_helpers", SAMPLES / "sample_helpers.py")
    library = load("sample_kernels", SAMPLES / "sample_kernels.py")
    made = specialise(KERNELS, function, constants, "special", helpers=HELPERS)
    path = folder / f"special_{next(_number)}.py"
    path.write_text(made.text)
    special = load(path.stem, path)
    wanted = launch(getattr(library, function), arguments, constants)
    found = launch(special.special, {name: arguments[name] for name in made.parameters}, {})
    for name in arguments.keys() & wanted.keys():
        assert torch.equal(found.get(name, arguments[name]), wanted[name]), name


@given(
    T=st.sampled_from(["tl.float32", "tl.float64"]), W=st.integers(1, 3), C=st.integers(1, 3), SHIFT=st.integers(-2, 2),
    BIAS=st.sampled_from(["none", "channel", "cell"]), GAP=st.sampled_from([None, 0.0, -1.5, 1e-3]), TOTAL=st.booleans(),
    RAGGED=st.booleans(), BM=st.sampled_from([2, 4]), BK=st.sampled_from([4, 16]), n=st.integers(0, 8),
)  # fmt: skip
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_scaling_kernel_runs_as_the_library_does(tmp_path: Path, n: int, **constants: Any) -> None:
    dtype = torch.float32 if constants["T"] == "tl.float32" else torch.float64
    draw = torch.Generator().manual_seed(n)
    arguments = {
        "x_ptr": torch.randn(96, generator=draw).to(dtype), "bias_ptr": torch.randn(16, generator=draw).to(dtype),
        "gap_ptr": torch.ones(1, dtype=dtype), "out_ptr": torch.zeros(128, dtype=dtype), "total_ptr": torch.zeros(8, dtype=torch.float64),
        "n": n,
    }  # fmt: skip
    compare("scale_rows", constants, arguments, tmp_path)


@given(
    MODE=st.integers(0, 2), DEPTH=st.integers(0, 3), FACTOR=st.integers(-2, 2), FLAG=st.booleans(), B=st.sampled_from([4, 8]),
    n=st.integers(0, 8), count=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_kernel_with_exits_runs_as_the_library_does(tmp_path: Path, n: int, count: int, **constants: Any) -> None:
    arguments = {"a_ptr": torch.arange(8), "out_ptr": torch.zeros(8, dtype=torch.int64), "count_ptr": torch.tensor([count]), "n": n}
    compare("early_exit", constants, arguments, tmp_path)


COMPILE = """
import collections, importlib.util, json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
load("sample_helpers", sys.argv[1] + "/sample_helpers.py")
for name, path, function, types, constants in json.loads(sys.argv[2]):
    constants = {k: getattr(triton.language, v[3:]) if str(v).startswith("tl.") else v for k, v in constants.items()}
    source = ASTSource(getattr(load(name, path), function), signature=types, constexprs=constants)
    ptx = re.sub("//.*", "", triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
    print(json.dumps(sorted(collections.Counter(re.findall(r"^\\s*(?:@!?%p\\d+ )?([a-z][a-z0-9_.:]+)\\s", ptx, re.M)).items())))
"""


@pytest.mark.parametrize("function,constants", [("scale_rows", SCALE), ("early_exit", {**EXIT, "MODE": 0, "FLAG": False})])
def test_machine_code_is_that_of_the_library_kernel(function: str, constants: dict[str, Any], tmp_path: Path) -> None:
    """The same PTX instructions, each as often: nothing is lost or gained, names and unread parameters apart."""
    pytest.importorskip("triton")
    pytest.importorskip("triton.backends.nvidia")
    made = specialise(KERNELS, function, constants, "special", helpers=HELPERS)
    (tmp_path / "special.py").write_text(made.text)
    types = {
        "scale_rows": {"x_ptr": "*fp32", "bias_ptr": "*fp32", "gap_ptr": "*fp32", "out_ptr": "*fp32", "total_ptr": "*fp64", "n": "i32"},
        "early_exit": {"a_ptr": "*i64", "out_ptr": "*i64", "count_ptr": "*i64", "n": "i32"},
    }[function]
    jobs = [
        ("sample_kernels", str(SAMPLES / "sample_kernels.py"), function, {**types, **dict.fromkeys(constants, "constexpr")}, constants),
        ("special", str(tmp_path / "special.py"), "special", {name: types[name] for name in made.parameters}, {}),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILE, str(SAMPLES), json.dumps(jobs)]
    library, special = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split("\n")[:2]
    assert len(json.loads(special)) > 5
    assert special == library
