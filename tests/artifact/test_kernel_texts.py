"""A kernel as a file: Python that needs only Triton, under a name that tells all that decides it, with a head that is true.

After a change that is meant to be seen in the heads: `python -m tests.artifact.test_kernel_texts` writes them anew; read the diff.
"""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytriton
from polytriton.ir.launches import Constant
from polytriton.kernels import catalogue
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.choose import Sizes
from polytriton.kernels.closure import read_function
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.files import emit_files
from polytriton.kernels.header import header
from polytriton.kernels.network import network_kernels
from polytriton.passes.pipeline import Compiled, compile_net
from tests.oracle.nets import random_net, toy_residual

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "toy_residual_headers.txt"
HASH = re.compile(r"(?<=_)[0-9a-f]{10}\b|\b[0-9a-f]{64}\b")
EXAMPLE: dict[str, Constant] = {
    "RELU": True, "CHARGE": True, "SLOT": False, "SIZE": 21, "LINE": 21, "C": 21, "RH": 0, "OH": 0, "RW": 0, "OW": 0, "START": 0,
    "PLANE": 21, "PITCH": 21, "T_START": 0, "T_PLANE": 21, "T_PITCH": 21, "BIAS": "none", "SUM_ERROR": 1.5, "BR": 4, "BQ": 32,
}  # fmt: skip
TILES = Sizes(values=512, line=512, pairs=64, columns=64, terms=16)  # whatever the tuned ones are


@pytest.fixture(scope="module")
def example() -> Compiled:
    return polytriton.compile(ROOT / "examples" / "digits_resnet_ibp.onnx", check=False).compiled


@pytest.fixture(scope="module")
def emitted(example: Compiled) -> Emitter:
    emitter = Emitter()
    network_kernels(example, ("float64", "float32"), emitter=emitter)
    return emitter


def test_every_kernel_is_readable_python_that_needs_only_triton(example: Compiled) -> None:
    held = emit_files(example, ("interpret",), ("float32",))
    assert len(held.steps) > 30
    for name, kernel in held.filed.kernels.items():
        text = held.kernel_text(name)
        tree = ast.parse(text)
        imports = [n for n in ast.walk(tree) if isinstance(n, (ast.Import, ast.ImportFrom))]
        taken = read_function(*catalogue.place(kernel.family))
        data = ["from dataclasses import dataclass"] * bool(taken.record)
        assert [ast.unparse(n) for n in imports] == [*data, "import triton", "import triton.language as tl"]
        last = tree.body[-1]
        assert isinstance(last, ast.FunctionDef)
        assert last.name == kernel.family
        assert set(taken.constants) == dict(kernel.constants).keys() and set(taken.flat) >= set(kernel.parameters)
        constants = [a.arg for a in last.args.args if a.annotation is not None]
        assert constants == (["c"] if taken.record else list(taken.constants))
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name)]
        known = {n.id for n in names if isinstance(n.ctx, ast.Store)} | {a.arg for a in ast.walk(tree) if isinstance(a, ast.arg)}
        known |= {f.name for f in tree.body if isinstance(f, (ast.FunctionDef, ast.ClassDef))}
        known |= {"triton", "tl", "dataclass", *dir(builtins)}
        assert {n.id for n in names} <= known, "all that it calls is there"
        assert max(map(len, text.splitlines())) <= 140
        head = [line for line in text.splitlines() if line.startswith("#")][:2]
        assert head[0] == f"# {name}"
        assert head[1].startswith("#   steps     %")
        assert all(f"{k}={v}" in text for k, v in kernel.constants)


def said(emitter: Emitter, name: str) -> str:
    uses = emitter.uses[name]
    steps, numerics = (list(dict.fromkeys(getattr(use, of) for use in uses)) for of in ("step", "numerics"))
    return header(emitter.kernels[name], steps, numerics)


