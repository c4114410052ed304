"""The specialiser: what it writes runs as the library kernel does, reads as a person would write it, and refuses clearly."""

from __future__ import annotations

import ast
import importlib.util
import itertools
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polytriton.kernels.specialise import Specialised, SpecialiseError, specialise

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
KERNELS = (SAMPLES / "sample_kernels.py").read_text()
HELPERS = {"sample_helpers": (SAMPLES / "sample_helpers.py").read_text()}
HEAD = "import triton\nimport triton.language as tl\n\n\n"
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


def kernel(body: str, parameters: str = "", above: str = "") -> str:
    """A module with one kernel f of x_ptr, y_ptr, n and more parameters."""
    lines = "\n".join("    " + line if line else "" for line in body.strip("\n").split("\n"))
    return f"{HEAD}{above}@triton.jit\ndef f(x_ptr, y_ptr, n{''.join(f', {p}: tl.constexpr' for p in parameters.split())}):\n{lines}\n"


def rewritten(source: str, **constants: Any) -> str:
    """The body of the specialised kernel."""
    text = specialise(source, "f", constants, "g").text
    lines = text[text.index("\ndef g(") + 1 :].rstrip("\n").split("\n")[1:]
    return "\n".join(line[4:] for line in lines)


# --- it means the same ---


@given(seed=st.integers(0, 2**32))
@settings(max_examples=120)
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


def compare(function: str, constants: dict[str, Any], arguments: dict[str, Any], folder: Path) -> Specialised:
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
    return made


@given(
    T=st.sampled_from(["tl.float32", "tl.float64"]), W=st.integers(1, 3), C=st.integers(1, 3), SHIFT=st.integers(-2, 2),
    BIAS=st.sampled_from(["none", "channel", "cell"]), GAP=st.sampled_from([None, 0.0, -1.5, 1e-3]), TOTAL=st.booleans(),
    RAGGED=st.booleans(), BM=st.sampled_from([2, 4]), BK=st.sampled_from([4, 16]), n=st.integers(0, 8),
)  # fmt: skip
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_scaling_kernel_runs_as_the_library_does(tmp_path: Path, n: int, **constants: Any) -> None:
    dtype = torch.float32 if constants["T"] == "tl.float32" else torch.float64
    draw = torch.Generator().manual_seed(n)
    arguments = {
        "x_ptr": torch.randn(96, generator=draw).to(dtype), "bias_ptr": torch.randn(16, generator=draw).to(dtype),
        "gap_ptr": torch.ones(1, dtype=dtype), "out_ptr": torch.zeros(128, dtype=dtype)[4:], "total_ptr": torch.zeros(8, dtype=torch.float64), "n": n,
    }  # fmt: skip
    compare("scale_rows", constants, arguments, tmp_path)


@given(
    MODE=st.integers(0, 2), DEPTH=st.integers(0, 3), FACTOR=st.integers(-2, 2), FLAG=st.booleans(), B=st.sampled_from([4, 8]),
    n=st.integers(0, 8), count=st.integers(0, 9),
)  # fmt: skip
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    types = {"n": "i32", "count_ptr": "*i64", "a_ptr": "*i64", "total_ptr": "*fp64", "out_ptr": "*i64" if function == "early_exit" else "*fp32"}
    runtime = [a.arg for node in ast.parse(KERNELS).body if getattr(node, "name", "") == function for a in node.args.args if a.arg not in constants]  # type: ignore[attr-defined]
    whole = {name: types.get(name, "*fp32") for name in runtime} | dict.fromkeys(constants, "constexpr")
    jobs = [
        ("sample_kernels", str(SAMPLES / "sample_kernels.py"), function, whole, constants),
        ("special", str(tmp_path / "special.py"), "special", {name: whole[name] for name in made.parameters}, {}),
    ]
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILE, str(SAMPLES), json.dumps(jobs)]
    library, special = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.split("\n")[:2]
    assert len(json.loads(special)) > 5
    assert special == library


