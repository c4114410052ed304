"""Triton's interpreter without the work that it does anew for every launch, call and value; what kernels compute stays the same.

Of the quick tests' time most was once spent here: asking Triton's modules for their members at every call of a helper, reading a
function's source from its file four times, checking sums for an overflow of which nobody is told, and making types and shapes that
are there already. quick_launches.py and replayed_builtins.py are parts of it: what a launch costs, and what a builtin does. `quicken`
knows one Triton; any other runs as it comes. tests/test_interpreter.py holds both against each other.
"""

from __future__ import annotations

import ast
import linecache
import sys
from dataclasses import replace
from functools import lru_cache
from math import prod
from types import ModuleType
from typing import Any

from tests.quick_launches import quick_builder, quick_launch
from tests.replayed_builtins import Replayed

KNOWN = "3.7."  # the versions of Triton whose interpreter this is about


class _Nothing:
    """In place of a scope that has changed something."""

    def restore(self) -> None:
        pass


NOTHING = _Nothing()


class _Patch:
    """The members of Triton's language that an interpreted launch exchanges: found once, set and put back for every launch.

    What a launch calls has them exchanged already, and needs nothing.
    """

    def __init__(self, interpreter: Any) -> None:
        self.plain, self.lang, self.core = interpreter._patch_lang, interpreter.tl, interpreter.tl.core
        self.missing = interpreter._MISSING
        self.kept: dict[bool, list[tuple[Any, str, Any, Any]]] = {}
        self.modules: dict[bool, list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]] = {}  # what they have, get, and had
        self.stayed = False  # whether Triton's own helpers have exchanged what they see of `core`, which Triton never puts back
        self.replayed, self.made = Replayed(interpreter), dict[int, Any]()  # builtins by what Triton has of them
        self.active: bool | None = None  # whether `core` is exchanged beside `lang`; None where nothing is

    def __call__(self, fn: Any) -> Any:
        known = fn.__globals__.get("__interpreted__")
        if known is None:
            modules = [v for v in fn.__globals__.values() if v is self.lang or v is self.core]
            assert modules, "triton.language must be visible from within jit'd function"
            known = fn.__globals__["__interpreted__"] = any(m is self.core for m in modules)
        if self.active is not None:
            if self.active >= known or self.stayed:
                return NOTHING
            self.stayed = True
            return self.plain(fn)
        if self.lang not in fn.__globals__.values():
            return self.plain(fn)
        if known not in self.kept:
            scope = self.plain(fn)
            self.kept[known] = [(on, name, old, self.quicker(on, name, old, vars(on)[name])) for on, name, old in scope._changes]
            scope.restore()
            self.modules[known] = self.split(known)
        self.active = known
        for members, new, _ in self.modules[known]:
            members.update(new)
        for on, name, _, value in self.kept[known]:
            setattr(on, name, value)
        return self

    def split(self, known: bool) -> list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
        """What modules have and get is set at once, module by module; what is left in `kept` is set one by one."""
        whole, alone = list[Any](), list[Any]()
        for change in self.kept[known]:
            (whole if isinstance(change[0], ModuleType) and hasattr(change[0], change[1]) else alone).append(change)
        self.kept[known] = alone
        found = []
        for module in {id(on): on for on, *_ in whole}.values():
            mine = [(name, old, new) for on, name, old, new in whole if on is module]
            first = {name: old for name, old, _ in reversed(mine)}  # of what is exchanged twice
            found.append((vars(module), {name: new for name, _, new in mine}, first))
        return found

    def quicker(self, on: Any, name: str, old: Any, new: Any) -> Any:
        if on is self.core.tensor and name in ("__bool__", "__index__"):
            return self.replayed.looked(new)
        if not self.core.is_builtin(old):
            return new
        if id(old) not in self.made:
            self.made[id(old)] = self.replayed(new)
        return self.made[id(old)]

    def restore(self) -> None:
        assert self.active is not None
        for on, name, old, _ in reversed(self.kept[self.active]):
            if old is self.missing:
                delattr(on, name)
            else:
                setattr(on, name, old)
        for members, _, had in self.modules[self.active]:
            members.update(had)
        self.active = None


