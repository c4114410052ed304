"""What the specialiser writes reads as a person would write it, helpers come along, and refusals say what to write instead."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polytriton.kernels.specialise import Specialised, SpecialiseError, specialise

HERE = Path(__file__).parent
SAMPLES = HERE / "samples"
HELPERS = {"sample_helpers": (SAMPLES / "sample_helpers.py").read_text()}
HEAD = "import triton\nimport triton.language as tl\n\n\n"


def kernel(body: str, parameters: str = "", above: str = "") -> str:
    """A module with one kernel f of x_ptr, y_ptr, n and more parameters."""
    lines = "\n".join("    " + line if line else "" for line in body.strip("\n").split("\n"))
    return f"{HEAD}{above}@triton.jit\ndef f(x_ptr, y_ptr, n{''.join(f', {p}: tl.constexpr' for p in parameters.split())}):\n{lines}\n"


def rewritten(source: str, **constants: Any) -> str:
    """The body of the specialised kernel."""
    text = specialise(source, "f", constants, "g").text
    lines = text[text.index("\ndef g(") + 1 :].rstrip("\n").split("\n")[1:]
    return "\n".join(line[4:] for line in lines)


def test_a_whole_file() -> None:
    constants = {
        "T": "tl.float32",
        "W": 3,
        "C": 2,
        "SHIFT": 0,
        "BIAS": "cell",
        "GAP": None,
        "TOTAL": True,
        "RAGGED": True,
        "BM": 4,
        "BK": 16,
    }
    made = specialise((SAMPLES / "sample_kernels.py").read_text(), "scale_rows", constants, "scale_rows_1", helpers=HELPERS)
    assert made.parameters == ("x_ptr", "bias_ptr", "out_ptr", "total_ptr", "n")
    assert made.text == (SAMPLES / "scale_rows_1.txt").read_text()
    assert specialise(made.text, "scale_rows_1", {}, "scale_rows_1").text == made.text, "nothing is left to do"


def rewrites() -> dict[str, tuple[dict[str, Any], str, str]]:
    """Name -> constants, body before, body after: the cases of rewrites.txt."""
    cases = {}
    for case in (SAMPLES / "rewrites.txt").read_text().split("\n=== ")[1:]:
        header, text = case.split("\n", 1)
        name, constants = header.split(" | ")
        before, after = text.split("\n--->\n")
        cases[name] = (eval(f"dict({constants})"), before, after.rstrip("\n"))
    return cases


REWRITES = rewrites()


@pytest.mark.parametrize("name", REWRITES)
def test_rewrites(name: str) -> None:
    constants, before, after = REWRITES[name]
    assert rewritten(kernel(before, " ".join(constants)), **constants) == after


def test_long_calls_are_filled() -> None:
    loads = ", ".join(f"tl.load(x_ptr + {i} * n + A)" for i in range(2, 14))
    short, first, *inside, last = rewritten(kernel(f"tl.store(y_ptr + A, tl.load(x_ptr + n))\ntl.store({loads})", "A"), A=100).split("\n")
    assert short == "tl.store(y_ptr + 100, tl.load(x_ptr + n))"
    assert (first, last) == ("tl.store(", ")")
    assert " ".join(line.strip() for line in inside) == loads.replace("A", "100") + ","
    assert len(inside) < 6 and all(len(line) + 4 <= 120 for line in inside)


COMMENTED = """# about f
@triton.jit
def f(
    a_ptr, b_ptr,  # rows
    c_ptr,  # gone
    d_ptr, e_ptr,  # fmt: skip
    A: tl.constexpr,
):
    tl.store(a_ptr + b_ptr, d_ptr)
    if A:
        tl.store(c_ptr, e_ptr)
"""
UNCOMMENTED = """# about f
@triton.jit
def g(
    a_ptr, b_ptr,  # rows
    d_ptr,
):
    tl.store(a_ptr + b_ptr, d_ptr)
"""


def test_signature() -> None:
    """Comments stay with the parameters they follow; parameters nobody reads leave; a long list is filled."""
    made = specialise(HEAD + COMMENTED, "f", {"A": False}, "g")
    assert made == Specialised(HEAD + UNCOMMENTED, ("a_ptr", "b_ptr", "d_ptr"))
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
BASE = """import triton
import triton.language as tl

TOP = tl.constexpr(9)


# never above TOP
@triton.jit
def clamp(x):
    return tl.minimum(x, TOP)
