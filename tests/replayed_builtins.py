"""Triton's builtins in its interpreter, each way through them taken once: later calls play the steps that the first one noted.

What a builtin asks of the interpreter depends on its operands' types and on plain values, never on numbers in tensors: it is a
compiler's front end. So the first call of a kind goes Triton's own way, and what it asks of the interpreter's builder is noted; the
next calls of that kind ask the builder the same, without deriving types and shapes anew. Constants are made once. Where a builtin
does look into a scalar (`if mask` of a load), nothing is kept. The builder's methods are looked up for every step, so a test that
exchanges one sees all of it.
"""

from __future__ import annotations

from functools import lru_cache
from types import FunctionType
from typing import Any

FOLDED = {"create_splat", "create_make_range", "create_expand_dims", "create_broadcast"}  # of constants: constants
LARGEST = 1 << 16  # bytes of a constant that is kept
PLAIN = (int, bool, str, type(None))


class _Notes:
    """In the builder's place while a builtin runs for the first time: hands everything on, and notes what is asked."""

    def __init__(self, builder: Any, handle: type) -> None:
        self.builder, self.handle = builder, handle
        self.names: dict[int, str] = {}  # of handles: how a step's text calls them
        self.alive: list[Any] = []  # so that no other has their id
        self.constants: dict[str, Any] = {}
        self.lines: list[str] = []
        self.complete = True

    def constant(self, value: Any) -> str:
        name = f"k{len(self.constants)}"
        self.constants[name] = value
        return name

    def call(self, handle: Any, name: str) -> None:
        self.names[id(handle)] = name
        self.alive.append(handle)

    def is_constant(self, handle: Any) -> bool:
        return self.names.get(id(handle), "") in self.constants

    def text(self, value: Any) -> str:
        if isinstance(value, self.handle):
            self.complete &= id(value) in self.names
            return self.names.get(id(value), "")
        if isinstance(value, list | tuple) and any(isinstance(v, self.handle) for v in value):
            self.complete = False
        return self.constant(value)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.builder, name)
        if not name.startswith(("create_", "get_")):
            return real

        def step(*given: Any, **options: Any) -> Any:
            made = real(*given, **options)
            several = made if isinstance(made, tuple) else (made,)
            handles = [isinstance(v, self.handle) for v in several]
            if name.startswith("get_") or name in FOLDED:
                fixed = all(self.is_constant(v) for v in (*given, *options.values()) if isinstance(v, self.handle))
                if not any(handles):  # a type
                    self.complete &= name.startswith("get_")
                    return made
                if fixed and made.data.nbytes <= LARGEST:
                    self.call(made, self.constant(made))
                    return made
            self.complete &= made is None or all(handles)
            asked = ", ".join([*map(self.text, given), *(f"{k}={self.text(v)}" for k, v in options.items())])
            results = [f"r{len(self.alive) + k}" for k in range(len(several))]
            left = "" if made is None else ", ".join(results) + " = "
            self.lines.append(f"{left}B.{name}({asked})")
            if made is not None:
                for handle, result in zip(several, results, strict=True):
                    self.call(handle, result)
            return made

        return step


@lru_cache(None)
def _code(text: str) -> Any:
    return next(c for c in compile(text, "<steps of a builtin>", "exec").co_consts if hasattr(c, "co_code"))


