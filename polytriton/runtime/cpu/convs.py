"""A convolution's float32 product and its sums, some rows at a time, in one compiled loop.

Rows whose taps stay in a core's cache are multiplied by the tiles of blocks.py, then summed by `sums.shifted_sums`: the same numbers as one
call after another. It is one call, since threads that walk blocks of rows beside each other wait for each other between calls.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from polytriton.runtime.cpu import blocks, fused, loops, sums
from polytriton.runtime.cpu.blocks import PANEL, Packed, multiply_rows
from polytriton.runtime.cpu.outside import Routine, floats, integers


def convolve(m: np.ndarray, w: Packed, out: np.ndarray, taps: tuple[int, int], some: int, moves: tuple[int, ...], threads: int) -> None:
    """out [rows, height, width * channels] is the transposed convolution of m [rows, h, w, terms], `some` rows at a time.

    taps: the kernel's lines, and values one of its lines has (kw * channels). moves: channels, top, left, strides and dilations.
    """
    panels = w.panels.numpy()
    each = m.shape[1] * m.shape[2] * w.pitch
    jobs = []
    for a, b in pairwise(len(m) * k // threads for k in range(threads + 1)):
        if a < b:
            made, places = np.empty(min(b - a, some) * each, dtype=np.float32), np.empty(taps[0], dtype=np.int64)
            jobs.append((m[a:b], out[a:b], panels, made, places, *taps, *moves, some))
    others = [fused.kept_threads(threads).submit(_convolve, *job) for job in jobs[1:]]
    if jobs:
        _convolve(*jobs[0])
    for other in others:
        other.result()


# ---- the loop ----------------------------------------------------------------------------------------------------


def _text(name: str, version: str = "") -> tuple[str, str, str]:
    """The loop as LLVM's text, around the tiles' and around the machine's code of the sums."""
    from polytriton.runtime.cpu.loops_build import optimise

    added, add, _ = optimise(sums.shifted_loop, "float32")
    tiles, multiply, _ = blocks.text_of_tiles(name)
    arrays = {"m": 4, "c": 3, "w": 3, "t": 1, "p": 1}
    fields = [f"{kind} %{of}.{part}" for of, axes in arrays.items() for kind, part in loops.fields(axes)]
    numbers = ("kh", "size", "channels", "top", "left", "sh", "sw", "dh", "dw", "some")
    parameters = ", ".join(["ptr %ret", "ptr %exc", *fields, *(f"i64 %{n}" for n in numbers)])

    def array(name: str, data: str, *shape: str) -> str:
        return _array(code, name, data, *shape)

    code = [
        f"define i32 @{name}_convolve({parameters}) #{blocks.ATTRIBUTES} {{",
        "entry:",
        "  %cells = mul i64 %m.shape1, %m.shape2",
        f"  %pitch = mul i64 %w.shape0, {PANEL}",
        "  %mrow = mul i64 %cells, %m.shape3",
        "  %crow = mul i64 %c.shape1, %c.shape2",
        "  %any = icmp sgt i64 %m.shape0, 0",
        "  br i1 %any, label %part, label %out",
        "part:",
        "  %a = phi i64 [ 0, %entry ], [ %b, %next ]",
        "  %left_over = sub i64 %m.shape0, %a",
        "  %n = call i64 @llvm.smin.i64(i64 %left_over, i64 %some)",
        "  %mo = mul i64 %a, %mrow",
        "  %md = getelementptr float, ptr %m.data, i64 %mo",
        "  %co = mul i64 %a, %crow",
        "  %cd = getelementptr float, ptr %c.data, i64 %co",
        "  %rows = mul i64 %n, %cells",
    ]
    left, right = array("left", "%md", "%rows", "%m.shape3"), array("right", "%t.data", "%rows", "%pitch")
    panels = ", ".join(f"{kind} %w.{part}" for kind, part in loops.fields(3))
    code += [
        f"  %made = call i32 @{multiply}(ptr %ret, ptr %exc, {left}, {right}, {panels})",
        "  %tn = mul i64 %rows, %pitch",
        "  %cn = mul i64 %n, %crow",
    ]
    taps, to = array("taps", "%t.data", "%n", "%m.shape1", "%m.shape2", "%kh", "%size"), array("to", "%cd", "%n", "%c.shape1", "%c.shape2")
    flat = f"{array('', '%t.data', '%tn')}, {array('', '%cd', '%cn')}"
    places = ", ".join(f"{kind} %p.{part}" for kind, part in loops.fields(1))
    moves = ", ".join(f"i64 %{n}" for n in (*numbers[2:-1], "pitch"))
    code += [
        f"  %status = call i32 @{add}(ptr %ret, ptr %exc, {taps}, {to}, {moves}, {flat}, {places})",
        "  %good = icmp eq i32 %status, 0",
        "  br i1 %good, label %next, label %failed",
        "next:",
        "  %b = add i64 %a, %n",
        "  %more = icmp slt i64 %b, %m.shape0",
        "  br i1 %more, label %part, label %out",
        "failed:",
        "  ret i32 %status",
        "out:",
        "  ret i32 0",
        "}",
    ]
    known = {line.split("(")[0] for line in added.splitlines() if line.startswith("declare")}
    own = [line for line in tiles.splitlines() if line.split("(")[0] not in known]  # LLVM takes a declaration once
    return "\n".join([added, *own, *code]), f"{name}_convolve", parameters


