"""A library kernel and its constants in, the short readable kernel of one network out: a partial evaluator on source text.

Constants are substituted and folded, branches they decide are taken or dropped, assignments nobody reads vanish, and the run-time
parameters nobody reads leave the signature; helpers called with constants are specialised the same way. Comments and docstrings
survive. Nothing here imports Triton."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from polytriton.kernels.partial.folding import Bare, literal_text
from polytriton.kernels.partial.function import Function, refusal
from polytriton.kernels.partial.library import BUILTINS, STANDARD, Definition, Library, file, is_constexpr
from polytriton.kernels.partial.source import SpecialiseError
from polytriton.kernels.partial.writing import write

__all__ = ["Constant", "SpecialiseError", "Specialised", "specialise"]

Constant = int | float | bool | str | None


@dataclass(frozen=True)
class Specialised:
    """A complete file without its header: imports, helpers, the kernel; and the kernel's run-time parameters in order."""

    text: str
    parameters: tuple[str, ...]


def specialise(
    source: str, function: str, constants: Mapping[str, Constant], name: str, *, helpers: Mapping[str, str] | None = None
) -> Specialised:
    """The kernel `function` of the library module `source` for given values of all its tl.constexpr parameters, renamed to `name`.

    `helpers` maps the modules `source` imports helper functions from to their text. A string that starts with `tl.` stands for that
    Triton type."""
    library = Library(source, function, helpers or {})
    found = library.main.own.get(function)
    if found is None or not isinstance(found.node, ast.FunctionDef):
        raise SpecialiseError(f"{function}: the source defines no such function; name a kernel at its top level")
    if refused := refusal(found, library):
        raise refused
    _check_constants(found.node, constants)
    known = {key: Bare(value) if isinstance(value, str) and value.startswith("tl.") else value for key, value in constants.items()}
    return _Program(library).build(found, known, name)


def _check_constants(node: ast.FunctionDef, constants: Mapping[str, Constant]) -> None:
    where = f"{node.name}, line {node.lineno}"
    constexprs = {a.arg for a in node.args.args if is_constexpr(a.annotation)}
    if odd := sorted(constexprs ^ constants.keys()):
        kinds = ", ".join(f"{name} ({'missing' if name in constexprs else 'not a tl.constexpr parameter'})" for name in odd)
        raise SpecialiseError(f"{where}: constants do not match: {kinds}; give each tl.constexpr parameter one value")
    for name, value in constants.items():
        if type(value) not in (int, float, bool, str, type(None)):
            raise SpecialiseError(f"{where}: {name} is a {type(value).__name__}; give an int, float, bool, str or None")


class _Program:
    """A kernel with the helpers it needs, each once for every set of constants it is called with."""

    def __init__(self, library: Library) -> None:
        self.library = library
        self.found: dict[tuple[Definition, str], Function | None] = {}

    def variant(self, definition: Definition, constants: Mapping[str, Any]) -> Function | None:
        """The helper under these constants; None where it cannot be specialised because it calls itself."""
        key = (definition, literal_text(tuple(constants.values())))
        if key not in self.found:
            self.found[key] = None
            self.found[key] = Function(self, self.library, definition, constants)
        return self.found[key]

    def build(self, definition: Definition, constants: Mapping[str, Any], name: str) -> Specialised:
        kernel = Function(self, self.library, definition, constants)
        functions = [kernel]
        names: dict[tuple[str, str], int] = {}
        for function in functions:  # grows as it goes
            lines, called = function.used()
            names |= {(function.module.name, n): line for n, line in lines.items()}
            functions += [f for f in called if f not in functions]
        definitions = self.library.definitions(names)
        taken = {d.name for d in definitions} | STANDARD | BUILTINS
        for function in functions[1:]:
            function.name = self._fresh(function.name, taken)
            taken.add(function.name)
        if not name.isidentifier() or name in taken | set(kernel.parameters) | kernel.assigned.keys():
            raise SpecialiseError(f"{kernel.source.origin}: the new name `{name}` is no identifier or is taken; choose another")
        kernel.name = name
        written = {f: write(f) for f in functions}
        helpers = [(d, self.library.verbatim(d)) for d in definitions] + [(f.definition, written[f]) for f in functions[1:]]
        return Specialised(file([*self.library.order(helpers), (definition, written[kernel])]), kernel.parameters)

    def _fresh(self, name: str, taken: set[str]) -> str:
        """The name itself, or with the first number that makes it one of its own."""
        if name not in taken:
            return name
        return next(n for k in count(2) if (n := f"{name}_{k}") not in taken and n not in self.library.identifiers)