# --- it reads well ---


def test_a_whole_file() -> None:
    made = specialise(KERNELS, "scale_rows", SCALE, "scale_rows_1", helpers=HELPERS)
    assert made.parameters == ("x_ptr", "bias_ptr", "out_ptr", "total_ptr", "n")
    assert made.text == (SAMPLES / "scale_rows_1.txt").read_text()
    assert specialise(made.text, "scale_rows_1", {}, "scale_rows_1").text == made.text, "nothing is left to do"


REWRITES = {
    "maximal literals": ("tl.store(y_ptr + A * B, n * (A + B) - 2 * 3)", "tl.store(y_ptr + 12, n * 7 - 2 * 3)", {"A": 3, "B": 4}),
    "neutral elements": ("tl.store(y_ptr + (n * A + B) // A, (B + (n - B)) * 1)", "tl.store(y_ptr + n, n)", {"A": 1, "B": 0}),
    "floats are not neutral": ("tl.store(y_ptr, n * A + B)", "tl.store(y_ptr, n * 1.0 + 0.0)", {"A": 1.0, "B": 0.0}),
    "truth is not a number": ("b = n < 3\ntl.store(y_ptr, b * A)", "b = n < 3\ntl.store(y_ptr, b * 1)", {"A": 1}),
    "idle truth": (
        "b = n < 3\ntl.store(y_ptr, n, mask=b & (A > 0) & A)",
        "b = n < 3\ntl.store(y_ptr, n, mask=b & 1)",
        {"A": 1},
    ),
    "negative constants": ("tl.store(y_ptr + A, A * n - A + (n - A) ** 2 + A ** n)", "tl.store(y_ptr - 2, -2 * n + 2 + (n + 2) ** 2 + (-2) ** n)", {"A": -2}),
    "needed parentheses": ("tl.store(y_ptr, n * (n - n * A) // (n * A))", "tl.store(y_ptr, n * (n - n) // n)", {"A": 1}),
    "types": (
        "x = tl.full((A, 2), 0.0, T)\nif T == tl.float64:\n    x = x.to(T)\ntl.store(y_ptr, x, T.primitive_bitwidth)",
        "x = tl.full((4, 2), 0.0, tl.float64)\nx = x.to(tl.float64)\ntl.store(y_ptr, x, 64)",
        {"A": 4, "T": "tl.float64"},
    ),
    "strings, None, infinities": (
        "tl.store(y_ptr, A, B, C, f'{A}-{D}', C is None, -D)",
        'tl.store(y_ptr, "it\'s", float("inf"), None, "it\'s-3", True, -3)',
        {"A": "it's", "B": float("inf"), "C": None, "D": 3},
    ),
    "calls": (
        "tl.store(y_ptr, min(A, 3) + n, max(A, n), tl.cdiv(A, 2), len((A, A)), triton.next_power_of_2(A), abs(-A), float(A))",
        "tl.store(y_ptr, 3 + n, max(5, n), 3, 2, 8, 5, 5.0)",
        {"A": 5},
    ),
    "choices": ("tl.store(y_ptr, n if A > 1 else (n + 1) * A, (n if A == 1 else 7) + (n + 1 if A in (1, 2) else n))", "tl.store(y_ptr, n + 1, n + (n + 1))", {"A": 1}),
    "part of a condition": ("if A and n > 1 and n < 5:\n    tl.store(y_ptr, 1)", "if n > 1 and n < 5:\n    tl.store(y_ptr, 1)", {"A": True}),
    "a false condition": ("if n > 1 and A:\n    tl.store(y_ptr, 1)\ntl.store(y_ptr, 2)", "tl.store(y_ptr, 2)", {"A": False}),
    "elif becomes if": (
        "if A == 1:\n    tl.store(y_ptr, 1)\nelif n:  # why\n    tl.store(y_ptr, 2)\nelif A == 2:\n    tl.store(y_ptr, 3)\nelse:\n    tl.store(y_ptr, 4)",
        "if n:  # why\n    tl.store(y_ptr, 2)\nelse:\n    tl.store(y_ptr, 3)",
        {"A": 2},
    ),
    "local constants": (
        "LINE: tl.constexpr = A * 3\nif LINE > 5:\n    STEP = LINE // 2\nelse:\n    STEP = 1\nfor i in range(0, LINE, STEP):\n    tl.store(y_ptr + i, STEP)",
        "for i in range(0, 6, 3):\n    tl.store(y_ptr + i, 3)",
        {"A": 2},
    ),
    "what changes stays": ("K = A\nK += n\ntl.store(y_ptr, K)", "K = 2\nK += n\ntl.store(y_ptr, K)", {"A": 2}),
    "dead assignments": (
        "a = tl.load(x_ptr)\nb = a + 1\nc = b\nfor i in range(A):\n    c += b\nif A > 3:\n    tl.store(y_ptr, c)\ntl.store(y_ptr, n)",
        "tl.store(y_ptr, n)",
        {"A": 3},
    ),
    "effects stay": (
        "a = tl.atomic_add(y_ptr, 1)\nb = tl.inline_asm_elementwise('x', '=r', [n], tl.int32, False, 1)\nc = tl.inline_asm_elementwise('y', '=r', [n], tl.int32, True, A)",
        "a = tl.atomic_add(y_ptr, 1)\nb = tl.inline_asm_elementwise('x', '=r', [n], tl.int32, False, 1)",
        {"A": 1},
    ),
    "exits": ("if A:\n    tl.store(y_ptr, 1)\n    return\ntl.store(y_ptr, 2)", "tl.store(y_ptr, 1)", {"A": True}),
    "assertions": ('tl.static_assert(A > 1, "no")\ntl.static_assert(n > A)\ntl.store(y_ptr, 1)', "tl.static_assert(n > 2)\ntl.store(y_ptr, 1)", {"A": 2}),
    "nothing is left": ("if A:\n    tl.store(y_ptr, 1)", "pass", {"A": False}),
    "an empty arm": (
        "if n:\n    a = A\nelse:\n    tl.store(y_ptr, 1)",
        "if n:\n    pass\nelse:\n    tl.store(y_ptr, 1)",
        {"A": 1},
    ),
    "comments": (
        "# the word A\nif A:  # only then\n    # one\n    tl.store(y_ptr, 1)  # two\n    # three\nelse:\n    # four\n    tl.store(y_ptr, 4)\n# five\nif not A:\n    tl.store(y_ptr, 5)\n\n# six\ntl.store(y_ptr, 6)",
        "# the word A\n# only then\n# one\ntl.store(y_ptr, 1)  # two\n# three\n\n# six\ntl.store(y_ptr, 6)",
        {"A": 1},
    ),
    "lines join where they fit": (
        "if A:\n    x = tl.load(x_ptr + A * n,\n                mask=n < 3,  # keep\n                other=0)\n    tl.store(y_ptr + A,\n             (x +\n              1),\n             mask=n < 3,\n             )  # fmt: skip",
        "x = tl.load(x_ptr + 2 * n,\n            mask=n < 3,  # keep\n            other=0)\ntl.store(y_ptr + 2, (x + 1), mask=n < 3)",
        {"A": 2},
    ),
    "strings over lines keep their columns": (
        'if A:\n    x = tl.inline_asm_elementwise("""\n        add;\n      """, "=r", [n], tl.int32, False, A)',
        'x = tl.inline_asm_elementwise("""\n        add;\n      """, "=r", [n], tl.int32, False, 1)',
        {"A": 1},
    ),
}


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    before, after, constants = REWRITES[name]
    assert rewritten(kernel(before, " ".join(constants)), **constants) == after


