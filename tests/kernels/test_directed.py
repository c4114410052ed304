"""Directed rounding: the emulation against exact rationals, bit for bit, and the PTX of the GPU form."""

from __future__ import annotations

import math
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polytriton.kernels.device.directed import (
    add_down_emulated,
    add_up_emulated,
    fma_down_emulated,
    fma_up_emulated,
    mul_down_emulated,
    mul_up_emulated,
)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
LANES = 256
OPERATIONS = ("fma_down", "fma_up", "add_down", "add_up", "mul_down", "mul_up")


@triton.jit
def all_six(a_ptr, b_ptr, c_ptr, out_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = tl.load(c_ptr + i)
    tl.store(out_ptr + i, fma_down_emulated(a, b, c))
    tl.store(out_ptr + N + i, fma_up_emulated(a, b, c))
    tl.store(out_ptr + 2 * N + i, add_down_emulated(a, b))
    tl.store(out_ptr + 3 * N + i, add_up_emulated(a, b))
    tl.store(out_ptr + 4 * N + i, mul_down_emulated(a, b))
    tl.store(out_ptr + 5 * N + i, mul_up_emulated(a, b))


@dataclass(frozen=True)
class Format:
    """A binary format: `digits` of significand, the unit 2**`least` of its subnormals, its bits."""

    dtype: torch.dtype
    digits: int
    least: int
    bits: int
    code: str

    @property
    def largest(self) -> Fraction:
        return (2 - Fraction(2) ** (1 - self.digits)) * 2 ** (2 - self.digits - self.least)

    def number(self, pattern: int) -> float:
        return struct.unpack("<" + self.code, pattern.to_bytes(self.bits // 8, "little"))[0]

    def pattern(self, value: float) -> int:
        return int.from_bytes(struct.pack("<" + self.code, value), "little")

    def down(self, value: Fraction) -> float:
        """The greatest number of the format that is not above a value other than zero: the textbook definition."""
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        exponent -= abs(value) < Fraction(2) ** exponent
        unit = Fraction(2) ** max(exponent - self.digits + 1, self.least)
        below = math.floor(value / unit) * unit
        if below > self.largest:
            below = self.largest
        return -math.inf if below < -self.largest else float(below)


SINGLE = Format(torch.float32, 24, -149, 32, "f")
DOUBLE = Format(torch.float64, 53, -1074, 64, "d")
FORMATS = (SINGLE, DOUBLE)


def wanted(form: Format, operation: str, a: float, b: float, c: float) -> float:
    """IEEE 754: the exact value rounded once. Up is down of the negated, as for every operation that is symmetric about zero."""
    kind, direction = operation.split("_")
    if kind == "add":
        a, b, c = a, 1.0, b
    if kind == "mul":
        c = math.copysign(0.0, a) * math.copysign(1.0, b)  # adding a zero of its own sign changes no product
    if direction == "up":
        return -wanted(form, "fma_down", -a, b, -c)
    if not all(map(math.isfinite, (a, b, c))):
        return a * b + c if not (math.isfinite(a) and math.isfinite(b)) else c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact:
        return form.down(exact)
    product = math.copysign(1.0, a) * math.copysign(1.0, b)
    return 0.0 if product > 0 and math.copysign(1.0, c) > 0 else -0.0


def same(form: Format, x: float, y: float) -> bool:
    return (math.isnan(x) and math.isnan(y)) or form.pattern(x) == form.pattern(y)


def special(form: Format) -> list[float]:
    tiny, normal, largest = form.number(1), 2.0 ** (form.least + form.digits - 1), float(form.largest)
    below, above = normal - tiny, 1 + 2.0 ** (1 - form.digits)
    finite = [0.0, tiny, below, normal, 0.5, 1.0, above, 3.0, largest / 2, largest, math.sqrt(normal)]
    return [s * x for x in [form.number(form.pattern(x)) for x in finite] for s in (1, -1)] + [math.inf, -math.inf, math.nan]


@st.composite
def triples(draw: st.DrawFn, form: Format) -> tuple[float, float, float]:
    """Any bits; numbers of like size; sums that cancel, wholly or up to a few units, or up to something far smaller."""
    bits, top = st.integers(0, 2**form.bits - 1), form.digits - 1
    kind = draw(st.sampled_from(["bits", "special", "near", "cancel", "far"]))
    if kind == "bits":
        a, b, c = (form.number(draw(bits)) for _ in range(3))
    elif kind == "special":
        a, b, c = (draw(st.sampled_from(special(form))) for _ in range(3))
    else:
        bias = 2 ** (form.bits - form.digits - 1) - 1
        reach = {"near": 40, "cancel": bias // 2, "far": bias - 1}[kind]
        a, b, c = (form.number(draw(bits) % 2**top | (bias + draw(st.integers(-reach, reach))) << top) for _ in range(3))
        a, c = a * draw(st.sampled_from([1, -1])), c * draw(st.sampled_from([1, -1]))
        if kind == "cancel":
            near = form.down(-Fraction(a) * Fraction(b)) if a and b else -0.0
            moved = form.pattern(near) + draw(st.integers(-3, 3))
            c = form.number(moved % 2**form.bits)
    return a, b, c


def run(form: Format, operands: list[tuple[float, float, float]]) -> dict[str, list[float]]:
    lanes = triton.next_power_of_2(len(operands))
    padded = operands + [(1.0, 1.0, 1.0)] * (lanes - len(operands))
    a, b, c = (torch.tensor(column, dtype=form.dtype) for column in zip(*padded, strict=True))
    out = torch.zeros(6, lanes, dtype=form.dtype)
    all_six[(1,)](a, b, c, out, N=lanes)
    return {name: out[k, : len(operands)].tolist() for k, name in enumerate(OPERATIONS)}


def hold(form: Format, operands: list[tuple[float, float, float]]) -> None:
    for name, got in run(form, operands).items():
        for (a, b, c), value in zip(operands, got, strict=True):
            right = wanted(form, name, a, b, c)
            assert same(form, value, right), f"{name}({a!r}, {b!r}, {c!r}) = {value!r}, not {right!r}"


@settings(max_examples=30)
@given(st.lists(triples(SINGLE), min_size=32, max_size=32))
def test_single_is_the_exact_value_rounded_once(operands: list[tuple[float, float, float]]) -> None:
    hold(SINGLE, operands)


HUGE, TINY = 2.0**1023, 2.0**-1074


@settings(max_examples=30)
@given(st.lists(triples(DOUBLE), min_size=32, max_size=32))
@example([(HUGE, HUGE, -math.inf), (HUGE, HUGE, -HUGE), (HUGE, TINY, -TINY), (TINY, TINY, TINY), (TINY, TINY, 0.0), (TINY, -TINY, 0.0)])
@example([(s + s * 2.0**-27, 1 + 2.0**-26, s * (2.0**-53 - 2.0**-106)) for s in (1, -1)])  # the third error decides alone
@example([(TINY, TINY, s * 2.0**k) for s in (1, -1) for k in (-1074, -1022, 0, 1023)])  # below every bit of the other addend
@example([(1 + 2.0**-52, 1 - 2.0**-53, s * 2.0**k) for s in (1, -1) for k in (-111, -110, -109, -108, 108, 109, 110, 111)])
def test_double_is_the_exact_value_rounded_once(operands: list[tuple[float, float, float]]) -> None:
    hold(DOUBLE, operands)


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: str(f.dtype)[6:])
def test_every_pair_of_special_numbers(form: Format) -> None:
    numbers = special(form)
    third = [numbers[k] for k in (0, 1, 2, 3, 12, 18, 19, 22, 23, 24)]
    operands = [(a, b, c) for a in numbers for b in numbers for c in third]
    for k in range(0, len(operands), LANES):
        hold(form, operands[k : k + LANES])


@pytest.mark.parametrize("form", FORMATS, ids=lambda f: str(f.dtype)[6:])
def test_the_oracle_brackets_and_is_next_to_the_value(form: Format) -> None:
    """The definition itself, on values whose neighbours are known."""
    largest, tiny = float(form.largest), form.number(1)
    assert form.largest == Fraction(torch.finfo(form.dtype).max)
    assert form.down(form.largest * 2) == largest
    assert form.down(-form.largest * 2) == -math.inf
    assert form.down(-Fraction(tiny) / 2) == -tiny
    assert same(form, form.down(Fraction(tiny) / 2), 0.0)
    one_third = form.down(Fraction(1, 3))
    assert Fraction(one_third) < Fraction(1, 3) < Fraction(form.number(form.pattern(one_third) + 1))


PROGRAM = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from polytriton.kernels.device.directed import add_down, add_up, fma_down, fma_up, mul_down, mul_up

@triton.jit
def six(a_ptr, b_ptr, out_ptr):
    i = tl.arange(0, 128)
    a = tl.load(a_ptr + i)
    b = tl.load(b_ptr + i)
    c = mul_up(add_up(fma_up(a, b, a), a), b)
    tl.store(out_ptr + i, mul_down(add_down(fma_down(a, b, c), a), b))

for kind in ("*fp32", "*fp64"):
    source = ASTSource(six, signature={"a_ptr": kind, "b_ptr": kind, "out_ptr": kind}, constexprs={})
    for arch in (80, 90):
        print(triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": 4}).asm["ptx"])
"""


def test_ptx_rounds_as_said_and_keeps_subnormals(tmp_path: Path, without_interpreter: Callable[[Path], str]) -> None:
    file = tmp_path / "six.py"
    file.write_text(PROGRAM)
    ptx = without_interpreter(file)
    assert ".ftz" not in ptx
    for bits in (32, 64):
        for kind in ("fma", "add", "mul"):
            for mode in ("rm", "rp"):
                assert len(re.findall(rf"\b{kind}\.{mode}\.f{bits} ", ptx)) == 2, (kind, mode, bits)


@pytest.fixture
def without_interpreter(tmp_path: Path) -> Callable[[Path], str]:
    """Runs a program in a process that compiles for a GPU, and returns what it prints."""
    root = Path(__file__).resolve().parents[2]

    def runs(file: Path) -> str:
        env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        env |= {
            "PYTHONPATH": os.pathsep.join([str(root), *filter(None, [env.get("PYTHONPATH")])]),
            "TRITON_CACHE_DIR": str(tmp_path / "cache"),
        }
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, env=env, timeout=300)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return runs
