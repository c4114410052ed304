"""Machine code of loops (loops.py): Numba types and optimises each, a small entry of its own unpacks a call's slots, LLVM emits one object.

An entry checks every array before the loop may touch it: its type, its axes, that it is C-contiguous and aligned. Otherwise it
returns FAILED, and nothing was read or written.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import llvmlite.binding as llvm
import numba
import numba.extending

from polytriton.runtime.cpu.loops import Loop
from polytriton.runtime.cpu.outside import Addressed, Routine

ORDER = {"float32": 0, "float64": 1, "int64": 2, "bool": 3}  # of the ids of types in the first slots
SIZES = {"float32": 4, "float64": 8, "int64": 8, "bool": 1}
ELEMENTS = {"F": "float32", "I": "int64", "D": "float64", "B": "bool"}
SCALARS = {"i": "int64", "d": "float64", "b": "boolean"}
LIBRARY = {"memset", "memcpy", "memmove"}  # what any C library has
DATA, AXES, SHAPE, TYPE, FLAGS = 0, 8, 16, 40, 48  # of an array's fields, behind the head that every object has
BEHAVED = 0x101  # C-contiguous and aligned
FAILED = -(1 << 63)
NOWHERE = ctypes.c_int64(0)
# Numba counts the owners of arrays; ours have none it knows, so none is ever let go
NEVER = "define void @NRT_MemInfo_call_dtor(ptr %owner) {\n  ret void\n}\n"


def build(loops: Sequence[Loop], machine: Any, tell: Callable[[int, int], None]) -> bytes:
    """One object file with every version of every loop."""
    whole: Any = None
    names = []
    todo = [(one, version) for one in loops for version in one.versions]
    for k, (one, version) in enumerate(todo):
        tell(k, len(todo))
        name = f"{one.name}_{version}"
        made = llvm.parse_assembly(_text(one, version, name))
        if one.text is not None:
            made.triple, made.data_layout = machine.triple, str(machine.target_data)
        for text in one.beside:
            routines = llvm.parse_assembly(text(name))
            routines.triple, routines.data_layout = machine.triple, str(machine.target_data)
            made.link_in(routines)
        names.append(name)
        if whole is None:
            whole = llvm.parse_assembly(f"{_target(made)}{NEVER}")
        whole.link_in(made)
    for f in whole.functions:
        if not f.is_declaration and f.name not in names:
            f.linkage = "internal"
    for g in whole.global_variables:
        if not g.is_declaration:
            g.linkage = "internal"
    _drop_unused(whole, machine)
    foreign = [f.name for f in whole.functions if f.is_declaration and not f.name.startswith("llvm.") and f.name not in LIBRARY]
    if foreign:
        raise RuntimeError(f"a loop calls {', '.join(foreign)[:200]}")
    whole.verify()
    tell(len(todo), len(todo))
    return bytes(machine.emit_object(whole))


def _target(module: Any) -> str:
    return f'target datalayout = "{module.data_layout}"\ntarget triple = "{module.triple}"\n\n'


def _drop_unused(module: Any, machine: Any) -> None:
    """Numba's own entries, which call Python."""
    if hasattr(llvm, "create_new_module_pass_manager"):
        passes = llvm.create_new_module_pass_manager()
        passes.add_global_dead_code_eliminate_pass()
        passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    else:
        manager = llvm.create_module_pass_manager()
        manager.add_global_dce_pass()
        manager.run(module)


def _text(one: Loop, version: str, name: str) -> str:
    """Numba's optimised code of a version, or the loop's own, and the entry behind it."""
    code, callee, parameters = optimise(one, version) if one.text is None else one.text(name, version)
    return f"{code}\n{_entry(one, version, name, callee, parameters)}"


def optimise(one: Loop, version: str) -> tuple[str, str, str]:
    """Numba's code of a version, the name of what is to be called and its parameters."""
    types = []
    for kind in one.form:
        if kind[0].islower():
            types.append(getattr(numba.types, SCALARS[kind]))
        else:
            element = "boolean" if kind[0] == "B" else _element(kind, version)
            types.append(numba.types.Array(getattr(numba.types, element), _axes(kind), "C"))
    how: dict[str, Any] = {"nogil": True, "fastmath": one.flags, "error_model": "numpy", "no_cpython_wrapper": True}
    made = numba.njit(**how)(known_to_numba(one.function, one.flags))
    made.compile(tuple(types))
    text = made.inspect_llvm(made.signatures[0])
    for head in re.finditer(r"^define [^@\n]*@(\S+?)\((.*)\) ", text, re.M):
        if one.function.__name__ in head[1] and "%retptr" in head[2] and "%excinfo" in head[2]:
            return text, head[1], head[2]
    raise RuntimeError(f"{one.function.__name__} is not where Numba used to put it")