def test_long_calls_are_filled() -> None:
    names = [f"tl.load(x_ptr + {i + 2} * n + A)" for i in range(12)]
    text = rewritten(kernel(f"tl.store(y_ptr, helper({', '.join(names)}))\ntl.store({', '.join(names)})", "A", "@triton.jit\ndef helper(x):\n    return x\n\n\n"), A=100)
    first, *inside, last = text.split("\n")[1:]
    assert first == "tl.store(" and last == ")"
    assert all(len(line) + 4 <= 120 for line in inside)
    assert " ".join(line.strip() for line in inside) == ", ".join(names).replace("+ A", "+ 100") + ","


def test_signature() -> None:
    """Comments stay with the parameters they follow; parameters nobody reads leave; a long list is filled."""
    source = HEAD + "# about f\n@triton.jit\ndef f(\n    a_ptr, b_ptr,  # rows\n    c_ptr,  # gone\n    d_ptr, e_ptr,  # fmt: skip\n    A: tl.constexpr,\n):\n    tl.store(a_ptr + b_ptr, d_ptr)\n    if A:\n        tl.store(c_ptr, e_ptr)\n"
    made = specialise(source, "f", {"A": False}, "g")
    assert made == Specialised(HEAD + "# about f\n@triton.jit\ndef g(\n    a_ptr, b_ptr,  # rows\n    d_ptr,\n):\n    tl.store(a_ptr + b_ptr, d_ptr)\n", ("a_ptr", "b_ptr", "d_ptr"))
    many = [f"parameter_{i}" for i in range(20)]
    made = specialise(f"{HEAD}@triton.jit\ndef f({', '.join(many)}):\n    tl.store({', '.join(many)})\n", "f", {}, "g")
    assert made.parameters == tuple(many)
    assert max(map(len, made.text[: made.text.index("):")].split("\n"))) <= 120