class Replayed:
    """Makes a builtin's interpreted form into one that plays what its first call noted."""

    def __init__(self, interpreter: Any) -> None:
        core = interpreter.tl.core
        self.semantic, self.builder = interpreter.interpreter_semantic, interpreter.interpreter_builder
        self.tensor, self.constexpr, self.dtype, self.handle = core.tensor, core.constexpr, core.dtype, interpreter.TensorHandle
        self.notes: _Notes | None = None

    def kind(self, value: Any) -> Any:
        """What of an operand that is no tensor a builtin may look at; raises TypeError where that is not known."""
        of = value.__class__
        if of in PLAIN:
            return of, value
        if of is float:
            return value.hex()
        if of is self.constexpr:
            return of, self.kind(value.value)
        if of is tuple or of is list:
            return of, *map(self.kind, value)
        if of is slice:
            return of, self.kind(value.start), self.kind(value.stop), self.kind(value.step)
        if isinstance(value, self.dtype):
            return of, value.name
        raise TypeError

    def looked(self, plain: Any) -> Any:
        """bool() and int() of a tensor: while one looks at a number, what it asks next is no other number's business."""

        def look(tensor: Any) -> Any:
            notes = self.notes
            if notes is not None and tensor.handle.data.size == 1 and not notes.is_constant(tensor.handle):
                notes.complete = False
            return plain(tensor)

        return look

    def __call__(self, plain: Any) -> Any:
        known: dict[Any, Any] = {}
        tensor_class, kind = self.tensor, self.kind

        def play(*given: Any, **options: Any) -> Any:
            if self.notes is not None:
                return plain(*given, **options)
            if len(given) == 2 and not options:  # most calls, by the key that is made below
                a, b = given
                if a.__class__ is tensor_class:
                    if b.__class__ is tensor_class:
                        steps = known.get((a.type.name, b.type.name))
                        if steps is not None:
                            return steps(a, b)
                    elif b.__class__ is int:
                        steps = known.get((a.type.name, (int, b)))
                        if steps is not None:
                            return steps(a)
            key, tensors = [], []
            try:
                for value in given:
                    if value.__class__ is tensor_class:
                        tensors.append(value)
                        key.append(value.type.name)
                    else:
                        key.append(kind(value))
                for name, value in options.items():
                    if name != "_semantic":
                        key.append((name,))
                        if value.__class__ is tensor_class:
                            tensors.append(value)
                            key.append(value.type.name)
                        else:
                            key.append(kind(value))
            except TypeError:
                return plain(*given, **options)
            asked = tuple(key)
            steps = known.get(asked)
            if steps is not None:
                return steps(*tensors)
            if asked in known:
                return plain(*given, **options)
            return self.first(known, asked, tensors, plain, given, options)

        return play

    def first(self, known: dict[Any, Any], asked: Any, tensors: list[Any], plain: Any, given: Any, options: Any) -> Any:
        notes = self.notes = _Notes(self.builder, self.handle)
        for k, tensor in enumerate(tensors):
            notes.call(tensor.handle, f"t{k}.handle")
        self.semantic.builder = notes
        try:
            made = plain(*given, **options)
        finally:
            self.semantic.builder, self.notes = self.builder, None
        if len({id(t.handle) for t in tensors}) == len(tensors):  # else which of them was meant is open: noted another time
            steps = self.steps(notes, tensors, made)
            known[asked] = steps if notes.complete else None
        return made

    def steps(self, notes: _Notes, tensors: list[Any], made: Any) -> Any:
        """The noted steps as a function of the tensors; tells `notes` where what was made is more than they say."""
        lines, results = list(notes.lines), []
        for k, value in enumerate(made if type(made) is tuple else (made,)):
            mine = next((f"t{i}" for i, t in enumerate(tensors) if t is value), None)
            if mine is not None or value is None:
                results.append(mine or "None")
            elif type(value) is self.tensor and (value.handle is None or id(value.handle) in notes.names):
                lines.append(f"m{k} = new(kind)")
                parts = {"handle": notes.names.get(id(value.handle), "None")}  # a store makes none
                parts |= {name: notes.constant(getattr(value, name)) for name in ("type", "dtype", "numel", "shape")}
                lines += [f"m{k}.{name} = {part}" for name, part in parts.items()]
                results.append(f"m{k}")
            else:
                notes.complete = False
                return None
        lines.append(f"return ({', '.join(results)},)" if type(made) is tuple else f"return {results[0]}")
        text = f"def steps({', '.join(f't{k}' for k in range(len(tensors)))}):\n  " + "\n  ".join(lines)
        scope = {"B": self.builder, "new": object.__new__, "kind": self.tensor, **notes.constants}
        return FunctionType(_code(text), scope)
