"""The modules a kernel is taken from: which helper functions and module constants it reaches, and which calls have effects."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from polytriton.kernels.partial.source import KernelSource, SpecialiseError, calls_in, expression_text, parse_source

BUILTINS = {"range", "min", "max", "abs", "int", "float", "bool", "len", "print", "isinstance", "getattr", "hasattr", "tuple", "list"}
STANDARD = {"triton", "tl"}
_EFFECTS = {"print", "device_print", "static_print", "device_assert", "static_assert", "assume", "debug_barrier", "scatter", "inline_asm"}


@dataclass(frozen=True)
class Definition:
    """A top-level helper function, module constant or import of something from Triton."""

    module: str
    name: str
    node: ast.stmt


@dataclass
class Module:
    name: str
    source: KernelSource
    own: dict[str, Definition] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)  # name -> module and the name there

    def __post_init__(self) -> None:
        for node in self.source.tree.body:
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] != "triton" and not node.level:
                self.imported |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
            for name in _defines(node):
                self.own[name] = Definition(self.name, name, node)


def _defines(node: ast.stmt) -> Iterable[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "triton" and not node.level:
        return [alias.asname or alias.name for alias in node.names]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return [node.target.id] if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) else []


class Library:
    """A module with the helper modules it imports from."""

    def __init__(self, source: str, function: str, helpers: Mapping[str, str]) -> None:
        self.main = Module("", parse_source(source, function))
        self._texts = helpers
        self._modules = {"": self.main}
        self._pure: dict[Definition, bool] = {}

    def module(self, name: str, wanted_by: KernelSource | None = None) -> Module:
        if name not in self._modules:
            if name not in self._texts:
                assert wanted_by is not None
                raise SpecialiseError(f"{wanted_by.origin}: imports from {name}, whose source was not given; pass it in `helpers`")
            self._modules[name] = Module(name, parse_source(self._texts[name], name))
        return self._modules[name]

    def find(self, name: str, module: Module) -> Definition | None:
        """What a name means at the top level of a module."""
        if name in module.imported:
            origin, there = module.imported[name]
            if there != name:
                raise SpecialiseError(f"{module.source.origin}: `{there} as {name}` cannot be copied; import helpers under their own name")
            found = self.find(name, self.module(origin, module.source))
            if found is None:
                raise SpecialiseError(f"{module.source.origin}: {origin} defines no `{name}`; import what it defines at its top level")
            return found
        return module.own.get(name)

    def constants(self, module: Module) -> dict[str, ast.expr]:
        """The module constants a module sees, with their values, each after those it needs."""
        found: dict[str, ast.expr] = {}
        given = self._modules.keys() | self._texts.keys()
        for name in [n for n, (origin, _) in module.imported.items() if origin in given] + [*module.own]:
            self._add_constant(name, module, found)
        return found

    def _add_constant(self, name: str, module: Module, found: dict[str, ast.expr]) -> None:
        definition = self.find(name, module)
        value = constant_value(definition) if definition and name not in found else None
        if definition is None or value is None:
            return
        for part in ast.walk(value):
            if isinstance(part, ast.Name) and part.id != name:
                self._add_constant(part.id, self._modules[definition.module], found)
        found[name] = value

    @cached_property
    def identifiers(self) -> set[str]:
        """Every name the modules use anywhere."""
        parts = [part for module in self._modules.values() for part in ast.walk(module.source.tree)]
        names = {part.id for part in parts if isinstance(part, ast.Name)} | {part.arg for part in parts if isinstance(part, ast.arg)}
        return names.union(*(module.own.keys() for module in self._modules.values()))

    def definitions(self, names: Mapping[tuple[str, str], int]) -> list[Definition]:
        """Every definition the names (of a module, with a line that reads each) lead to."""
        found: dict[str, Definition] = {}
        for (module, name), line in names.items():
            self._reach(name, self._modules[module], found, line)
        return list(found.values())

    def _reach(self, name: str, module: Module, found: dict[str, Definition], line: int) -> None:
        definition = self.find(name, module)
        where = f"{module.source.origin}, line {line}"
        if definition is None:
            raise SpecialiseError(f"{where}: `{name}` is not defined; pass it as a parameter or import a @triton.jit helper")
        if name in found:
            if found[name] != definition:
                raise SpecialiseError(f"{where}: two different helpers are called `{name}`; rename one of them")
            return
        found[name] = definition
        node, home = definition.node, self._modules[definition.module]
        if isinstance(node, ast.FunctionDef):
            if not any("triton" in expression_text(d) for d in node.decorator_list):
                raise SpecialiseError(f"{where}: `{name}` is a plain function; decorate it with @triton.jit")
            for other, at in free_names(node).items():
                self._reach(other, home, found, at)
        elif (value := constant_value(definition)) is not None:
            for part in ast.walk(value):
                if isinstance(part, ast.Name) and part.id not in STANDARD | BUILTINS:
                    self._reach(part.id, home, found, part.lineno)
        elif not isinstance(node, ast.ImportFrom):
            raise SpecialiseError(f"{where}: Triton cannot read the global `{name}`; write `{name} = tl.constexpr(...)`")

    def verbatim(self, definition: Definition) -> str:
        """A definition as written, with the comments directly above."""
        if isinstance(definition.node, ast.ImportFrom):
            alias = next(a for a in definition.node.names if (a.asname or a.name) == definition.name)
            return f"from {definition.node.module} import {alias.name}{f' as {alias.asname}' if alias.asname else ''}"
        return self._modules[definition.module].source.verbatim(definition.node)

    def order(self, texts: list[tuple[Definition, str]]) -> list[tuple[Definition, str]]:
        """Texts by their place in the library: imported modules before those that import them, lines as they come."""
        order: list[str] = []
        self._after_imports(self.main, order)
        return sorted(texts, key=lambda pair: (order.index(pair[0].module), pair[0].node.lineno))

    def _after_imports(self, module: Module, order: list[str], under_way: frozenset[str] = frozenset()) -> None:
        for name in dict.fromkeys(origin for origin, _ in module.imported.values()):
            if name in self._modules and name not in order and name not in under_way:
                self._after_imports(self._modules[name], order, under_way | {module.name})
        order.append(module.name)

    def pure_call(self, call: ast.Call, module: Module | None = None) -> bool:
        """Whether a call does nothing but compute; loads count as computing."""
        name = call.func.attr if isinstance(call.func, ast.Attribute) else call.func.id if isinstance(call.func, ast.Name) else "?"
        if name == "inline_asm_elementwise":
            given = [k.value for k in call.keywords if k.arg == "is_pure"] + call.args[4:5]
            return bool(given) and isinstance(given[0], ast.Constant) and given[0].value is True
        if name in _EFFECTS or "store" in name or name.startswith("atomic") or name == "?":
            return False
        if isinstance(call.func, ast.Attribute) or name in BUILTINS:
            return True
        definition = self.find(name, module or self.main)
        return definition is not None and self._pure_function(definition)

    def _pure_function(self, definition: Definition) -> bool:
        if definition not in self._pure:
            self._pure[definition] = True  # a recursive call adds nothing
            home = self._modules[definition.module]
            plain = isinstance(definition.node, ast.FunctionDef)
            self._pure[definition] = plain and all(self.pure_call(c, home) for c in calls_in(definition.node))
        return self._pure[definition]


def constant_value(definition: Definition) -> ast.expr | None:
    """The value of `X = tl.constexpr(value)`; Triton takes no other global."""
    node = definition.node
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and is_constexpr(node.value.func):
        return node.value.args[0] if len(node.value.args) == 1 else None
    return None


def is_constexpr(annotation: ast.expr | None) -> bool:
    text = "" if annotation is None else annotation.value if isinstance(annotation, ast.Constant) else expression_text(annotation)
    return str(text).split(".")[-1] == "constexpr"


def free_names(function: ast.FunctionDef) -> dict[str, int]:
    """The names a function takes from its module, with the first line that reads each."""
    names = [part for part in ast.walk(function) if isinstance(part, ast.Name)]
    bound = {arg.arg for arg in [*function.args.args, *function.args.kwonlyargs]} | {n.id for n in names if isinstance(n.ctx, ast.Store)}
    free: dict[str, int] = {}
    for part in names:
        if part.id not in bound | BUILTINS | STANDARD:
            free.setdefault(part.id, part.lineno)
    return free


def file(texts: list[tuple[Definition, str]]) -> str:
    """A file of these texts: imports, then constants, then functions."""
    imports = {text for definition, text in texts if isinstance(definition.node, ast.ImportFrom)}
    constants = [text for definition, text in texts if not isinstance(definition.node, (ast.ImportFrom, ast.FunctionDef))]
    functions = [text for definition, text in texts if isinstance(definition.node, ast.FunctionDef)]
    parts = ["\n".join(["import triton", "import triton.language as tl", *sorted(imports)])]
    parts += ["\n" + "\n".join(constants)] * bool(constants) + [f"\n\n{text}" for text in functions]
    return "\n".join(parts) + "\n"