"""
SCALED = '''import triton
import triton.language as tl
from triton.language.extra import libdevice

TOP = tl.constexpr(9)


# never above TOP
@triton.jit
def clamp(x):
    return tl.minimum(x, TOP)


@triton.jit
def scale(x):
    """A x."""
    return clamp(x) * 3


@triton.jit
def scale_2(x):
    """A x."""
    x = libdevice.rint(x)
    return clamp(x)


@triton.jit
def g(y_ptr, n):
    tl.store(y_ptr, scale(n) + scale(n) + scale_2(n))
'''


def with_tools(body: str, imports: str = "scale, plain, LIMIT, UNIT, FLOOR, python, uses_wrong", **constants: Any) -> str:
    source = kernel(body, " ".join(constants)).replace("\n\n\n@", f"\nfrom tools import {imports}\n\n\n@", 1)
    return specialise(source, "f", constants, "g", helpers={"tools": TOOLS, "base": BASE}).text


def test_helpers_called_with_constants_are_specialised_too() -> None:
    assert with_tools("tl.store(y_ptr, scale(n, A) + scale(n, A, B=1) + scale(n, 1, 2))", A=3) == SCALED


def test_other_helpers_are_copied_as_written() -> None:
    """A helper without constants, one whose constant is open, and all they need."""
    text = with_tools("for i in tl.static_range(A):\n    tl.store(y_ptr + i, scale(n, i))\ntl.store(y_ptr, plain(n) * UNIT)", A=2)
    assert "@triton.jit\ndef scale(x, A: tl.constexpr, B: tl.constexpr = 1):\n" in text
    assert TOOLS[TOOLS.index("@triton.jit\ndef plain") : TOOLS.index("\n\n\ndef python")] in text
    places = [text.index(part) for part in ("TOP =", "LIMIT =", "UNIT =", "FLOOR =", "def clamp", "def scale", "def plain", "def g")]
    assert places == sorted(places)
    assert "WRONG" not in text and "tools" not in text and "UNIT = tl.constexpr(2.0**-24)  # of float32" in text
    ast.parse(text)


def test_module_constants_fold_where_they_count_and_keep_their_name_where_they_measure() -> None:
    text = with_tools("SUM: tl.constexpr = A * UNIT\nif LIMIT > A:\n    tl.store(y_ptr + LIMIT * n, SUM * n + UNIT * A * n)", A=3)
    assert text.endswith("    SUM: tl.constexpr = 3 * UNIT\n    tl.store(y_ptr + 4 * n, SUM * n + UNIT * 3 * n)\n")


def test_a_helper_that_does_nothing_is_not_called() -> None:
    put = "@triton.jit\ndef put(y_ptr, x, ON: tl.constexpr):\n    if ON:\n        tl.store(y_ptr, x)\n\n\n"
    assert rewritten(kernel("put(y_ptr, n, A > 5)\nput(y_ptr, n, A)", "A", put), A=1) == "put(y_ptr, n)"


# --- it refuses clearly ---

REFUSALS = {
    "missing": ("pass", {}, "f, line 6: constants do not match: A (missing); give each tl.constexpr parameter one value"),
    "superfluous": ("pass", {"A": 1, "n": 2}, "n (not a tl.constexpr parameter)"),
    "kind": ("pass", {"A": (1, 2)}, "A is a tuple; give an int, float, bool, str or None"),
    "assertion": (
        'x = n\ntl.static_assert(A > 1, "A is too small")',
        {"A": 1},
        "f, line 8: tl.static_assert fails: A is too small; choose",
    ),
    "assertion in words": ('tl.static_assert(A > 1, f"A is {A}")', {"A": 1}, "tl.static_assert fails: A is 1;"),
    "arithmetic": ("tl.store(y_ptr, 4 // A)", {"A": 0}, "f, line 7: `4 // A` cannot be computed: integer division or modulo by zero;"),
    "kinds in arithmetic": ("tl.store(y_ptr, A + 1)", {"A": "x"}, "cannot be computed"),
    "unknown name": ("tl.store(y_ptr, helper(n) + A)", {"A": 0}, "f, line 7: `helper` is not defined; pass it as a parameter or import"),
    "constant assigned": ("A = 3\ntl.store(y_ptr, A)", {"A": 0}, "f, line 7: `A` is a constant or a module's name and is assigned;"),
    "language assigned": ("tl = 3", {"A": 0}, "`tl` is a constant or a module's name"),
    "builtin assigned": ("min = A", {"A": 0}, "`min` is a constant or a module's name"),
    "shared line": ("x = n; tl.store(y_ptr, x)", {"A": 0}, "f, line 7: two statements share a line; write each on a line of its own"),
    "body on the header's line": ("if A: tl.store(y_ptr, n)", {"A": 0}, "two statements share a line"),
    "else on the header's line": ("if A:\n    pass\nelse: tl.store(y_ptr, n)", {"A": 0}, "f, line 9: two statements share a line"),
    "lambda": ("x = lambda: A", {"A": 0}, "a lambda is not supported; write a @triton.jit helper"),
    "comprehension": ("x = [i for i in range(A)]", {"A": 0}, "a comprehension is not supported; write a loop over tl.static_range"),
    "walrus": ("if (x := n):\n    tl.store(y_ptr, x)", {"A": 0}, "`:=` is not supported"),
    "inner function": ("def g():\n    pass", {"A": 0}, "a nested function is not supported"),
    "loop else": ("for i in range(A):\n    pass\nelse:\n    tl.store(y_ptr, n)", {"A": 0}, "`else` after a loop is not supported"),
    "open f-string": ('tl.device_print(f"{n} {A}")', {"A": 0}, "an f-string may use constants only"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str) -> None:
    body, constants, message = REFUSALS[name]
    with pytest.raises(SpecialiseError, match=re.escape(message)):
        specialise(kernel(body, "A"), "f", constants, "g")


def test_refusals_of_modules_and_names() -> None:
    with pytest.raises(SpecialiseError, match=r"f: imports from base, whose source was not given; pass it in `helpers`"):
        specialise(HEAD + "from base import clamp\n\n" + kernel("tl.store(y_ptr, clamp(n))")[len(HEAD) :], "f", {}, "g")
    with pytest.raises(SpecialiseError, match=r"`python` is a plain function; decorate it with @triton.jit"):
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
    with pytest.raises(SpecialiseError, match=r"f, line 3: .*must be valid Python"):
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
    body = "if A:\n    K: tl.constexpr = 4 // A\n    tl.store(y_ptr, missing(K))\ntl.store(y_ptr, n if A == 0 else 4 // A)"
    assert rewritten(kernel(body, "A"), A=0) == "tl.store(y_ptr, n)"


def test_emission_needs_no_triton() -> None:
    code = "import sys, polytriton.kernels.specialise; sys.exit(any(m.split('.')[0] in ('triton', 'torch') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], cwd=HERE.parents[1], check=False).returncode == 0
