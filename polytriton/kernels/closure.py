"""What a kernel family is made of: its function, and whatever of the library that calls or reads, found in the sources.

Read as text and syntax: nothing here imports Triton, nor the modules that it looks into.
"""

from __future__ import annotations

import ast
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

_STRING = r'"""(?:[^"]|"(?!""))*"""|"(?:[^"\\\n]|\\.)*"|' + r"'(?:[^'\\\n]|\\.)*'"
_SAID, _EMPTY = re.compile(rf"({_STRING})|[ \t]*#[^\n]*"), re.compile(r"\n\s*\n")


class Definition(NamedTuple):
    """A function, constant or class at the top level of a module. `code`: its text without what it says to people."""

    module: str
    name: str
    text: str
    code: str
    names: frozenset[str]  # that it reads
    fields: tuple[str, ...] = ()  # that a class adds to its bases'

    @property
    def is_constant(self) -> bool:
        return self.name.isupper()


class Function(NamedTuple):
    """What a function takes: pointers, some in tuples that its first lines take apart, then constants.

    `record`: the class whose fields the constants are, called as the function is; "" where they are parameters of their own.
    """

    pointers: tuple[str | tuple[str, ...], ...]
    constants: tuple[str, ...]
    record: str = ""

    @property
    def flat(self) -> tuple[str, ...]:
        """Every pointer, in the order in which the machine code takes them."""
        return tuple(name for p in self.pointers for name in (p if isinstance(p, tuple) else (p,)))


class Module(NamedTuple):
    """`imported`: from which module a name is."""

    definitions: dict[str, Definition]
    functions: dict[str, ast.FunctionDef]
    imported: dict[str, str]


@cache
def read_module(module: str) -> Module:
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        raise ValueError(f"there is no module {module}")
    source = Path(spec.origin).read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    made = Module({}, {}, {})
    for node in ast.parse(source).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            made.imported.update({alias.asname or alias.name: node.module for alias in node.names})
            continue
        if isinstance(node, ast.FunctionDef):
            name, made.functions[node.name] = node.name, node
        elif isinstance(node, ast.ClassDef):
            name = node.name
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
        else:
            continue
        begin = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))])
        said = (0, 0) if isinstance(node, ast.Assign) else _docstring(node)
        fields = tuple(s.target.id for s in getattr(node, "body", ()) if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name))
        read = frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name))
        text = "".join(lines[begin - 1 : node.end_lineno])
        code = plain("".join(line for k, line in enumerate(lines[begin - 1 : node.end_lineno], begin) if not said[0] <= k <= said[1]))
        made.definitions[name] = Definition(module, name, text, code, read, fields if isinstance(node, ast.ClassDef) else ())
    return made


@cache
def read_function(module: str, name: str) -> Function:
    """What the function takes. ValueError where the module has none of that name."""
    held = read_module(module)
    if name not in held.functions:
        raise ValueError(f"{module} has no function {name}")
    node, record = held.functions[name], "".join(map(str.capitalize, name.split("_")))
    parts = {
        s.value.id: tuple(n.id for n in s.targets[0].elts if isinstance(n, ast.Name))
        for s in node.body
        if isinstance(s, ast.Assign) and isinstance(s.value, ast.Name) and isinstance(s.targets[0], ast.Tuple)
    }
    pointers = tuple(parts.get(a.arg, a.arg) for a in node.args.args if not _is_constant(a))
    if record not in held.definitions:
        return Function(pointers, tuple(a.arg for a in node.args.args if _is_constant(a)))
    return Function(pointers, tuple(dict.fromkeys(f for d in read_closure(module, record) for f in d.fields)), record)


def _is_constant(parameter: ast.arg) -> bool:
    return parameter.annotation is not None and ast.unparse(parameter.annotation) == "tl.constexpr"


def _docstring(node: ast.FunctionDef | ast.ClassDef) -> tuple[int, int]:
    """The first and last line of a docstring; (0, 0) for none."""
    first = node.body[0]
    said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    return (first.lineno, first.end_lineno or 0) if said else (0, 0)


@cache
def read_closure(module: str, function: str) -> tuple[Definition, ...]:
    """What the function needs of the library and then itself, each behind what it needs."""
    found: dict[tuple[str, str], Definition] = {}

    def take(where: str, name: str) -> None:
        held = read_module(where)
        if name in held.imported:
            if held.imported[name].partition(".")[0] not in ("triton", "dataclasses"):
                take(held.imported[name], name)
            return
        definition = held.definitions.get(name)
        if definition is None or (where, name) in found:
            return
        for read in sorted(definition.names - {name}):
            take(where, read)
        found[where, name] = definition

    take(module, function)
    return tuple(found.values())


def plain(text: str) -> str:
    """Python code without comments and empty lines."""
    return _EMPTY.sub("\n", _SAID.sub(lambda found: found[1] or "", text)).strip()


@cache
def closure_digest(module: str, function: str) -> str:
    """Of all that the function's machine code depends on besides its constants and its pointers' types."""
    return hashlib.sha256("\n".join(d.code for d in read_closure(module, function)).encode()).hexdigest()
