"""VNN-LIB text to a formula over linear inequalities: one pass, bottom up, without recursion.

A closing bracket reduces its list at once, so an expression tree never exists: numbers become rationals, sums become
linear forms, comparisons become leaves. Inputs are coded 0, 1, 2 ... and outputs -1, -2, -3 ... (that is, ~0, ~1, ~2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from math import prod
from typing import TypeAlias

from polytriton.errors import UnsupportedProperty
from polytriton.frontend.query import Tensor
from polytriton.frontend.vnnlib_dnf import Formula, Junction, Leaf
from polytriton.frontend.vnnlib_linear import ONE, ZERO, BadLine, Linear, compare_linear, number

MAX_DEPTH = 1_000
MAX_ELEMENTS = 10_000_000

TOKEN = re.compile(r'[()]|[^\s()\[\];"]+(?:\[[^\]()]*\])?|;[^\n\r]*|\[[^\]()]*\]|"(?:[^"\\]|\\.)*"|\S')
LEGACY = re.compile(r"([XY])_(0|[1-9]\d{0,8})", re.ASCII)
SHAPE = re.compile(r"\[\s*(?:\d{1,9}(?:\s*,\s*\d{1,9})*)?\s*\]", re.ASCII)
IGNORED = {"set-logic", "set-info", "set-option", "check-sat", "get-model", "exit"}
REALS = {"float32", "float64", "real", "Real"}
EQUAL, ISOMORPHIC = LIKE = ("equal-to", "isomorphic-to")
DECLARE = "write (declare-network f (declare-input ...) (declare-output ...))"


@dataclass(slots=True)
class Decl:
    """What an inner declaration leaves for the `declare-network` around it."""

    role: str
    tensor: Tensor
    first: int = 0  # where its elements begin among those of all networks' inputs, or outputs


@dataclass(frozen=True)
class Declared:
    """One `declare-network`. `like`: "equal-to" or "isomorphic-to", and which network that is declared before it; ("", "") without."""

    name: str
    input: Tensor
    output: Tensor
    like: tuple[str, str] = ("", "")


Value: TypeAlias = str | Linear | Leaf | Junction | Decl | tuple[str, str] | None


@dataclass
class Document:
    """A read file: its declarations and the conjunction of its asserts. Elements of several networks are numbered through."""

    version: str = "1.0"
    asserts: list[Formula] = field(default_factory=list)
    input: Tensor = field(default_factory=lambda: Tensor("X"))
    output: Tensor = field(default_factory=lambda: Tensor("Y"))
    n_in: int = 0
    n_out: int = 0
    network: str = ""
    networks: list[Declared] = field(default_factory=list)


def parse(text: str, name: str) -> Document:
    """Reads a whole file; every complaint names file and line."""
    reader = _Reader()
    tokens = TOKEN.findall(text)
    at = -1
    try:
        stack: list[list[Value]] = []
        frame: list[Value] | None = None
        for tok in tokens:
            at += 1
            if tok == "(":
                if frame is not None:
                    stack.append(frame)
                    if len(stack) >= MAX_DEPTH:
                        raise BadLine(f"brackets nest deeper than {MAX_DEPTH}", "flatten the formula: and, or and + take many operands")
                frame = []
            elif tok == ")":
                if frame is None:
                    raise BadLine("a closing bracket too many", "remove it")
                value = reader.reduce(frame, len(stack))
                frame = stack.pop() if stack else None
                if frame is not None:
                    frame.append(value)
            elif tok[0] == ";":
                continue
            elif frame is None:
                raise BadLine(f"`{tok[:40]}` outside any bracket", "a file is a list of (declare-...) and (assert ...)")
            elif tok[0] == "[" and frame and not str(frame[0]).startswith("declare-"):
                if not isinstance(frame[-1], str):
                    raise BadLine(f"an index `{tok[:40]}` without a variable", "write X[0,3]")
                frame[-1] += tok  # `X [0,1]`, written apart
            else:
                frame.append(tok)
        if frame is not None:
            raise BadLine("the file ends inside a bracket", "close it; was the file cut short?")
        return reader.finish()
    except BadLine as stop:
        message, remedy = stop.args
        raise UnsupportedProperty(f"{name}:{_line(text, at)}: {message}", remedy) from None


def _line(text: str, at: int) -> int:
    """The line of a token: positions are not kept while reading, errors are rare."""
    for k, found in enumerate(TOKEN.finditer(text)):
        if k == at:
            return text.count("\n", 0, found.start()) + 1
    return 1


class _Reader:
    """The reductions, one method a keyword, and the tables of declared names, of numbers and of comparisons seen."""

    def __init__(self) -> None:
        self.doc = Document()
        self.codes: dict[str, int] = {}
        self.numbers: dict[str, Fraction] = {}
        self.compared: dict[tuple[str, str, str], Formula] = {}  # of two words: disjuncts say the same of most inputs
        self.tensors: dict[str, Decl] = {}
        self.statements = 0
        self.table: dict[str, Callable[[str, list[Value]], Value]] = {
            **dict.fromkeys(("<=", ">=", "<", ">", "=", "==", "!=", "distinct"), self.compare),
            **dict.fromkeys(("and", "or", "not"), self.connect),
            **dict.fromkeys(("+", "-"), self.add),
            "*": self.multiply,
            "/": self.divide,
            **dict.fromkeys(("declare-input", "declare-output", "declare-hidden"), self.declare_tensor),
            **dict.fromkeys(LIKE, self.declare_like),
        }
        self.top: dict[str, Callable[[str, list[Value]], None]] = {
            "assert": self.assertion,
            **dict.fromkeys(("declare-const", "declare-fun"), self.declare_legacy),
            "declare-network": self.declare_network,
            "vnnlib-version": self.declare_version,
        }

    def reduce(self, frame: list[Value], depth: int) -> Value:
        if not frame:
            return "()"
        head = frame[0]
        if not isinstance(head, str):
            raise BadLine("a bracket must begin with a keyword", "such as assert, and, <=, +")
        if depth == 0:
            self.statements += 1
            if head in self.top:
                self.top[head](head, frame[1:])
            elif head not in IGNORED:
                raise BadLine(f"`{head[:40]}` is no statement", "a file is a list of (declare-...) and (assert ...)")
            return None
        made = self.table.get(head)
        if made is not None:
            return made(head, frame[1:])
        raise BadLine(f"unknown operator `{head[:40]}`", "known: and or not, <= >= < > = == !=, + - * /")

    # Values

    def linear(self, value: Value) -> Linear:
        if isinstance(value, Linear):
            return value
        if not isinstance(value, str):
            raise BadLine("a number or a variable was expected", "compare arithmetic expressions, connect comparisons")
        code = self.codes.get(value)
        if code is not None:
            return Linear({code: ONE}, ZERO)
        known = self.numbers.get(value)
        if known is None:
            known = number(value)
            if known is None:
                return Linear({self.resolve(value): ONE}, ZERO)
            self.numbers[value] = known
        return Linear({}, known)

    def resolve(self, token: str) -> int:
        """The code of `X[0,3]`; remembered, so that each element is resolved once."""
        stem, bracket, inner = token.partition("[")
        decl = self.tensors.get(stem)
        if decl is None:
            if stem.lower().lstrip("+-") in ("nan", "inf", "infinity"):
                raise BadLine(f"`{stem}` is no bound", "give every input a finite lower and upper bound")
            if re.fullmatch(r"[+-]?\d+,\d+", token, re.ASCII):
                raise BadLine(f"`{token[:40]}` is no number", f"write a point for the comma: {token.replace(',', '.')[:40]}")
            raise BadLine(f"`{token[:40]}` is neither a number nor a declared variable", "declare it before its first use")
        if decl.role == "hidden":
            raise BadLine(f"a constraint on the hidden node {stem}", "only inputs and outputs can be constrained")
        shape = decl.tensor.shape
        if bracket and SHAPE.fullmatch(bracket + inner) is None:
            raise BadLine(f"`{token[:40]}` has no readable index", "write X[0,3]")
        index = [int(k) for k in re.findall(r"\d+", inner)]
        if len(index) != len(shape) or (bracket and not shape):
            raise BadLine(f"`{token[:40]}` has {len(index)} indices, {stem} has {len(shape)} axes", "index every axis, from 0")
        flat = 0
        for k, size in zip(index, shape, strict=True):
            if k >= size:
                raise BadLine(f"`{token[:40]}` lies outside the shape {list(shape)} of {stem}", "indices count from 0")
            flat = flat * size + k
        flat += decl.first
        code = self.codes[token] = flat if decl.role == "input" else ~flat
        return code

    def formula(self, value: Value) -> Formula:
        if isinstance(value, (Leaf, Junction)):
            return value
        if value in ("true", "false"):
            return Junction("and" if value == "true" else "or")
        raise BadLine("a comparison was expected", "connect comparisons with and, or, not")

    # Operators

    def add(self, op: str, args: list[Value]) -> Linear:
        if not args:
            raise BadLine(f"`{op}` without operands", "give at least one")
        made = self.linear(args[0])
        if op == "-" and len(args) == 1:
            return made.negate()
        for arg in args[1:]:
            other = self.linear(arg)
            if op == "+" and len(other.terms) > len(made.terms):
                made, other = other, made  # the small one into the large one: a deep sum stays cheap
            made.accumulate(other, op == "+")
        return made

    def multiply(self, op: str, args: list[Value]) -> Linear:
        if not args:
            raise BadLine("`*` without operands", "give at least one")
        made = self.linear(args[0])
        for arg in args[1:]:
            other = self.linear(arg)
            if made.terms and other.terms:
                raise BadLine("a product of two variables is not linear", "only products with a constant are supported")
            if other.terms:
                made, other = other, made
            made = made.scale(other.const)
        return made

    def divide(self, op: str, args: list[Value]) -> Linear:
        if len(args) < 2:
            raise BadLine("`/` needs two operands", "write (/ 1 3)")
        made = self.linear(args[0])
        for arg in args[1:]:
            other = self.linear(arg)
            if other.terms:
                raise BadLine("a division by a variable is not linear", "only constants may divide")
            if not other.const:
                raise BadLine("a division by zero", "correct the constant")
            made = made.scale(1 / other.const)
        return made

    def compare(self, op: str, args: list[Value]) -> Formula:
        if len(args) < 2 or (len(args) > 2 and op in ("!=", "distinct")):
            raise BadLine(f"`{op}` with {len(args)} operands", "compare two expressions")
        a, b = args[:2]
        if len(args) == 2 and isinstance(a, str) and isinstance(b, str):
            known = self.compared.get((op, a, b))
            if known is None:
                known = self.compared[op, a, b] = self.relation(op, a, b)
            return known
        made = [self.relation(op, a, b) for a, b in pairwise(args)]
        return made[0] if len(made) == 1 else Junction("and", made)

    def relation(self, op: str, a: Value, b: Value) -> Formula:
        if op in (">=", ">"):
            a, b = b, a
        return compare_linear(op, self.linear(a), self.linear(b))

    def connect(self, op: str, args: list[Value]) -> Formula:
        if op == "not" and len(args) != 1:
            raise BadLine(f"`not` with {len(args)} operands", "negate one formula")
        if not args:
            raise BadLine(f"`{op}` without operands", "give at least one")
        kids = [self.formula(a) for a in args]
        return kids[0] if len(kids) == 1 and op != "not" else Junction(op, kids)

    # Statements

    def assertion(self, op: str, args: list[Value]) -> None:
        if len(args) != 1:
            raise BadLine(f"assert with {len(args)} formulas", "one formula an assert; join several with and")
        self.doc.asserts.append(self.formula(args[0]))

    def declare_version(self, op: str, args: list[Value]) -> None:
        found = re.fullmatch(r"<([12])\.\d{1,3}>", args[0]) if len(args) == 1 and isinstance(args[0], str) else None
        if found is None or self.statements > 1:
            raise BadLine("this VNN-LIB version line is not understood", "begin the file with (vnnlib-version <2.0>), or leave it out")
        self.doc.version = f"{found[1]}.0"

    def declare_legacy(self, op: str, args: list[Value]) -> None:
        shape = ["()", "Real"] if op == "declare-fun" else ["Real"]
        if self.doc.networks or len(args) != 1 + len(shape) or args[1:] != shape:
            raise BadLine(f"this {op} is not understood", "write (declare-const X_0 Real), or declare one network as VNN-LIB 2.0 does")
        name = args[0] if isinstance(args[0], str) else ""
        found = LEGACY.fullmatch(name)
        if found is None:
            raise BadLine(f"variable `{name[:40]}` is neither an input X_i nor an output Y_i", "rename it")
        if name in self.codes:
            raise BadLine(f"{name} is declared twice", "remove one declaration")
        self.codes[name] = int(found[2]) if found[1] == "X" else ~int(found[2])

    def declare_tensor(self, op: str, args: list[Value]) -> Decl:
        role = op.removeprefix("declare-")
        if role == "hidden" and len(args) == 4:
            args = args[:3]
        parts = [a for a in args if isinstance(a, str)]
        if len(parts) == 2 and parts[1].endswith("]"):  # float32[1,5], written together
            dtype, bracket, inner = parts[1].partition("[")
            parts[1:] = [dtype, bracket + inner]
        if len(parts) != 3 or len(args) > 3 or not SHAPE.fullmatch(parts[2]):
            raise BadLine(f"this {op} is not understood", f"write ({op} X float32 [1,5])")
        name, dtype, text = parts
        if not re.fullmatch(r"[A-Za-z]\w*", name, re.ASCII):
            raise BadLine(f"`{name[:40]}` is no name for a tensor", "use letters, digits and _")
        if dtype not in REALS:
            raise BadLine(f"{name} has the element type `{dtype[:40]}`", f"supported: {', '.join(sorted(REALS))}")
        shape = tuple(int(k) for k in re.findall(r"\d+", text))
        if 0 in shape or prod(shape) > MAX_ELEMENTS:
            raise BadLine(f"{name} has the shape {list(shape)}", f"between 1 and {MAX_ELEMENTS} elements are supported")
        return Decl(role, Tensor(name, dtype, shape))

    def declare_like(self, op: str, args: list[Value]) -> tuple[str, str]:
        known = {n.name: n for n in self.doc.networks}
        other = known.get(args[0]) if len(args) == 1 and isinstance(args[0], str) else None
        if other is None or other.like[0]:
            raise BadLine(f"this {op} is not understood", "name a network that is declared before, and is like no other itself")
        return op, other.name

    def declare_network(self, op: str, args: list[Value]) -> None:
        doc, name = self.doc, args[0] if args else None
        if len(args) > 1 and isinstance(args[1], tuple):
            like, args = args[1], [name, *args[2:]]
        else:
            like = "", ""
        ends = [a for a in args if isinstance(a, Decl)]
        if not isinstance(name, str) or len(ends) != len(args) - 1 or (self.codes and not doc.networks):
            raise BadLine("this declare-network is not understood", DECLARE)
        tensors = list[Tensor]()
        for role in ("input", "output"):
            found = [d.tensor for d in ends if d.role == role]
            if len(found) != 1:
                raise BadLine(f"a network of {len(found)} {role}s", "polytriton verifies networks of one input and one output")
            tensors += found
        made = Declared(name, tensors[0], tensors[1], like)
        if any(n.name == name for n in doc.networks):
            raise BadLine(f"two networks are called {name[:40]}", "give every network its own name")
        self.check_like(made)
        for d in ends:
            d.first = doc.n_in if d.role == "input" else doc.n_out
            if self.tensors.setdefault(d.tensor.name, d) is not d:
                raise BadLine("two tensors of one name", "give every tensor its own name")
        doc.n_in, doc.n_out = doc.n_in + prod(made.input.shape), doc.n_out + prod(made.output.shape)
        doc.networks.append(made)
        first = doc.networks[0]
        doc.version, doc.network, doc.input, doc.output = "2.0", first.name, first.input, first.output

    def check_like(self, made: Declared) -> None:
        """The standard has networks that are alike declare the same shapes, and equal ones the same types."""
        kind, name = made.like
        for other in (n for n in self.doc.networks if n.name == name):
            for own, its in ((made.input, other.input), (made.output, other.output)):
                if own.shape != its.shape or (kind == EQUAL and own.dtype != its.dtype):
                    raise BadLine(
                        f"{made.name[:40]} is {kind} {name[:40]}, but {own.name[:40]} is declared otherwise than {its.name[:40]}",
                        "declare the same shapes, and for equal-to the same element types",
                    )

    def finish(self) -> Document:
        doc = self.doc
        if doc.networks:
            return doc
        inputs, outputs = {k for k in self.codes.values() if k >= 0}, {~k for k in self.codes.values() if k < 0}
        for letter, found in (("X", inputs), ("Y", outputs)):
            gap = next((i for i in range(len(found)) if i not in found), None)
            if gap is not None or not found:
                raise BadLine(f"{letter}_{gap or 0} is not declared", "declare every input X_0, X_1, ... and every output Y_0, Y_1, ...")
        doc.version, doc.n_in, doc.n_out = "1.0", len(inputs), len(outputs)
        return doc