def test_the_same_code_is_one_kernel(emitted: Emitter) -> None:
    made = emitted.kernels.values()
    assert len({replace(k, name="k", instruction="") for k in made}) == len(made)
    moves = [name for name in emitted.kernels if name.startswith("count_staying")]
    assert len(moves) == 1  # of float64 and float32 alike
    assert {use.numerics for use in emitted.uses[moves[0]]} == {"float64", "float32"}
    assert len({use.step for use in emitted.uses[moves[0]]}) > 5
    assert re.search(r"^# +and \d+ more$", said(emitted, moves[0]), re.M)


def test_a_name_tells_all_that_decides_machine_code(monkeypatch: pytest.MonkeyPatch) -> None:
    order = ("relax_rows", dict(EXAMPLE), "float32", 4, 3)
    others = [
        ("relax_rows", {**EXAMPLE, "BR": 8}, *order[2:]), ("relax_rows", {**EXAMPLE, "RELU": False}, *order[2:]),
        (*order[:2], "float64", 4, 3), (*order[:3], 8, 3), (*order[:4], 2),
    ]  # fmt: skip
    names = {make_kernel(f, tuple(sorted(c.items())), *rest).name for f, c, *rest in (order, *others)}
    assert len(names) == 1 + len(others)
    same = make_kernel("relax_rows", tuple(sorted(EXAMPLE.items())), "tf32x3", 4, 3)
    assert same.name in names, "a row pass is float32 in either"
    digest = catalogue.closure_digest
    monkeypatch.setattr(catalogue, "closure_digest", lambda module, function: digest(module, function)[::-1])
    assert make_kernel.__wrapped__("relax_rows", tuple(sorted(EXAMPLE.items())), "float32", 4, 3).name not in names


def test_constants_that_are_missing_or_strange_are_refused() -> None:
    with pytest.raises(ValueError, match=r"relax_rows: constants do not match: BQ \(missing\), MORE \(no constant of it\)"):
        make_kernel("relax_rows", tuple(sorted({**{k: v for k, v in EXAMPLE.items() if k != "BQ"}, "MORE": 1}.items())), "float64", 4, 3)


def test_no_entry_sums_more_terms_than_its_head_says(emitted: Emitter) -> None:
    """Counted by convolving ones; where the window is large enough for an inner cell, exactly as many."""
    both = Emitter(dict(emitted.kernels), {name: list(uses) for name, uses in emitted.uses.items()})
    for seed in range(4):  # groups, strides and dilations of all kinds
        network_kernels(compile_net(random_net(seed, image=True)), ("float64",), emitter=both)
    seen, tight = set(), 0
    for name in both.kernels:
        for use in both.uses[name] if name.startswith("conv_step") else ():
            c: dict[str, Any] = dict(use.constants)
            seen |= {key for key in ("G", "SH", "DH") if c[key] > 1}
            rows, weights = torch.ones(1, c["CO"], c["H"], c["W"]), torch.ones(c["CO"], c["CI"] // c["G"], c["KH"], c["KW"])
            terms = int(F.conv_transpose2d(rows, weights, stride=(c["SH"], c["SW"]), dilation=(c["DH"], c["DW"]), groups=c["G"]).max())
            found = re.search(r"K = (\d+) terms an entry, in blocks of (\d+)", said(both, name))
            assert found is not None
            assert terms <= int(found[1])
            assert int(found[2]) <= min(c["BK"], c["CO"] // c["G"])
            tight += terms == int(found[1])
    assert seen == {"G", "SH", "DH"}
    assert tight > 3


def headers() -> str:
    emitter = Emitter()
    network_kernels(compile_net(toy_residual()), ("float32", "tf32x3"), TILES, emitter)
    return "\n".join(HASH.sub("HASH", said(emitter, name)) for name in emitter.kernels)


def test_headers_are_as_filed() -> None:
    assert headers() == GOLDEN.read_text(), "run `python -m tests.artifact.test_kernel_texts` and read the diff"


if __name__ == "__main__":
    GOLDEN.write_text(headers())