# --- helpers ---

TOOLS = '''import triton
import triton.language as tl
from triton.language.extra import libdevice
from base import clamp

LIMIT = tl.constexpr(4)
UNIT = tl.constexpr(2.0**-24)  # of float32
FLOOR = tl.constexpr(UNIT * 8)
WRONG: tl.constexpr = 3


@triton.jit
def scale(x, A: tl.constexpr, B: tl.constexpr = 1):  # fmt: skip
    """A x."""
    if B > 1:
        x = libdevice.rint(x)
    return clamp(x) * A


@triton.jit
def plain(x):
    return scale(x, LIMIT, 2) + FLOOR


def python(x):
    return x


@triton.jit
def uses_wrong(x):
    return x + WRONG
'''
BASE = "import triton\nimport triton.language as tl\n\nTOP = tl.constexpr(9)\n\n\n# never above TOP\n@triton.jit\ndef clamp(x):\n    return tl.minimum(x, TOP)\n"


def with_tools(body: str, imports: str = "scale, plain, LIMIT, UNIT, FLOOR, python, uses_wrong", **constants: Any) -> str:
    source = kernel(body, " ".join(constants)).replace("\n\n\n@", f"\nfrom tools import {imports}\n\n\n@", 1)
    return specialise(source, "f", constants, "g", helpers={"tools": TOOLS, "base": BASE}).text


def test_helpers_called_with_constants_are_specialised_too() -> None:
    text = with_tools("tl.store(y_ptr, scale(n, A) + scale(n, A, B=1) + scale(n, 1, 2))", A=3)
    assert text == (
        "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n\nTOP = tl.constexpr(9)\n\n\n"
        "# never above TOP\n@triton.jit\ndef clamp(x):\n    return tl.minimum(x, TOP)\n\n\n"
        '@triton.jit\ndef scale(x):\n    """A x."""\n    return clamp(x) * 3\n\n\n'
        '@triton.jit\ndef scale_2(x):\n    """A x."""\n    x = libdevice.rint(x)\n    return clamp(x)\n\n\n'
        "@triton.jit\ndef g(y_ptr, n):\n    tl.store(y_ptr, scale(n) + scale(n) + scale_2(n))\n"
    )


