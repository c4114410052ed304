"""Three kernels as they are emitted for a small residual network, word for word: text that a person can read.

After a change that is meant to be seen there: `python -m tests.golden.test_kernel_texts` writes the files anew; read the diff.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from polytriton.kernels.network import network_kernels
from polytriton.passes.pipeline import compile_net
from tests.oracle.nets import toy_residual

FOLDER = Path(__file__).parent
SHOWN = ("conv_step", "join_rows", "concretize_rows")


@cache
def texts() -> dict[str, str]:
    """The first kernel of each kind; its name ends in a hash of its text, which would hide what changed."""
    kernels = network_kernels(compile_net(toy_residual()), ["float64"])
    first = {name: next(k for k in kernels if k.name.startswith(f"{name}_")) for name in SHOWN}
    return {name: k.source.replace(k.name, name) for name, k in first.items()}


@pytest.mark.parametrize("name", SHOWN)
def test_kernel_is_as_filed(name: str) -> None:
    want = (FOLDER / f"{name}.py.txt").read_text()
    assert texts()[name] == want, "run `python -m tests.golden.test_kernel_texts` and read the diff"


@pytest.mark.parametrize("name", SHOWN)
def test_kernel_is_a_module_of_its_own(name: str) -> None:
    """It imports Triton only, and has no constant parameter left."""
    tree = ast.parse(texts()[name])
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert imported == {"triton", "triton.language"} and not any(isinstance(n, ast.ImportFrom) for n in ast.walk(tree))
    functions = [n for n in tree.body if isinstance(n, ast.FunctionDef)]
    assert functions[-1].name == name and not any(a.annotation for f in functions for a in f.args.args)


def test_no_text_is_left_over() -> None:
    assert {p.name for p in FOLDER.glob("*.py.txt")} == {f"{name}.py.txt" for name in SHOWN}


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / f"{name}.py.txt").write_text(text)