def known_to_numba(function: Callable[..., Any], flags: set[str], *, linked: bool = True) -> Any:
    """The function, with Numba's forms of the loops and functions that it calls by name in place of ours; where the result is `linked` with
    our routines and may run at any address, of these too.
    """
    assert isinstance(function, FunctionType)
    scope, how = dict(function.__globals__), dict[str, Any](nogil=True, error_model="numpy")
    for name in function.__code__.co_names:
        value = scope.get(name)
        if isinstance(value, Loop):
            scope[name] = numba.njit(fastmath=value.flags, **how)(known_to_numba(value.function, value.flags, linked=linked))
        elif isinstance(value, FunctionType):
            scope[name] = numba.njit(fastmath=flags, **how)(known_to_numba(value, flags, linked=linked))
        elif linked and isinstance(value, Addressed):
            scope[name] = _numbers(value.kind)
        elif linked and isinstance(value, Routine):
            llvm.add_symbol(value.name, ctypes.addressof(NOWHERE))  # Numba links what it compiles, though nothing runs it
            kinds = [numba.types.intp] * value.arguments
            scope[name] = numba.types.ExternalFunction(value.name, numba.types.void(*kinds))
    return FunctionType(function.__code__, scope, function.__name__, function.__defaults__, function.__closure__)


def _numbers(kind: str) -> Any:
    """An array of so many numbers at an address."""
    element = getattr(numba.types, kind)

    @numba.extending.intrinsic
    def pointer(context: Any, address: Any) -> Any:
        def place(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            return builder.inttoptr(given[0], context.get_value_type(signature.return_type))

        return numba.types.CPointer(element)(numba.types.intp), place

    @numba.njit(nogil=True, error_model="numpy")
    def numbers(address, count):  # type: ignore[no-untyped-def]
        return numba.carray(pointer(address), (count if address != 0 else 0,))  # type: ignore[call-arg]

    return numbers


def _element(kind: str, version: str) -> str:
    return version if kind[0] == "T" else ELEMENTS[kind[0]]


def _axes(kind: str) -> int:
    return int(kind[1:] or 1)


def _entry(one: Loop, version: str, name: str, callee: str, parameters: str) -> str:
    """i64 name(slots): the ids of four types, then of each argument its object, number or truth."""
    kinds = [re.match(r"\s*(ptr|i64|i8|i1|double)\b", p) for p in re.split(r",(?![^(]*\))", parameters)]
    if not all(kinds):
        raise RuntimeError(f"unknown parameters of {callee}: {parameters[:200]}")
    wanted = [k[1] for k in kinds if k is not None]
    lines: list[str] = []
    given = ["ptr %ret", "ptr %exc"]
    count = 0

    def fresh(code: str) -> str:
        nonlocal count
        count += 1
        lines.append(f"  %v{count} = {code}")
        return f"%v{count}"

    def load(kind: str, base: str, offset: int) -> str:
        return fresh(f"load {kind}, ptr {fresh(f'getelementptr i8, ptr {base}, i64 {offset}')}")

    good = "true"
    head = object.__basicsize__
    shapes: dict[int, list[str]] = {}
    objects: dict[int, str] = {}
    for k, kind in enumerate(one.form):
        if kind[0].islower():
            continue
        objects[k] = load("ptr", "%slots", 8 * (4 + k))
        kept, axes = load("ptr", objects[k], head + TYPE), load("i32", objects[k], head + AXES)
        flags = load("i32", objects[k], head + FLAGS)
        type_ = load("ptr", "%slots", 8 * ORDER[_element(kind, version)])
        behaved = fresh(f"icmp eq i32 {fresh(f'and i32 {flags}, {BEHAVED}')}, {BEHAVED}")
        for found in (fresh(f"icmp eq ptr {kept}, {type_}"), fresh(f"icmp eq i32 {axes}, {_axes(kind)}"), behaved):
            good = fresh(f"and i1 {good}, {found}")
    checks, lines = lines, []
    for k, kind in enumerate(one.form):
        if kind[0].islower():
            place = 8 * (4 + k)
            if kind == "d":
                given.append(f"double {load('double', '%slots', place)}")
            else:
                value, as_ = load("i64", "%slots", place), wanted[len(given)]
                given.append(f"i64 {value}" if as_ == "i64" else f"{as_} {fresh(f'trunc i64 {value} to {as_}')}")
            continue
        size = SIZES[_element(kind, version)]
        where = load("ptr", objects[k], head + SHAPE)
        shapes[k] = [load("i64", where, 8 * axis) for axis in range(_axes(kind))]
        strides, items = [f"{size}"], shapes[k][-1]
        for axis in reversed(shapes[k][1:]):
            strides.insert(0, fresh(f"mul i64 {strides[0]}, {axis}"))
        for axis in reversed(shapes[k][:-1]):
            items = fresh(f"mul i64 {items}, {axis}")
        data = load("ptr", objects[k], head + DATA)
        given += ["ptr null", "ptr null", f"i64 {items}", f"i64 {size}", f"ptr {data}"]
        given += [f"i64 {v}" for v in (*shapes[k], *strides)]
    if [g.split()[0] for g in given] != wanted:
        raise RuntimeError(f"{callee} takes its arguments another way: {wanted}")
    status = fresh(f"call i32 @{callee}({', '.join(given)})")
    value = fresh("load i64, ptr %ret")
    result = fresh(f"select i1 {fresh(f'icmp eq i32 {status}, 0')}, i64 {value}, i64 {FAILED}")
    begin = [f"define i64 @{name}(ptr %slots) {{", "  %ret = alloca i64", "  %exc = alloca ptr", "  store i64 0, ptr %ret", *checks]
    begin += [f"  br i1 {good}, label %work, label %refuse", "refuse:", f"  ret i64 {FAILED}", "work:"]
    return "\n".join([*begin, *lines, f"  ret i64 {result}", "}", ""])