def test_other_helpers_are_copied_as_written() -> None:
    """A helper without constants, one whose constant is open, and all they need."""
    text = with_tools("for i in tl.static_range(A):\n    tl.store(y_ptr + i, scale(n, i))\ntl.store(y_ptr, plain(n) * UNIT)", A=2)
    assert "@triton.jit\ndef scale(x, A: tl.constexpr, B: tl.constexpr = 1):\n" in text
    assert TOOLS[TOOLS.index("@triton.jit\ndef plain") : TOOLS.index("\n\n\ndef python")] in text
    assert text.index("TOP =") < text.index("LIMIT =") < text.index("UNIT =") < text.index("FLOOR =") < text.index("def clamp") < text.index("def scale")
    assert "WRONG" not in text and "tools" not in text and "UNIT = tl.constexpr(2.0**-24)  # of float32" in text
    ast.parse(text)


def test_module_constants_fold_where_they_count_and_keep_their_name_where_they_measure() -> None:
    text = with_tools("SUM: tl.constexpr = A * UNIT\nif LIMIT > A:\n    tl.store(y_ptr + LIMIT * n, SUM * n + UNIT * A * n)", A=3)
    assert text.endswith("    SUM: tl.constexpr = 3 * UNIT\n    tl.store(y_ptr + 4 * n, SUM * n + UNIT * 3 * n)\n")


def test_a_helper_that_does_nothing_is_not_called() -> None:
    source = kernel(
        "put(y_ptr, n, A > 5)\nput(y_ptr, n, A)", "A", "@triton.jit\ndef put(y_ptr, x, ON: tl.constexpr):\n    if ON:\n        tl.store(y_ptr, x)\n\n\n"
    )
    assert rewritten(source, A=1) == "put(y_ptr, n)"


# --- it refuses clearly ---

