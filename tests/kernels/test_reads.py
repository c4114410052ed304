"""The catalogue says which pointers a family reads under its constants: exactly those that are used in what Triton makes of it.

Triton's compiler and its interpreter do not live in one process, so another looks: `python -m tests.kernels.test_reads`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from polytriton.ir.launches import Kernel
from polytriton.ir.net import Net
from polytriton.kernels.catalogue import CATALOGUE, LIBRARY
from polytriton.kernels.choose import GPU
from polytriton.kernels.closure import read_closure, read_function
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.network import network_kernels
from polytriton.passes.pipeline import compile_net
from tests.kernels.accesses import accesses
from tests.kernels.branches import dense_branches, projections
from tests.kernels.small_kernels import compiles, each_choice
from tests.kernels.steps import turn_kernels
from tests.kernels.test_every_operator import every, leaky, pools, scales
from tests.kernels.test_interval_aot import scaled
from tests.kernels.test_interval_runs import routes, small
from tests.oracle.nets import random_net, toy_conv, toy_dense, toy_residual

SEEDS = 12
FOLDED, INTERVAL = ("float64", "float32", "tf32x3"), ("interval64", "interval32")


def networks() -> Iterator[tuple[Net, tuple[str, ...]]]:
    for make in (every, leaky, pools, scales, toy_conv, toy_dense, toy_residual, projections, dense_branches):
        yield make(), FOLDED
    for seed in range(SEEDS):
        yield random_net(seed, image=seed % 2 == 0), FOLDED
    for net in (small(residual=True, slope=0.125), small(stride=2), scaled(), routes(), projections(), dense_branches()):
        yield net, INTERVAL


def kernels() -> list[Kernel]:
    """One a family and choice of pointers: the smallest source of each that the networks have."""
    return each_choice(every_kernel())


def every_kernel() -> Iterator[Kernel]:
    for net, numerics in networks():
        for candidates in ("all", "input"):
            emitter = Emitter()
            network_kernels(compile_net(net, candidates=candidates), numerics, GPU, emitter)
            yield from emitter.kernels.values()
    for net in (toy_residual(), leaky()):
        for signed in (False, True):
            yield from turn_kernels(net, signed)


def idle(kernel: Kernel) -> list[str]:
    """The kernel's parameters that its intermediate form, optimised, never uses."""
    import triton
    from triton._C.libtriton import ir
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend

    from polytriton.kernels.load import triton_source

    assert triton.__version__
    target = GPUTarget("cuda", 90, 32)
    backend = make_backend(target)
    options = backend.parse_options({**kernel.options, "enable_fp_fusion": True})
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    asked = options, backend.get_codegen_implementation(options), backend.get_module_map(), context
    made = backend.make_ttir(triton_source(kernel).make_ir(target, *asked), {}, options, 90).str_nodebug()
    (head,) = re.findall(r"tt\.func public @\w+\((.*)\)", made)
    names = re.findall(r"(%\w+): ", head)
    assert len(names) == len(kernel.parameters), head
    body = made.partition(head)[2]
    return [p for p, name in zip(kernel.parameters, names, strict=True) if not re.search(rf"{name}\b", body)]


def main() -> None:
    """Of every kernel what it does not use, or why it could not be made; and once more with a pointer less."""
    told = {}
    for kernel in kernels():
        try:
            told[f"{kernel.family} {' '.join(kernel.parameters)} {' '.join(kernel.types)}"] = idle(kernel)
        except Exception as error:
            told[kernel.name] = [f"{type(error).__name__}: {str(error)[-300:]}"]
    less = next(k for k in kernels() if k.family == "join_rows")
    refused = []
    for parameter in less.parameters:
        kept = [(p, t) for p, t in zip(less.parameters, less.types, strict=True) if p != parameter]
        try:
            idle(replace(less, parameters=tuple(p for p, _ in kept), types=tuple(t for _, t in kept)))
        except Exception:
            refused.append(parameter)
    print(json.dumps({"idle": told, "less": less.parameters, "refused": refused}))


@compiles
@pytest.mark.slow
def test_what_is_read_is_what_triton_uses() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kernels.test_reads"], env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert {name: unused for name, unused in found["idle"].items() if unused} == {}
    assert {name.split()[0] for name in found["idle"]} == CATALOGUE.keys() - {"sum_parts"}
    assert found["refused"] == found["less"], "a pointer that is read and not listed is no kernel"


@pytest.fixture(scope="module")
def made() -> list[Kernel]:
    return kernels()


def test_what_is_read_is_what_the_source_touches(made: list[Kernel]) -> None:
    """The same without a compiler: constants decide the branches of the source, and what is left touches all that is listed."""
    for kernel in made:
        touched = {p for p, kinds in accesses(kernel).items() if kinds}
        assert touched == set(kernel.parameters), (kernel.name, dict(kernel.constants))
    assert {k.family for k in made} == CATALOGUE.keys() - {"sum_parts"}


def test_all_that_is_no_constant_is_a_pointer() -> None:
    for family, row in CATALOGUE.items():
        assert all(p.endswith("_ptr") for p in read_function(f"{LIBRARY}.{row.module}", family).flat)


def test_records_are_data_of_the_types_they_state(made: list[Kernel]) -> None:
    """No default, property or method: Triton's cache knows a record's fields, and code that changes beside them would stay."""
    kinds = {"int": int, "bool": bool, "float": float, "str": str, "tl.dtype": str}
    found: dict[str, dict[str, str]] = {}
    for family, row in CATALOGUE.items():
        module = f"{LIBRARY}.{row.module}"
        if record := read_function(module, family).record:
            classes = [ast.parse(d.text).body[0] for d in read_closure(module, record)]
            assert all(isinstance(c, ast.ClassDef) and ast.unparse(c.decorator_list[0]) == "dataclass(frozen=True)" for c in classes)
            said = [s for c in classes if isinstance(c, ast.ClassDef) for s in c.body if not isinstance(s, ast.Expr)]
            assert all(isinstance(s, ast.AnnAssign) and s.value is None for s in said), record
            found[family] = {ast.unparse(s.target): ast.unparse(s.annotation) for s in said if isinstance(s, ast.AnnAssign)}
    assert len(found) > 15
    for kernel in made:
        for name, value in kernel.constants if kernel.family in found else ():
            stated = found[kernel.family][name]
            assert type(value) is kinds[stated], (kernel.family, name, value)
            assert stated != "tl.dtype" or str(value).startswith("tl.float")


if __name__ == "__main__":
    main()
