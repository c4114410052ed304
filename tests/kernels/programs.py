"""Random kernels over integers, run as plain Python with a stand-in for Triton: every store is noted."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

CONSTANTS = {"A": [-2, -1, 0, 1, 2, 3], "B": [1, 2, 4], "C": [0, 1, 5], "F": [False, True], "D": ["left", "right"], "E": [None, 0, 3]}
HEAD = '''import triton
import triton.language as tl

SHIFT = tl.constexpr(3)
WIDE = tl.constexpr(SHIFT > 2)


@triton.jit
def place(row, SCALE: tl.constexpr, BACK: tl.constexpr):
    """Where a row begins."""
    if BACK:
        return SHIFT - row * SCALE
    return row * SCALE + 0


@triton.jit
def put(y_ptr, to, x, WRITE: tl.constexpr):
    if WRITE > 0:
        tl.store(y_ptr + place(to, 2, False), x * WRITE)


@triton.jit
def twice(x):
    return 2 * x


@triton.jit
def f(
    x_ptr, y_ptr, n, m,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, F: tl.constexpr,
    D: tl.constexpr, E: tl.constexpr, T: tl.constexpr,
):
    """A random kernel."""
'''


class Writer:
    """Writes one kernel; every name it reads was assigned before on every path."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.count = 0
        self.ints = ["n", "m", "i0", "i1"]
        self.bools = ["b0"]
        self.constants = ["A", "B", "C"]
        self.text = HEAD + "    i0 = n + 1\n    i1 = tl.load(x_ptr)\n    b0 = n < m\n" + self.block(1, 0)
        self.text += "    tl.store(y_ptr, i0)\n    tl.store(y_ptr + 1, 1 if b0 else 0)\n"

    def new(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def pick(self, *choices: Callable[[], str]) -> str:
        return self.random.choice(choices)()

    def constant(self, deep: int = 2) -> str:
        """An integer over constants."""
        if deep == 0 or self.random.random() < 0.3:
            return self.random.choice([*self.constants, "SHIFT", "0", "1", "2", "-1"])
        a, b = self.constant(deep - 1), self.constant(deep - 1)
        op = self.random.choice(["+", "-", "*"])
        return self.random.choice(
            [
                f"({a} {op} {b})",
                f"min({a}, {b})",
                f"{a} // 2",
                f"({a}) % 3",
                f"({a} if {self.fact(deep - 1)} else {b})",
                f"tl.cdiv({a}, 2)",
                f"-{a}",
            ]
        )

    def fact(self, deep: int = 2) -> str:
        """A truth over constants."""
        return self.pick(
            lambda: "F",
            lambda: "not F",
            lambda: 'D == "left"',
            lambda: f"E is {self.random.choice(['not ', ''])}None",
            lambda: "T == tl.float64",
            lambda: "WIDE",
            lambda: "A in (1, 2)",
            lambda: f"{self.constant(deep)} {self.random.choice(['<', '==', '>='])} {self.constant(0)}",
            lambda: f"(0 <= {self.constant(0)} < 3 and F)",
        )

    def int(self, deep: int = 3) -> str:
        if deep == 0:
            return self.pick(lambda: self.random.choice(self.ints), lambda: self.random.choice(self.ints), lambda: self.constant(1))
        a, b = self.int(deep - 1), self.int(deep - 1)
        return self.pick(
            lambda: f"({a} {self.random.choice('+-*')} {b})",
            lambda: f"({a}) * {self.constant(1)} + {b}",
            lambda: f"{self.constant(0)} * ({a} - {b})",
            lambda: f"{self.constant(0)} + ({a} - {b}) * 1",
            lambda: f"(({a}) // {self.random.choice(['B', '1', '3', 'max(A, 1)'])})",
            lambda: f"({a} if {self.bool(deep - 1)} else {b})",
            lambda: f"place({a}, {self.constant(1)}, {self.fact(1)})",
            lambda: f"place({a}, BACK={self.fact(1)}, SCALE={self.constant(1)})",
            lambda: f"twice({a})",
            lambda: f"-({a})",
            lambda: f"({a}\n        - ({b}\n           + {self.constant(0)}))",
        )

    def bool(self, deep: int = 2) -> str:
        if deep == 0:
            return self.pick(lambda: self.random.choice(self.bools), lambda: f"({self.fact(1)})")
        a, b = self.bool(deep - 1), self.bool(deep - 1)
        return self.pick(
            lambda: f"({a} {self.random.choice(['and', 'or', '&', '|'])} {b})",
            lambda: f"({self.fact(1)} {self.random.choice(['and', 'or'])} {a} {self.random.choice(['and', 'or'])} {b})",
            lambda: f"(not {a})",
            lambda: f"({self.int(1)} < {self.int(1)})",
            lambda: f"({self.fact(1)})",
        )

    def block(self, indent: int, deep: int) -> str:
        scope = self.ints, self.bools, self.constants
        self.ints, self.bools, self.constants = list(self.ints), list(self.bools), list(self.constants)
        made = "".join(self.statement(indent, deep) for _ in range(self.random.randint(1, 5 - deep)))
        self.ints, self.bools, self.constants = scope
        return made

    def assign(self, pad: str) -> str:
        name = self.random.choice([*self.ints[2:], self.new("j")])
        text = f"{pad}{name} = ({self.int()}) % 1009\n"
        if name not in self.ints:
            self.ints.append(name)
        return text

    def flag(self, pad: str) -> str:
        name = self.random.choice([*self.bools, self.new("b")])
        text = f"{pad}{name} = {self.bool()}\n"
        if name not in self.bools:
            self.bools.append(name)
        return text

    def fixed(self, pad: str) -> str:
        """A local constant, assigned once, or once in either arm of a decision."""
        name = self.new("K")
        text = f"{pad}{name}{self.random.choice([': tl.constexpr', ''])} = {self.constant()}  # a constant\n"
        if self.random.random() < 0.4:
            arms = [f"{pad}    {name}: tl.constexpr = {self.constant()}\n" for _ in "ab"]
            text = f"{pad}if {self.fact()}:\n{arms[0]}{pad}else:\n{arms[1]}"
        self.constants.append(name)
        return text

    def choice(self, pad: str, indent: int, deep: int) -> str:
        text = ""
        for i in range(self.random.randint(1, 3)):
            test = self.pick(self.fact, self.bool)
            text += f"{pad}{'elif' if i else 'if'} {test}:{self.random.choice(['', '  # why'])}\n{self.block(indent + 1, deep + 1)}"
        return text + (f"{pad}else:\n{self.block(indent + 1, deep + 1)}" if self.random.random() < 0.5 else "")

    def loop(self, pad: str, indent: int, deep: int) -> str:
        if self.random.random() < 0.3:
            name = self.new("w")
            return f"{pad}{name} = 0\n{pad}while {name} < B:\n{self.block(indent + 1, deep + 1)}{pad}    {name} += 1\n"
        name = self.new("j")
        self.ints.append(name)
        head = f"{pad}for {name} in {self.random.choice(['range', 'tl.static_range'])}({self.constant(1)}):\n"
        text = head + self.block(indent + 1, deep + 1)
        self.ints.remove(name)
        return text

    def statement(self, indent: int, deep: int) -> str:
        pad = "    " * indent
        above = self.random.choice(["", "", "\n", f"{pad}# a word\n", f"\n{pad}# a word\n{pad}# and another\n"])
        simple: list[Callable[[], str]] = [
            lambda: self.assign(pad),
            lambda: self.assign(pad),
            lambda: self.flag(pad),
            lambda: self.fixed(pad),
            lambda: f"{pad}{self.random.choice(self.ints[2:])} += {self.constant()}\n",
            lambda: f"{pad}i0, i1 = i1, ({self.int()}) % 1009\n",
            lambda: f"{pad}tl.store(y_ptr + ({self.constant()}), {self.int()})\n",
            lambda: f"{pad}put(y_ptr, {self.constant()}, {self.int(1)}, {self.constant(1)})\n",
            lambda: f'{pad}tl.static_assert({self.fact()} or True, "holds")\n',
            lambda: f"{pad}pass\n",
        ]
        nested: list[Callable[[], str]] = [
            lambda: self.choice(pad, indent, deep),
            lambda: self.choice(pad, indent, deep),
            lambda: self.loop(pad, indent, deep),
        ]
        leave: list[Callable[[], str]] = [lambda: f"{pad}if {self.pick(self.fact, self.bool)}:\n{pad}    return\n"]
        return above + self.random.choice(simple + leave + (nested * 2 if deep < 3 else []))()


def run(text: str, name: str, arguments: Mapping[str, Any]) -> list[tuple[int, int]]:
    """What a kernel stores, in order."""
    stores: list[tuple[int, int]] = []
    tl = SimpleNamespace(
        constexpr=lambda value: value,
        float32="float32",
        float64="float64",
        load=lambda pointer: pointer * 7 % 11,
        store=lambda pointer, value: stores.append((pointer, value)),
        cdiv=lambda a, b: -(-a // b),
        static_range=range,
        static_assert=lambda *_: None,
    )
    tree = ast.parse(text)
    tree.body = [node for node in tree.body if not isinstance(node, ast.Import)]
    space: dict[str, Any] = {"tl": tl, "triton": SimpleNamespace(jit=lambda function: function)}
    exec(compile(tree, name, "exec"), space)
    space[name](**arguments)
    return stores
