"""What one function becomes under its constants: which names are known, which arms of its `if`s run, which statements matter."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

from polytriton.kernels.partial.folding import UNKNOWN, Folding
from polytriton.kernels.partial.library import BUILTINS, STANDARD, Definition, Library, Module, is_constexpr
from polytriton.kernels.partial.source import SpecialiseError, expression_text, names_in

_REFUSED: dict[type, str] = {
    ast.Lambda: "a lambda is not supported; write a @triton.jit helper",
    ast.FunctionDef: "a nested function is not supported; write it at the top level, decorated with @triton.jit",
    ast.AsyncFunctionDef: "a nested function is not supported; write it at the top level, decorated with @triton.jit",
    ast.ClassDef: "a nested class is not supported; use plain values",
    ast.NamedExpr: "`:=` is not supported; assign on a line of its own",
    ast.ListComp: "a comprehension is not supported; write a loop over tl.static_range",
    ast.GeneratorExp: "a comprehension is not supported; write a loop over tl.static_range",
    ast.SetComp: "a comprehension is not supported; write a loop over tl.static_range",
    ast.DictComp: "a comprehension is not supported; write a loop over tl.static_range",
    ast.Global: "`global` is not supported; pass a parameter",
    ast.Nonlocal: "`nonlocal` is not supported; pass a parameter",
    ast.Import: "an import is not supported; import at the top of the module",
    ast.ImportFrom: "an import is not supported; import at the top of the module",
    ast.Try: "`try` is not supported; Triton has no exceptions",
    ast.Raise: "`raise` is not supported; use tl.static_assert",
    ast.With: "`with` is not supported; call and assign instead",
    ast.Delete: "`del` is not supported; leave the name unused",
    ast.Match: "`match` is not supported; write `if` and `elif`",
    ast.Yield: "`yield` is not supported; store the result",
    ast.Await: "`await` is not supported; call the function",
}


class Variants(Protocol):
    """Where specialised helpers are kept, one for each helper and set of constants."""

    def variant(self, definition: Definition, constants: Mapping[str, Any]) -> Function | None: ...


@dataclass(frozen=True)
class Branch:
    """One arm of an `if` chain; `test` is None where it is taken whenever reached. `header` is the offset just after its colon,
    `end` the last line of its body."""

    test: ast.expr | None
    body: list[ast.stmt]
    header: int
    end: int


class Function:
    """A kernel or helper under its constants."""

    def __init__(self, variants: Variants, library: Library, definition: Definition, known: Mapping[str, Any]) -> None:
        assert isinstance(definition.node, ast.FunctionDef)
        self.variants, self.library, self.definition, self.node = variants, library, definition, definition.node
        self.name = self.node.name
        self.module = library.module(definition.module)
        self.source = self.module.source
        self.assigned: dict[str, list[ast.expr]] = {}
        self.callees: dict[ast.Call, tuple[Function, list[ast.expr | ast.keyword]] | None] = {}
        self.fold = Folding(self.source, dict(known), self._pure_call, self.callee, set(), self.assigned)
        arguments = {a.arg for a in self.node.args.args}
        for name, expression in library.constants(self.module).items():
            if name not in arguments and (value := self.fold.quiet_value(expression)) is not UNKNOWN:
                self.fold.known[name] = value
                self.fold.named.add(name)
        self._branches: dict[ast.If, list[Branch]] = {}
        self.settled = False
        self._settle(arguments)
        self._branches.clear()
        self.settled = True
        self.needed: set[str] = set()
        self.idle: set[ast.stmt] = set()  # a `return` the function ends with anyway
        self._mark_needed()
        self._drop_last_return(self.node.body)
        self.parameters = tuple(a.arg for a in self.node.args.args if not is_constexpr(a.annotation) and a.arg in self.needed)
        alive = [stmt for stmt in self._walk(self.node.body) if self.alive(stmt)]
        self.pure = all(self.fold.pure(expression) for stmt in alive for expression in self.expressions(stmt))

    def _pure_call(self, call: ast.Call) -> bool:
        if self.library.pure_call(call, self.module):
            return True
        target = self.callee(call) if self.settled else None
        return target is not None and target[0].pure

    # --- what is known ---

    def branches(self, stmt: ast.If, quiet: bool = False) -> list[Branch]:
        """The arms that may run: decided tests are gone, and the last arm has no test where it catches everything left."""
        if stmt not in self._branches or quiet:
            self._branches[stmt] = self._open_branches(stmt, quiet)
        return self._branches[stmt]

    def _open_branches(self, stmt: ast.If, quiet: bool) -> list[Branch]:
        value = self.fold.quiet_value if quiet else self.fold.value
        found: list[Branch] = []
        node = stmt
        while True:
            chained = is_elif(self.module, node.orelse)
            end = self.extent(stmt)
            if node.orelse:
                following = self.source.span(node.orelse[0])[0] if chained else self.source.header_end(node.orelse) - 1
                end = self.source.line_of(following) - 1
            test = value(node.test)
            if test is UNKNOWN or test:
                found.append(Branch(node.test if test is UNKNOWN else None, node.body, self.source.header_end(node.body), end))
            if test is not UNKNOWN and test:
                return found
            if not chained:
                break
            node = node.orelse[0]  # type: ignore[assignment]
        if node.orelse:
            found.append(Branch(None, node.orelse, self.source.header_end(node.orelse), self.extent(stmt)))
        return found

    def extent(self, stmt: ast.stmt) -> int:
        """The last line of a statement; of a compound one with the comments below that are indented as its body is."""
        last = end = stmt.end_lineno or stmt.lineno
        while isinstance(stmt, (ast.If, ast.For, ast.While)) and last < len(self.source.lines):
            line = self.source.lines[last]
            if line.strip() and not (self.source.is_comment(last + 1) and len(line) - len(line.lstrip()) > stmt.col_offset):
                break
            last += 1
            if line.strip():
                end = last
        return end

    def reachable(self, body: list[ast.stmt], quiet: bool = False) -> Iterator[ast.stmt]:
        """The statements of a block up to the first that always returns."""
        for stmt in body:
            yield stmt
            if self._returns(stmt, quiet):
                return

    def _returns(self, stmt: ast.stmt, quiet: bool) -> bool:
        if isinstance(stmt, ast.If):
            arms = self.branches(stmt, quiet)
            return bool(arms) and arms[0].test is None and any(self._returns(s, quiet) for s in arms[0].body)
        return isinstance(stmt, ast.Return)

    def _walk(self, body: list[ast.stmt], quiet: bool = False) -> Iterator[ast.stmt]:
        for stmt in self.reachable(body, quiet):
            yield stmt
            blocks = [stmt.body] if isinstance(stmt, (ast.For, ast.While)) else []
            if isinstance(stmt, ast.If):
                blocks = [arm.body for arm in self.branches(stmt, quiet)]
            for block in blocks:
                yield from self._walk(block, quiet)

    def _settle(self, arguments: set[str]) -> None:
        """Find the local names that are constants: annotated tl.constexpr and assigned once, from a constant.

        Without the annotation Triton makes an int32 or float32 tensor of the value, whose arithmetic is another one."""
        while True:
            values: dict[str, list[ast.expr]] = {}
            fixed: set[str] = set()
            count: Counter[str] = Counter()
            for stmt in self._walk(self.node.body, quiet=True):
                annotated = isinstance(stmt, ast.AnnAssign) and is_constexpr(stmt.annotation)
                for name, value in _assignments(stmt):
                    values.setdefault(name, []).append(value)
                    count[name] += 1
                    if annotated:
                        fixed.add(name)
            new = {}
            for name in sorted(fixed - self.fold.known.keys() - arguments):
                value = self.fold.quiet_value(values[name][0]) if count[name] == 1 else UNKNOWN
                if value is not UNKNOWN:
                    new[name] = value
                    if isinstance(value, float) and names_in(values[name][0]) & self.fold.named:
                        self.fold.named.add(name)
            self.fold.known.update(new)
            if not new:
                self.assigned.update((name, value) for name, value in values.items() if name not in arguments)
                return

    def callee(self, call: ast.Call) -> tuple[Function, list[ast.expr | ast.keyword]] | None:
        """The specialised helper of a call that gives constants for all its tl.constexpr parameters, and the arguments left."""
        if call not in self.callees:
            self.callees[call] = self._callee(call)
        return self.callees[call]

    def _callee(self, call: ast.Call) -> tuple[Function, list[ast.expr | ast.keyword]] | None:
        if not isinstance(call.func, ast.Name) or call.func.id in self.assigned or call.func.id in {a.arg for a in self.node.args.args}:
            return None
        definition = self.library.find(call.func.id, self.module)
        if definition is None or not isinstance(definition.node, ast.FunctionDef):
            return None
        parameters = definition.node.args.args
        constexprs = [a.arg for a in parameters if is_constexpr(a.annotation)]
        starred = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
        if not constexprs or starred or refusal(definition, self.library) or len(call.args) > len(parameters):
            return None
        given: dict[str, ast.expr | ast.keyword] = dict(zip((a.arg for a in parameters), call.args, strict=False))
        given |= {k.arg: k for k in call.keywords if k.arg}
        values = {a.arg: _plain(default) for a, default in zip(parameters[::-1], definition.node.args.defaults[::-1], strict=False)}
        values |= {name: self.fold.value(_expression(given[name])) for name in constexprs if name in given}
        if any(values.get(name, UNKNOWN) is UNKNOWN for name in constexprs):
            return None
        function = self.variants.variant(definition, {name: values[name] for name in constexprs})
        if function is None:
            return None
        idle = [_expression(value) for name, value in given.items() if name not in constexprs and name not in function.parameters]
        return (function, [given[n] for n in function.parameters if n in given]) if all(map(self.fold.pure, idle)) else None

    # --- what matters ---

    def _mark_needed(self) -> None:
        """Grow the set of names that something with an effect reads, directly or through other names."""
        while True:
            read: set[str] = set()
            for stmt in self._walk(self.node.body):
                if self.alive(stmt):
                    read |= self._reads(stmt)
            if read <= self.needed:
                return
            self.needed |= read

    def _reads(self, stmt: ast.stmt) -> set[str]:
        found: set[str] = set().union(*map(self.fold.reads, self.expressions(stmt)))
        return found | ({stmt.target.id} if isinstance(stmt, ast.AugAssign) and isinstance(stmt.target, ast.Name) else set())

    def expressions(self, stmt: ast.stmt) -> list[ast.expr]:
        """The expressions of a statement itself, not of the blocks inside it."""
        if isinstance(stmt, ast.If):
            return [arm.test for arm in self.arms(stmt) if arm.test is not None]
        if isinstance(stmt, ast.AnnAssign):
            return [stmt.value] if stmt.value else []
        return [child for child in ast.iter_child_nodes(stmt) if isinstance(child, ast.expr)]

    def arms(self, stmt: ast.If) -> list[Branch]:
        """The arms of an `if` without those at its end that do nothing."""
        arms = list(self.branches(stmt))
        while arms and (arms[-1].test is None or self.fold.pure(arms[-1].test)) and not any(map(self.alive, self.reachable(arms[-1].body))):
            arms.pop()
        return arms

    def alive(self, stmt: ast.stmt) -> bool:
        """Whether leaving a statement out would change what the function does."""
        if stmt in self.idle or isinstance(stmt, ast.Pass):
            return False
        if isinstance(stmt, ast.If):
            return bool(self.arms(stmt))
        if isinstance(stmt, ast.For):
            return not self.fold.pure(stmt.iter) or any(map(self.alive, self.reachable(stmt.body)))
        if isinstance(stmt, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            names = {name for name, _ in _assignments(stmt)}
            left = self.fold.resolve(stmt.value) if isinstance(stmt, ast.Assign) and isinstance(stmt.targets[0], ast.Name) else None
            if isinstance(left, ast.Name) and names == {left.id}:
                return False  # x = x
            return not names or bool(names & self.needed) or (stmt.value is not None and not self.fold.pure(stmt.value))
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and expression_text(stmt.value.func) == "tl.static_assert":
            return not self._holds(stmt.value)
        if isinstance(stmt, ast.Expr) and isinstance(stmt.value, ast.Call) and (target := self.callee(stmt.value)):
            return not (target[0].pure and self.fold.pure(stmt.value))
        return True

    def _holds(self, call: ast.Call) -> bool:
        """Whether an assertion holds already; one that fails is an error here and now."""
        test = self.fold.value(call.args[0])
        if test is UNKNOWN:
            return False
        if not test:
            message = self.fold.value(call.args[1]) if len(call.args) > 1 else ast.unparse(call.args[0])
            raise self.fold.error(call, f"tl.static_assert fails: {message}; choose constants that satisfy it")
        return True

    def _drop_last_return(self, body: list[ast.stmt]) -> None:
        last = [stmt for stmt in self.reachable(body) if self.alive(stmt)][-1:]
        if last and isinstance(last[0], ast.Return) and last[0].value is None:
            self.idle.add(last[0])
        if last and isinstance(last[0], ast.If) and (arms := self.branches(last[0]))[0].test is None:
            self._drop_last_return(arms[0].body)

    # --- what it uses ---

    def used(self) -> tuple[dict[str, int], list[Function]]:
        """The names it takes from its module, with the line that first reads each, and the specialised helpers it calls."""
        bound = {a.arg for a in self.node.args.args} | self.assigned.keys() | STANDARD | BUILTINS
        lines: dict[str, int] = {}
        functions: dict[Function, None] = {}
        for stmt in self._walk(self.node.body):
            if self.alive(stmt):
                for name in self._reads(stmt) - bound:
                    lines.setdefault(name, stmt.lineno)
                for expression in self.expressions(stmt):
                    functions |= dict.fromkeys(self._called(expression))
        return lines, list(functions)

    def _called(self, node: ast.expr) -> Iterator[Function]:
        result = self.fold.resolve(node)
        if not isinstance(result, ast.expr):
            return
        if isinstance(result, ast.Call) and (target := self.callee(result)):
            yield target[0]
        for part in self.fold.parts(result):
            yield from self._called(part)


def is_elif(module: Module, orelse: list[ast.stmt]) -> bool:
    source = module.source
    return len(orelse) == 1 and isinstance(orelse[0], ast.If) and source.text.startswith("elif", source.span(orelse[0])[0])


def refusal(definition: Definition, library: Library) -> SpecialiseError | None:
    """Why a function's text cannot be edited piece by piece, if so."""
    node = definition.node
    module = library.module(definition.module)
    assert isinstance(node, ast.FunctionDef)

    def error(at: ast.stmt | ast.expr, message: str) -> SpecialiseError:
        return SpecialiseError(f"{module.source.origin}, line {at.lineno}: {message}")

    args = node.args
    if [expression_text(d) for d in node.decorator_list] != ["triton.jit"]:
        return error(node, f"`{node.name}` is not decorated with exactly @triton.jit; launch options belong to the caller")
    if args.posonlyargs or args.kwonlyargs or args.vararg or args.kwarg:
        return error(node, "only plain parameters are supported; write no `*`, `/` or `**` in the signature")
    if any(not is_constexpr(a.annotation) for a in args.args[len(args.args) - len(args.defaults) :]):
        return error(node, "a run-time parameter has a default; pass it at every call")
    parameters = {a.arg: is_constexpr(a.annotation) for a in args.args}
    if reserved := sorted(parameters.keys() & (STANDARD | BUILTINS)):
        return error(node, f"the parameter `{reserved[0]}` hides what Triton knows by that name; rename it")
    for part in _judged(node):
        if type(part) in _REFUSED and isinstance(part, (ast.stmt, ast.expr)):
            return error(part, _REFUSED[type(part)])
        if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load):
            taken = part.id in STANDARD | BUILTINS or library.find(part.id, module) is not None
            if parameters.get(part.id, taken):
                return error(part, f"`{part.id}` is a constant or a module's name and is assigned; use another local name")
        if isinstance(part, (ast.For, ast.While)) and part.orelse:
            return error(part, "`else` after a loop is not supported; set a flag")
    shared = _shared_line(module, node.body, module.source.line_of(module.source.header_end(node.body) - 1))
    return error(shared, "two statements share a line; write each on a line of its own") if shared else None