def _array(code: list[str], name: str, data: str, *shape: str, size: int = 4) -> str:
    """An array as Numba passes it; nobody reads how many values it has in all. `name` is that of its steps, which join the code."""
    strides = [str(size)]
    for k, axis in enumerate(reversed(shape[1:])):
        code.append(f"  %{name}.step{k} = mul i64 {strides[0]}, {axis}")
        strides.insert(0, f"%{name}.step{k}")
    return ", ".join(["ptr null", "ptr null", "i64 0", f"i64 {size}", f"ptr {data}", *(f"i64 {v}" for v in (*shape, *strides))])


def _refuse(m, out, panels, taps, places, kh, size, channels, top, left, sh, sw, dh, dw, some):  # type: ignore[no-untyped-def]
    raise ValueError("a convolution in one loop takes contiguous arrays")


_convolve = loops.loop("F4 F3 F3 F I i i i i i i i i i i", fused.PLAIN, _text, ("blocks", "sums"))(_refuse)


# ---- the same for a loop that has addresses ----------------------------------------------------------------------


def text_of_routines(name: str) -> str:
    """LLVM's text of `multiply_rows` and of `convolve_rows`, which take addresses and sizes in the order of their Python forms."""
    code, convolve, _ = _text(name)
    found = [code]
    for routine, callee, arrays, numbers in (
        (multiply_rows, f"{name}_work", (("m", 0, (1, 2)), ("c", 3, (1, 4)), ("w", 5, (6, 2, PANEL))), ()),
        (
            convolve_rows, convolve,
            (("m", 0, (1, 2, 3, 4)), ("c", 5, (1, 6, 7)), ("w", 8, (9, 4, PANEL)), ("t", 10, (1,)), ("p", 11, (12,))),
            range(12, 22),
        ),
    ):  # fmt: skip
        body = ["  %ret = alloca i64", "  %exc = alloca ptr"]
        given = ["ptr %ret", "ptr %exc"]
        for own, at, shape in arrays:
            body.append(f"  %{own} = inttoptr i64 %a{at} to ptr")
            sizes = [str(k) if k is PANEL else f"%a{k}" for k in shape]
            given.append(_array(body, own, f"%{own}", *sizes, size=8 if own == "p" else 4))
        given += [f"i64 %a{k}" for k in numbers]
        head = ", ".join(f"i64 %a{k}" for k in range(routine.arguments))
        found += [
            f"define void @{routine.name}({head}) {{",
            *body,
            f"  %status = call i32 @{callee}({', '.join(given)})",
            "  ret void",
            "}",
        ]
    return "\n".join(found)


def _convolve_at(
    m: int, rows: int, h: int, w: int, terms: int, out: int, height: int, line: int, panels: int, count: int, taps: int, places: int,
    kh: int, size: int, *moves: int,
) -> None:  # fmt: skip
    _convolve(
        floats(m, rows * h * w * terms).reshape(rows, h, w, terms), floats(out, rows * height * line).reshape(rows, height, line),
        floats(panels, count * terms * PANEL).reshape(count, terms, PANEL), floats(taps, moves[-1] * h * w * count * PANEL),
        integers(places, kh), kh, size, *moves,
    )  # fmt: skip


convolve_rows = Routine("polytriton_convolve_rows", 22, _convolve_at)
