"""What a kernel reads and writes, told by the source of its family under its constants: branches that these decide are taken or left."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import SimpleNamespace

from polytriton.ir.launches import Kernel
from polytriton.kernels.catalogue import place
from polytriton.kernels.closure import read_closure, read_function

READ, WRITTEN = "read", "written"
_OPEN = object()  # what constants do not decide


@cache
def accesses(kernel: Kernel) -> dict[str, frozenset[str]]:
    """Of every pointer of a kernel, whether it is read or written, also in the functions it calls.

    A pointer that is used in any other way than as the address of a load or store or as an argument counts as both.
    """
    module, name = place(kernel.family)
    parsed = [ast.parse(d.text).body[0] for d in read_closure(module, name)]
    taken, told = read_function(module, name), dict[str, object](kernel.constants)
    given = {"c": SimpleNamespace(**told)} if taken.record else told
    found = _accesses({f.name: f for f in parsed if isinstance(f, ast.FunctionDef)}, name, given, taken.flat)
    return {p: frozenset(kinds) for p, kinds in found.items() if p in kernel.parameters or kinds}


def _accesses(
    functions: Mapping[str, ast.FunctionDef], name: str, told: dict[str, object], pointers: Iterable[str]
) -> dict[str, set[str]]:
    node = functions[name]
    found: dict[str, set[str]] = {p: set() for p in pointers}
    parts = list(_taken(node.body, told))
    placed: set[int] = set()
    for call in (c for part in parts for c in ast.walk(part) if isinstance(c, ast.Call)):
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("load", "store"):
            for used in (n for n in ast.walk(call.args[0]) if isinstance(n, ast.Name) and n.id.endswith("_ptr")):
                found[used.id].add(READ if call.func.attr == "load" else WRITTEN)
                placed.add(id(used))
        elif isinstance(call.func, ast.Name) and call.func.id in functions:
            given = dict(zip((a.arg for a in functions[call.func.id].args.args), call.args, strict=True))
            known = {a.arg: _value(given[a.arg], told) for a in functions[call.func.id].args.args if a.annotation is not None}
            others = [p for p in given if p not in known]
            known |= {p: _is_given(given[p]) for p in others if p.endswith("_ptr")}
            inner = _accesses(functions, call.func.id, known, others)
            for parameter, argument in given.items():
                if isinstance(argument, ast.Name) and argument.id in found and parameter in inner:
                    found[argument.id] |= inner[parameter]
                    placed.add(id(argument))
    for used in (n for part in parts for n in ast.walk(part) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)):
        if used.id.endswith("_ptr") and used.id in found and id(used) not in placed:
            found[used.id] |= {READ, WRITTEN}
    return found


def _taken(body: list[ast.stmt], told: dict[str, object]) -> Iterator[ast.AST]:
    """The expressions and plain statements that may be reached."""
    for statement in body:
        if isinstance(statement, ast.If):
            way = _value(statement.test, told)
            if way is _OPEN:
                yield statement.test
            for taken, arm in ((True, statement.body), (False, statement.orelse)):
                if way is _OPEN or bool(way) == taken:
                    yield from _taken(arm, told)
        elif isinstance(statement, ast.For):
            yield statement.iter
            yield from _taken(statement.body, told)
        else:
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
                told[statement.target.id] = _value(statement.value, told)
            yield statement


def _is_given(argument: ast.expr) -> object:
    """Of a pointer all that a function may ask: None where it is None."""
    return None if isinstance(argument, ast.Constant) else "a pointer"


def _value(expression: ast.expr, told: Mapping[str, object]) -> object:
    """What the expression is, if constants decide it; so may one part of an `and` or `or`."""
    if isinstance(expression, ast.BoolOp):
        parts = [_value(part, told) for part in expression.values]
        decides = isinstance(expression.op, ast.Or)
        known = [bool(part) for part in parts if part is not _OPEN]
        return decides if decides in known else _OPEN if len(known) < len(parts) else not decides
    names = {n.id for n in ast.walk(expression) if isinstance(n, ast.Name)} - {"min", "max"}
    if any(told.get(name, _OPEN) is _OPEN for name in names):
        return _OPEN
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), "<constants>", "eval")
    return eval(code, {"__builtins__": {"min": min, "max": max}}, dict(told))  # the library's own text