@lru_cache(1024)
def _judged(node: ast.FunctionDef) -> tuple[ast.AST, ...]:
    """The parts of a body that `refusal` looks at, found once for all kernels that reach the function."""

    def matters(part: ast.AST) -> bool:
        named = isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)
        return named or type(part) in _REFUSED or isinstance(part, (ast.For, ast.While))

    return tuple(part for part in ast.walk(ast.Module(node.body, [])) if matters(part))


def _shared_line(module: Module, body: list[ast.stmt], above: int) -> ast.stmt | None:
    for stmt in body:
        if stmt.lineno <= above:
            return stmt
        above = stmt.end_lineno or stmt.lineno
        for inner in (getattr(stmt, "body", []), getattr(stmt, "orelse", [])):
            chained = isinstance(stmt, ast.If) and inner is stmt.orelse and is_elif(module, inner)
            header = above if not inner else 0 if chained else module.source.line_of(module.source.header_end(inner) - 1)
            if found := _shared_line(module, inner, header):
                return found
    return None


def _expression(argument: ast.expr | ast.keyword) -> ast.expr:
    return argument.value if isinstance(argument, ast.keyword) else argument


def _plain(default: ast.expr) -> Any:
    return default.value if isinstance(default, ast.Constant) else UNKNOWN


def _assignments(stmt: ast.stmt) -> list[tuple[str, ast.expr]]:
    """The names a statement assigns, each with the expression that tells what it becomes."""
    if isinstance(stmt, ast.For):
        return [(part.id, stmt.iter) for part in ast.walk(stmt.target) if isinstance(part, ast.Name)]
    if isinstance(stmt, ast.AugAssign) and isinstance(stmt.target, ast.Name):
        bits = isinstance(stmt.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
        return [(stmt.target.id, stmt.value if bits else stmt.target)] * 2  # twice: it reads what another statement assigned
    if isinstance(stmt, ast.AnnAssign) and isinstance(stmt.target, ast.Name) and stmt.value:
        return [(stmt.target.id, stmt.value)]
    return [pair for target in stmt.targets for pair in _pairs(target, stmt.value)] if isinstance(stmt, ast.Assign) else []


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
    if isinstance(target, ast.Name):
        return [(target.id, value)]
    if not isinstance(target, (ast.Tuple, ast.List)):
        return []
    matched = isinstance(value, ast.Tuple) and len(value.elts) == len(target.elts)
    values = value.elts if matched and isinstance(value, ast.Tuple) else [target] * len(target.elts)
    return [pair for part, v in zip(target.elts, values, strict=True) for pair in _pairs(part, v)]