@lru_cache(256)
def _functions(text: str) -> dict[int, tuple[int, int]]:
    """Of a file's functions by first lines, decorators included: that of its `def`, and its last. Those inside others are left out."""
    found = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    firsts = ((min([f.lineno, *(d.lineno for d in f.decorator_list)]), f) for f in found)
    return {first: (f.lineno, f.end_lineno or f.lineno) for first, f in firsts}


def _wrap(body: list[ast.stmt]) -> None:
    """What Triton's ASTTransformer does: every value that is assigned becomes a tensor."""
    for stmt in body:
        if isinstance(stmt, ast.Assign):
            if len(stmt.targets) > 1:
                raise ValueError("Multiple assignments are not supported")
            at: Any = {name: getattr(stmt.value, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
            given = ast.Attribute(ast.Name("interpreter_semantic", ast.Load(), **at), "to_tensor", ast.Load(), **at)
            stmt.value = ast.Call(given, [stmt.value, ast.Constant(False, **at)], [], **at)
        for part in ("body", "orelse"):
            _wrap(getattr(stmt, part, []))


class _Rewriting:
    """`rewrite_ast`: a file is read and parsed once, and a helper that many emitted kernels carry along is compiled once.

    Its lines count from the file that was the first to carry it.
    """

    def __init__(self, interpreter: Any) -> None:
        self.interpreter, self.plain = interpreter, interpreter.FunctionRewriter.rewrite_ast
        self.compiled: dict[str, Any] = {}

    def __call__(self, rewriter: Any) -> Any:
        code = getattr(rewriter.fn, "__code__", None)
        if code is None:
            return self.plain(rewriter)
        linecache.checkcache(code.co_filename)
        lines = linecache.getlines(code.co_filename)
        place = _functions("".join(lines)).get(code.co_firstlineno) if lines else None
        if place is None:
            return self.plain(rewriter)
        text = "".join(lines[place[0] - 1 : place[1]])
        if text not in self.compiled:
            tree = ast.parse("\n" * (place[0] - 1) + text)
            _wrap(tree.body)
            self.compiled[text] = compile(tree, code.co_filename, "exec")
        names, given = {**rewriter.kwargs}, rewriter.fn.__globals__
        for key, value in vars(self.interpreter).items():
            given.setdefault(key, value)
        exec(self.compiled[text], given, names)
        return names[rewriter.fn.__name__]


def _types(interpreter: Any) -> None:
    """Types and shapes of blocks: few, and asked for at every operation."""
    core, plain_np = interpreter.tl.core, interpreter._get_np_dtype
    make_block, kept, numpys, shapes = core.block_type.__init__, {}, {}, {}

    def block(self: Any, element_ty: Any, shape: Any) -> None:
        key = (id(element_ty), *(s if type(s) is int else s.value if type(s) is core.constexpr else None for s in shape))
        made = kept.get(key)
        if made is None or None in key:
            make_block(self, element_ty, shape)
            if None not in key:
                kept[key] = dict(vars(self))  # holds the element's type: no other will have its id
        else:
            vars(self).update(made)

    def np_dtype(tt_dtype: Any) -> Any:
        if tt_dtype.name not in numpys:
            numpys[tt_dtype.name] = plain_np(tt_dtype)
        return numpys[tt_dtype.name]

    def tensor(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        shape = type.shape if type.is_block() else ()
        if shape not in shapes:
            shapes[shape] = core.constexpr(prod(shape)), core.tuple([core.constexpr(s) for s in shape])
        self.numel, self.shape = shapes[shape]

    core.block_type.__init__, core.tensor.__init__ = block, tensor
    interpreter._get_np_dtype = np_dtype


def quicken() -> bool:
    """Once for a process, when something has imported Triton to interpret it; says whether it did."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None or not interpreter.triton.__version__.startswith(KNOWN) or isinstance(interpreter._patch_lang, _Patch):
        return False
    options = interpreter.interpreter_builder.options
    if not options.debug:  # else an overflow is told
        interpreter.interpreter_builder.options = replace(options, sanitize_overflow=False)
    interpreter._patch_lang = _Patch(interpreter)
    rewriting = _Rewriting(interpreter)
    interpreter.FunctionRewriter.rewrite_ast = lambda self: rewriting(self)
    _types(interpreter)
    quick_builder(interpreter)
    quick_launch(interpreter)
    return True
