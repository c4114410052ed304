"""Constant folding over a syntax tree that stays as it is: each expression is asked what it becomes, and its text follows.

An expression over known names becomes a literal; `x * 1`, `x + 0`, `x - 0`, `x // 1`, a decided conditional expression and a
decided part of `and`, `or` become the operand that is left; anything else keeps its text around its rewritten parts."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from polytriton.kernels.partial.layout import NEWLINE_IN_STRING
from polytriton.kernels.partial.source import KernelSource, SpecialiseError, calls_in, expression_text, names_in, subexpressions

UNKNOWN: Any = type("Unknown", (), {"__repr__": lambda self: "UNKNOWN"})()
DTYPES = {f"{kind}{bits}": bits for kind in ("int", "uint") for bits in (8, 16, 32, 64)}
DTYPES |= {"int1": 1, "float16": 16, "bfloat16": 16, "float32": 32, "float64": 64, "float8e4nv": 8, "float8e5": 8}


@dataclass(frozen=True)
class Bare:
    """A value written as it stands, such as the type `tl.float64`."""

    text: str


@dataclass(frozen=True)
class Literal:
    value: Any
    text: str


_BINARY: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod, ast.Pow: operator.pow, ast.LShift: operator.lshift, ast.RShift: operator.rshift, ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_UNARY: dict[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.inv, ast.Not: operator.not_,
}  # fmt: skip
_COMPARE: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Is: operator.is_, ast.IsNot: operator.is_not, ast.In: lambda x, box: x in box, ast.NotIn: lambda x, box: x not in box,
}  # fmt: skip
_CALLS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "abs": abs, "int": int, "float": float, "bool": bool, "len": len,
    "tl.cdiv": lambda x, y: (x + y - 1) // y, "triton.cdiv": lambda x, y: (x + y - 1) // y,
    "triton.next_power_of_2": lambda n: 1 << (n - 1).bit_length(), "tl.constexpr": lambda x: x,
}  # fmt: skip
_NEUTRAL: dict[type, tuple[int, bool]] = {  # the neutral element, and whether it may stand on the left too
    ast.Mult: (1, True), ast.Add: (0, True), ast.Sub: (0, False), ast.FloorDiv: (1, False),
}  # fmt: skip
_ATOMS = (ast.Name, ast.Constant, ast.Call, ast.Attribute, ast.Subscript, ast.List, ast.Tuple, ast.JoinedStr)


def literal_text(value: Any) -> str:
    """Python text of a constant, with the quotes people use."""
    if isinstance(value, Bare):
        return value.text
    if isinstance(value, str):
        text = repr(value)
        return text if '"' in text else f'"{text[1:-1]}"'
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, tuple):
        return f"({', '.join(map(literal_text, value))}{',' * (len(value) == 1)})"
    return repr(value)


class Callee(Protocol):
    """A helper specialised for one call: its new name is known once all are."""

    name: str


@dataclass
class Folding:
    """What expressions of one function become.

    `known` holds the value of every constant name; `named` those of them that keep their name where they are floats: `64 * U64` says
    more than 7.1e-15. `pure_call` tells calls without side effect, `callee` the specialised helper of a call and the arguments
    left to it, `assigned` the values a local name takes."""

    source: KernelSource
    known: dict[str, Any]
    pure_call: Callable[[ast.Call], bool]
    callee: Callable[[ast.Call], tuple[Callee, list[ast.expr | ast.keyword]] | None]
    named: set[str] = field(default_factory=set)
    assigned: Mapping[str, list[ast.expr]] = field(default_factory=dict)
    _steps: dict[ast.expr, ast.expr | Literal] = field(default_factory=dict)
    _reads: dict[ast.expr, set[str]] = field(default_factory=dict)

    def error(self, node: ast.AST, message: str) -> SpecialiseError:
        return SpecialiseError(f"{self.source.origin}, line {getattr(node, 'lineno', '?')}: {message}")

    def pure(self, node: ast.expr) -> bool:
        return all(map(self.pure_call, calls_in(node)))

    # --- values ---

    def value(self, node: ast.expr) -> Any:
        """The constant an expression stands for, or UNKNOWN; arithmetic that fails is an error with its line."""
        try:
            return self._value(node)
        except (ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
            if isinstance(error, SpecialiseError):
                raise
            what = f"`{ast.unparse(node)}` cannot be computed: {error}; guard it with an `if` over the constants"
            raise self.error(node, what) from error

    def quiet_value(self, node: ast.expr) -> Any:
        """`value` for code that may turn out to be dead: what fails is unknown."""
        try:
            return self.value(node)
        except SpecialiseError:
            return UNKNOWN

    def _value(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return self.known.get(node.id, UNKNOWN) if isinstance(node.ctx, ast.Load) else UNKNOWN
        if isinstance(node, ast.BoolOp):
            return self._bool_op(node)
        if isinstance(node, ast.IfExp):
            test = self.value(node.test)
            return UNKNOWN if test is UNKNOWN else self.value(node.body if test else node.orelse)
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "tl":
                return Bare(f"tl.{node.attr}") if node.attr in DTYPES else UNKNOWN
            if isinstance(base := self.value(node.value), Bare) and node.attr == "primitive_bitwidth":
                return DTYPES[base.text.removeprefix("tl.")]
            return UNKNOWN
        if isinstance(node, ast.Call):
            called = expression_text(node.func)
            if called not in _CALLS or node.keywords or (isinstance(node.func, ast.Name) and called in self.assigned):
                return UNKNOWN
        elif not isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Tuple, ast.Subscript, ast.JoinedStr, ast.FormattedValue)):
            return UNKNOWN
        parts = [self.value(part) for part in (node.args if isinstance(node, ast.Call) else _operands(node))]
        if any(part is UNKNOWN for part in parts):
            return UNKNOWN
        if isinstance(node, ast.BinOp):
            return _BINARY[type(node.op)](*parts) if type(node.op) in _BINARY else UNKNOWN
        if isinstance(node, ast.UnaryOp):
            return _UNARY[type(node.op)](*parts)
        if isinstance(node, ast.Compare):
            return all(_COMPARE[type(op)](left, right) for op, left, right in zip(node.ops, parts, parts[1:], strict=False))
        if isinstance(node, ast.Subscript):
            return parts[0][parts[1]]
        if isinstance(node, ast.FormattedValue):
            return format(*parts) if node.conversion == -1 else UNKNOWN
        if isinstance(node, ast.JoinedStr):
            return "".join(parts)
        return tuple(parts) if isinstance(node, ast.Tuple) else _CALLS[called](*parts)

    def _bool_op(self, node: ast.BoolOp) -> Any:
        absorbing = isinstance(node.op, ast.Or)
        last, complete = None, True
        for part in node.values:
            if (last := self.value(part)) is UNKNOWN:
                complete = False
                if not self.pure(part):
                    return UNKNOWN
            elif bool(last) is absorbing:
                return last
        return last if complete else UNKNOWN

    # --- what an expression becomes ---

    def step(self, node: ast.expr) -> ast.expr | Literal:
        """The literal an expression becomes, the operand that is left of it, or itself."""
        if node not in self._steps:
            self._steps[node] = node  # what a name assigned from itself sees
            self._steps[node] = self._step(node)
        return self._steps[node]

    def resolve(self, node: ast.expr) -> ast.expr | Literal:
        """`step` until nothing changes."""
        result = self.step(node)
        return result if result is node or isinstance(result, Literal) else self.resolve(result)

    def _step(self, node: ast.expr) -> ast.expr | Literal:
        if isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            return node
        if not isinstance(node, (ast.Tuple, ast.List, ast.Slice)):
            names = names_in(node)
            if not names.isdisjoint(self.known):
                value = self.value(node)
                if value is not UNKNOWN and not (isinstance(value, float) and names & self.named):
                    return Literal(value, literal_text(value))
                if isinstance(node, ast.JoinedStr):
                    raise self.error(node, "an f-string may use constants only; build the string from constants alone")
        if isinstance(node, ast.IfExp) and (test := self.value(node.test)) is not UNKNOWN:
            return node.body if test else node.orelse
        if isinstance(node, ast.BoolOp) and len(rest := self.operands_left(node)) == 1:
            return rest[0]
        if isinstance(node, ast.BinOp):
            return self._binary(node)
        return node

    def operands_left(self, node: ast.BoolOp) -> list[ast.expr]:
        """The operands that decide: known ones drop out, as they do in Triton (those that end the operation are folded before)."""
        absorbing = isinstance(node.op, ast.Or)
        values = [(part, self.value(part)) for part in node.values]
        return [part for part, value in values if value is UNKNOWN or bool(value) is absorbing] or node.values

    def _binary(self, node: ast.BinOp) -> ast.expr:
        for kept, other, on_left in ((node.left, node.right, False), (node.right, node.left, True)):
            value = self.value(other)
            if type(value) is int and not self.boolean(kept):
                neutral, either_side = _NEUTRAL.get(type(node.op), (None, False))
                if value == neutral and (either_side or not on_left):
                    return kept
            if type(value) is bool and isinstance(node.op, ast.BitOr if value is False else ast.BitAnd) and self.boolean(kept):
                return kept
        return node

    def boolean(self, node: ast.expr, seen: frozenset[str] = frozenset()) -> bool:
        """Whether an expression is plainly a truth value, so that `& True` says nothing and `* 1` says something."""
        result = self.resolve(node)
        if isinstance(result, Literal):
            return isinstance(result.value, bool)
        if isinstance(result, ast.Constant):
            return isinstance(result.value, bool)
        if isinstance(result, ast.Name) and result.id in self.known:
            return isinstance(self.known[result.id], bool)
        if isinstance(result, ast.Name):
            values = self.assigned.get(result.id, [])
            return result.id not in seen and bool(values) and all(self.boolean(v, seen | {result.id}) for v in values)
        if isinstance(result, ast.BinOp) and isinstance(result.op, (ast.BitAnd, ast.BitOr, ast.BitXor)):
            return self.boolean(result.left, seen) and self.boolean(result.right, seen)
        if isinstance(result, ast.BoolOp):
            return all(self.boolean(part, seen) for part in result.values)
        if isinstance(result, ast.IfExp):
            return self.boolean(result.body, seen) and self.boolean(result.orelse, seen)
        if isinstance(result, ast.Subscript):
            return self.boolean(result.value, seen)
        if isinstance(result, ast.UnaryOp) and isinstance(result.op, ast.Invert):
            return self.boolean(result.operand, seen)
        return isinstance(result, ast.Compare) or (isinstance(result, ast.UnaryOp) and isinstance(result.op, ast.Not))

    def parts(self, node: ast.expr) -> Iterator[ast.expr]:
        """The direct sub-expressions that are left of an expression that stays."""
        if isinstance(node, ast.BoolOp):
            yield from self.operands_left(node)
        elif isinstance(node, ast.Call) and (target := self.callee(node)):
            yield from (left.value if isinstance(left, ast.keyword) else left for left in target[1])
        else:
            yield from subexpressions(node)

    def reads(self, node: ast.expr) -> set[str]:
        """The names an expression reads once it is rewritten."""
        if node not in self._reads:
            self._reads[node] = self._names(self.resolve(node))
        return self._reads[node]

    def _names(self, result: ast.expr | Literal) -> set[str]:
        if isinstance(result, Literal):
            return set()
        if isinstance(result, ast.Name):
            return {result.id} if isinstance(result.ctx, ast.Load) else set()
        if isinstance(result, ast.JoinedStr):
            return set(names_in(result))
        return set().union(*map(self.reads, self.parts(result)))

    # --- text ---

    def text(self, node: ast.expr) -> str:
        """The new text of an expression with the parentheses it stands in, unless they became idle."""
        (start, end), (outer_start, outer_end) = self.source.span(node), self.source.outer(node)
        inner = self._inner(node)
        if start == outer_start:
            return inner
        if self.step(node) is node:
            return self.source.text[outer_start:start] + inner + self.source.text[end:outer_end]
        return inner if self._closed(node) else f"({inner})"

    def free_text(self, node: ast.expr) -> str:
        """`text` where the expression stands alone, as an argument or a right side: parentheses that became idle go too."""
        text = self.text(node)
        if self.step(node) is node or "\n" in text or not (text.startswith("(") and text.endswith(")")):
            return text
        try:
            same = ast.dump(ast.parse(text[1:-1], mode="eval")) == ast.dump(ast.parse(text, mode="eval"))
        except SyntaxError:  # (a) + (b)
            return text
        return text[1:-1] if same else text

    def _closed(self, node: ast.expr) -> bool:
        """Whether the new text of a changed expression needs no parentheses anywhere."""
        result = self.step(node)
        if isinstance(result, Literal):
            return not result.text.startswith("-")
        if self.source.span(result) != self.source.outer(result):
            return True
        return isinstance(result, _ATOMS) if self.step(result) is result else self._closed(result)

    def _inner(self, node: ast.expr) -> str:
        result = self.step(node)
        if isinstance(result, Literal):
            return result.text
        if result is not node:
            return self.text(result)
        if isinstance(node, ast.BoolOp) and len(rest := self.operands_left(node)) < len(node.values):
            return (" and " if isinstance(node.op, ast.And) else " or ").join(map(self.text, rest))
        if isinstance(node, ast.Call) and (target := self.callee(node)):
            given = (f"{a.arg}={self.free_text(a.value)}" if isinstance(a, ast.keyword) else self.free_text(a) for a in target[1])
            return f"{target[0].name}({', '.join(given)})"
        start, end = self.source.span(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
            right = self.resolve(node.right)
            if isinstance(right, Literal) and right.text.startswith("-"):  # x + -3 reads x - 3
                sign = "-" if isinstance(node.op, ast.Add) else "+"
                return f"{self.text(node.left)} {sign} {right.text[1:]}"
        if isinstance(node, (ast.Constant, ast.JoinedStr)):
            return self.source.text[start:end].replace("\n", NEWLINE_IN_STRING)
        return self.source.substitute(start, end, subexpressions(node), lambda child: self._child(node, child))

    def _child(self, node: ast.expr, child: ast.expr) -> str:
        """The text of a sub-expression; a number where Python binds tighter than it reads, as in `-1 ** n` or `8.to(T)`, in parentheses."""
        text = self.free_text(child) if isinstance(node, ast.Call) and child is not node.func else self.text(child)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and child is node.left:
            return f"({text})" if text.startswith("-") and isinstance(self.resolve(child), Literal) else text
        loose = isinstance(node, (ast.Attribute, ast.Subscript)) and child is node.value and isinstance(self.resolve(child), Literal)
        return f"({text})" if loose and (text.isdigit() or text.startswith("-")) else text


def _operands(node: ast.expr) -> Iterator[ast.expr]:
    """Operands in order; of a formatted value its specification too, where it has one."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            yield child