REFUSALS = {
    "missing": ("pass", {}, "f, line 6: constants do not match: A (missing); give each tl.constexpr parameter one value"),
    "superfluous": ("pass", {"A": 1, "n": 2}, "n (not a tl.constexpr parameter)"),
    "kind": ("pass", {"A": (1, 2)}, "A is a tuple; give an int, float, bool, str or None"),
    "assertion": ('x = n\ntl.static_assert(A > 1, "A is too small")', {"A": 1}, "f, line 8: tl.static_assert fails: A is too small; choose constants"),
    "assertion in words": ('tl.static_assert(A > 1, f"A is {A}")', {"A": 1}, "tl.static_assert fails: A is 1;"),
    "arithmetic": ("tl.store(y_ptr, 4 // A)", {"A": 0}, "f, line 7: `4 // A` cannot be computed: integer division or modulo by zero; guard it"),
    "kinds in arithmetic": ("tl.store(y_ptr, A + 1)", {"A": "x"}, "cannot be computed"),
    "unknown name": ("tl.store(y_ptr, helper(n) + A)", {"A": 0}, "f, line 7: `helper` is not defined; pass it as a parameter or import"),
    "constant assigned": ("A = 3\ntl.store(y_ptr, A)", {"A": 0}, "f, line 7: `A` is a constant or a module's name and is assigned; use another"),
    "language assigned": ("tl = 3", {"A": 0}, "`tl` is a constant or a module's name"),
    "builtin assigned": ("min = A", {"A": 0}, "`min` is a constant or a module's name"),
    "shared line": ("x = n; tl.store(y_ptr, x)", {"A": 0}, "f, line 7: two statements share a line; write each on a line of its own"),
    "body on the header's line": ("if A: tl.store(y_ptr, n)", {"A": 0}, "two statements share a line"),
    "else on the header's line": ("if A:\n    pass\nelse: tl.store(y_ptr, n)", {"A": 0}, "f, line 9: two statements share a line"),
    "lambda": ("x = lambda: A", {"A": 0}, "a lambda is not supported; write a @triton.jit helper"),
    "comprehension": ("x = [i for i in range(A)]", {"A": 0}, "a comprehension is not supported; write a loop over tl.static_range"),
    "walrus": ("if (x := n):\n    tl.store(y_ptr, x)", {"A": 0}, "`:=` is not supported"),
    "inner function": ("def g():\n    pass", {"A": 0}, "a nested function is not supported"),
    "loop else": ("for i in range(A):\n    pass\nelse:\n    tl.store(y_ptr, n)", {"A": 0}, "`else` after a loop is not supported; set a flag"),
    "open f-string": ('tl.device_print(f"{n} {A}")', {"A": 0}, "an f-string may use constants only"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    body, constants, message = REFUSALS[name]
    with pytest.raises(SpecialiseError, match=re.escape(message)):
        specialise(kernel(body, "A"), "f", constants, "g")


def test_refusals_of_modules_and_names() -> None:
    with pytest.raises(SpecialiseError, match="f: imports from base, whose source was not given; pass it in `helpers`"):
        specialise(HEAD + "from base import clamp\n\n" + kernel("tl.store(y_ptr, clamp(n))")[len(HEAD) :], "f", {}, "g")
    with pytest.raises(SpecialiseError, match="`python` is a plain function; decorate it with @triton.jit"):
        with_tools("tl.store(y_ptr, python(n))")
    with pytest.raises(SpecialiseError, match=r"tools, line 31: Triton cannot read the global `WRONG`; write `WRONG = tl.constexpr"):
        with_tools("tl.store(y_ptr, uses_wrong(n))")
    with pytest.raises(SpecialiseError, match="tools defines no `absent`"):
        with_tools("tl.store(y_ptr, absent(n))", "absent")
    with pytest.raises(SpecialiseError, match="`scale as other` cannot be copied"):
        with_tools("tl.store(y_ptr, other(n, 2))", "scale as other")
    for name in ("no name", "n", "tl"):
        with pytest.raises(SpecialiseError, match=f"the new name `{name}` is no identifier or is taken"):
            specialise(kernel("tl.store(y_ptr, n)"), "f", {}, name)
    with pytest.raises(SpecialiseError, match="absent: the source defines no such function"):
        specialise(kernel("pass"), "absent", {}, "g")
    with pytest.raises(SpecialiseError, match="f, line 3: .*must be valid Python"):
        specialise("\n\ndef f(:\n", "f", {}, "g")


@pytest.mark.parametrize(
    "signature,message",
    [
        ("@triton.jit(noinline=True)\ndef f(x):", "not decorated with exactly @triton.jit"),
        ("def f(x):", "not decorated with exactly @triton.jit"),
        ("@triton.jit\ndef f(*x):", "only plain parameters"),
        ("@triton.jit\ndef f(x=1):", "a run-time parameter has a default"),
        ("@triton.jit\ndef f(min):", "the parameter `min` hides"),
    ],
)
def test_refused_signatures(signature: str, message: str) -> None:
    with pytest.raises(SpecialiseError, match=message):
        specialise(f"{HEAD}{signature}\n    pass\n", "f", {}, "g")


def test_dead_code_may_be_anything_triton_takes() -> None:
    """What the constants rule out is not evaluated."""
    assert rewritten(kernel("if A:\n    K = 4 // A\n    tl.store(y_ptr, missing(K))\ntl.store(y_ptr, n if A == 0 else 4 // A)", "A"), A=0) == "tl.store(y_ptr, n)"


def test_emission_needs_no_triton() -> None:
    code = "import sys, polytriton.kernels.specialise; sys.exit(any(m.split('.')[0] in ('triton', 'torch') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[1], check=False).returncode == 0
