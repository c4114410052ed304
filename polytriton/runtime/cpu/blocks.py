"""Float32 products whose order of summation is known: short chains, whose sums meet in short chains again.

A library's GEMM may add the K terms of an entry in any order, so each may pass through K roundings. Here term i passes through
`depths(i, K)` at most: those of its block of CHAIN terms that follow it, those of the WIDTH blocks beside it, and those of the rest.
The charge is by term (docs/soundness.md, section 6). The tiles are LLVM's own text, since Numba would not keep them in registers; it
fuses products into sums where the processor does, and reorders nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from polytriton.runtime.cpu import fused, loops
from polytriton.runtime.cpu.outside import Routine, floats

CHAIN, WIDTH = 16, 8  # terms of a block, blocks of a group
PANEL = 16  # columns that lie side by side
ROWS, WIDE_ROWS = 4, 8  # of a tile: what 16 registers hold, and what 32 wider ones do
ATTRIBUTES = 1000  # a number that Numba's code beside the tiles does not give to attributes of its own
RESIDENT = 4096  # terms of panels that stay in a core's own cache while rows pass by: 256 KiB


def is_available() -> bool:
    """Whether the tiles are there: compiled ahead, on this machine, by this release of LLVM."""
    if not loops.AVAILABLE:
        return False
    loops.prepare()
    return bool(_multiply._found)


@dataclass(frozen=True)
class Packed:
    """A matrix [terms, columns] as products read it: [panels, terms, PANEL], the last panel filled with zeros. `shape` is the weight's."""

    panels: Tensor
    columns: int
    shape: tuple[int, ...]

    @property
    def terms(self) -> int:
        return self.panels.shape[1]

    @property
    def pitch(self) -> int:
        """How far rows of a product lie apart where tiles write whole panels, which is faster than parts of one."""
        return self.panels.shape[0] * PANEL


def pack(w: Tensor) -> Packed:
    """A dense layer's weight [outputs, inputs], or a convolution's [Co, Ci, kh, kw]: taps side by side, the channels of each together."""
    flat = w if w.dim() == 2 else w.permute(0, 2, 3, 1).reshape(w.shape[0], -1)
    terms, columns = flat.shape
    count = -(-columns // PANEL)
    whole = torch.nn.functional.pad(flat, (0, count * PANEL - columns))
    return Packed(whole.view(terms, count, PANEL).transpose(0, 1).contiguous(), columns, tuple(w.shape))


def pack_part(w: Tensor, outputs: Tensor, inputs: Tensor | None) -> Packed:
    """These rows and columns of a dense layer's weight."""
    columns = torch.arange(w.shape[1]) if inputs is None else inputs
    panels = w.new_empty(-(-len(columns) // PANEL), len(outputs), PANEL)
    _pack_part(w.numpy(), outputs.numpy(), columns.numpy(), panels.numpy())
    return Packed(panels, len(columns), (len(outputs), len(columns)))


def depths(at: Tensor, terms: Tensor) -> Tensor:
    """The most roundings between the product at this place of so many and the entry (whole numbers): the product's own, those of what
    follows in its block, then of the blocks that follow in its group, then of the groups that follow.
    """
    block, group = at // CHAIN, at // (CHAIN * WIDTH)
    blocks = (terms + CHAIN - 1) // CHAIN
    own = (terms - block * CHAIN).clamp(max=CHAIN) - at % CHAIN
    beside = (blocks - group * WIDTH).clamp(max=WIDTH) - (block % WIDTH).clamp(min=1)
    beyond = (blocks + WIDTH - 1) // WIDTH - group.clamp(min=1)
    return 1 + own + beside.clamp(min=0) + beyond.clamp(min=0)


def dense_depths(live: Tensor) -> Tensor:
    """The most roundings of the products of each output of a dense layer, [batch, outputs]: where all are multiplied, and where those that
    are not live are left out, so that the others move up.
    """
    if loops.AVAILABLE and live.device.type == "cpu":
        found = torch.empty(live.shape, dtype=torch.float64)
        rooms = np.empty((2, live.shape[1]), dtype=np.int64)
        _dense_depths(live.contiguous().view(-1).numpy(), *rooms, found.view(-1).numpy())
        return found
    flat, count = live.long(), torch.tensor(live.shape[1], device=live.device)
    moved = depths((flat.cumsum(1) - 1).clamp(min=0), flat.sum(1, keepdim=True))
    return torch.maximum(depths(torch.arange(live.shape[1], device=live.device), count), moved).double()


def count_roundings(at, terms):  # type: ignore[no-untyped-def]
    """`depths` of one term."""
    block, group, blocks = at // CHAIN, at // (CHAIN * WIDTH), (terms + CHAIN - 1) // CHAIN
    own = min(terms - block * CHAIN, CHAIN) - at % CHAIN
    beside = min(blocks - group * WIDTH, WIDTH) - max(block % WIDTH, 1)
    beyond = (blocks + WIDTH - 1) // WIDTH - max(group, 1)
    return 1 + own + max(beside, 0) + max(beyond, 0)


@fused.compile_loop("B I I D", fused.PLAIN)
def _dense_depths(live, alone, moved, found):  # type: ignore[no-untyped-def]
    """`dense_depths` of [batch * size] outputs, operation by operation; `alone` and `moved` are memory for as many."""
    size = len(alone)
    for k in range(size):
        alone[k] = count_roundings(k, size)
    for first in range(0, len(live), size):
        count = 0
        for k in range(first, first + size):
            count += 1 if live[k] else 0
        for k in range(max(count, 1)):
            moved[k] = count_roundings(k, count)
        before = 0
        for k in range(size):
            before += 1 if live[first + k] else 0
            found[first + k] = max(alone[k], moved[max(before - 1, 0)])


def tap_depths(terms: Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dilation: tuple[int, ...]) -> Tensor:
    """Of a convolution's products that pass through so many roundings into their tap, those into their cell (sums.shifted_sums): taps of up
    to three lines of the kernel meet, and what they make goes into the cell, once for every three lines and place of the window; the
    first meets a zero.
    """
    lines, places = (-(-k // s) if d == 1 else k for k, s, d in zip(shape[2:], stride, dilation, strict=True))
    return terms + min(lines, 3) - 1 + -(-lines // 3) * places - 1


def multiply(m: Tensor, w: Packed, threads: int, least: int, out: Tensor | None = None) -> Tensor:
    """m [rows, terms] @ w, rows shared among threads."""
    found = m.new_empty(len(m), w.columns) if out is None else out
    if not w.terms:
        return found.zero_()
    fused.over_slices(_multiply, threads, m.numpy(), found.numpy(), w.panels.numpy(), least=least)
    return found


# ---- the loop ----------------------------------------------------------------------------------------------------


def text_of_tiles(name: str, version: str = "") -> tuple[str, str, str]:
    """The loop as LLVM's text: its code, the name of what is to be called, and that one's parameters as Numba passes arrays."""
    tall = WIDE_ROWS if "+avx512f" in loops.features() else ROWS
    parameters = ", ".join(
        ["ptr %ret", "ptr %exc"]
        + [f"{kind} %{of}.{part}" for of in "mcw" for kind, part in loops.fields(3 if of == "w" else 2)]
    )  # fmt: skip
    code = [f"declare {VECTOR} @llvm.fmuladd.v{PANEL}f32({VECTOR}, {VECTOR}, {VECTOR})"]
    code += [_tile(k, f"{name}_tile{k}") for k in range(1, tall + 1)]
    code.append(_walk(f"{name}_work", name, tall, parameters))
    if tall == WIDE_ROWS:
        code.append(f'attributes #{ATTRIBUTES} = {{ nounwind "min-legal-vector-width"="512" "prefer-vector-width"="512" }}')
    else:
        code.append(f"attributes #{ATTRIBUTES} = {{ nounwind }}")
    return "\n".join(code), f"{name}_work", parameters


VECTOR = f"<{PANEL} x float>"


def _walk(name: str, stem: str, tall: int, parameters: str) -> str:
    """Panels that stay in the cache, strips of rows, panels of those; the last strip takes a lower tile."""
    cases = " ".join(f"i64 {k}, label %low{k}" for k in range(1, tall))
    call = "(ptr %a, i64 %m.shape1, ptr %b, ptr %c, i64 %c.shape1, i64 %columns)"
    low = "\n".join(f"low{k}:\n  call void @{stem}_tile{k}{call}\n  br label %next" for k in range(1, tall))
    return f"""define i32 @{name}({parameters}) #{ATTRIBUTES} {{
entry:
  %step = mul i64 %m.shape1, {PANEL}
  %fit = udiv i64 {RESIDENT}, %m.shape1
  %some = call i64 @llvm.umax.i64(i64 %fit, i64 1)
  %rows = icmp sgt i64 %m.shape0, 0
  %panels = icmp sgt i64 %w.shape0, 0
  %any = and i1 %rows, %panels
  br i1 %any, label %part, label %out
part:
  %p0 = phi i64 [ 0, %entry ], [ %p1, %partend ]
  %reach = add i64 %p0, %some
  %p1 = call i64 @llvm.smin.i64(i64 %reach, i64 %w.shape0)
  br label %strip
strip:
  %r = phi i64 [ 0, %part ], [ %rn, %stripend ]
  %ao = mul i64 %r, %m.shape1
  %a = getelementptr float, ptr %m.data, i64 %ao
  %co = mul i64 %r, %c.shape1
  %left = sub i64 %m.shape0, %r
  br label %panel
panel:
  %p = phi i64 [ %p0, %strip ], [ %pn, %next ]
  %bo = mul i64 %p, %step
  %b = getelementptr float, ptr %w.data, i64 %bo
  %first = mul i64 %p, {PANEL}
  %at = add i64 %co, %first
  %c = getelementptr float, ptr %c.data, i64 %at
  %after = sub i64 %c.shape1, %first
  %columns = call i64 @llvm.smin.i64(i64 %after, i64 {PANEL})
  switch i64 %left, label %high [ {cases} ]
high:
  call void @{stem}_tile{tall}{call}
  br label %next
{low}
next:
  %pn = add i64 %p, 1
  %more = icmp slt i64 %pn, %p1
  br i1 %more, label %panel, label %stripend
stripend:
  %rn = add i64 %r, {tall}
  %again = icmp slt i64 %rn, %m.shape0
  br i1 %again, label %strip, label %partend
partend:
  %on = icmp slt i64 %p1, %w.shape0
  br i1 %on, label %part, label %out
out:
  ret i32 0
}}
declare i64 @llvm.umax.i64(i64, i64)
declare i64 @llvm.smin.i64(i64, i64)
"""


def _tile(tall: int, name: str) -> str:
    """So many rows times a panel: blocks in registers, groups and the whole beside them in the nearest cache."""
    code: list[str] = []
    put = code.append
    rows = range(tall)
    put(f"define void @{name}(ptr %a, i64 %k, ptr %b, ptr %c, i64 %pitch, i64 %columns) #{ATTRIBUTES} {{\nentry:")
    for where in ("group", "whole"):
        put(f"  %{where} = alloca [{tall} x {VECTOR}], align 64")
        for r in rows:
            put(f"  %{where}{r} = getelementptr [{tall} x {VECTOR}], ptr %{where}, i64 0, i64 {r}")
    put("  br label %block\nblock:\n  %at = phi i64 [ 0, %entry ], [ %after, %done ]")
    put("  %count = phi i64 [ 0, %entry ], [ %counted, %done ]")  # blocks before this one
    put(f"  %left = sub i64 %k, %at\n  %short = icmp slt i64 %left, {CHAIN}\n  %n = select i1 %short, i64 %left, i64 {CHAIN}")
    put("  %after = add i64 %at, %n\n  %counted = add i64 %count, 1")
    for r in rows:
        put(f"  %ro{r} = mul i64 %k, {r}\n  %ri{r} = add i64 %ro{r}, %at\n  %ra{r} = getelementptr float, ptr %a, i64 %ri{r}")
    put(f"  %bi = mul i64 %at, {PANEL}\n  %bb = getelementptr float, ptr %b, i64 %bi\n  br i1 %short, label %tail, label %full")

    def step(tag: str, index: str, before: list[str] | None) -> list[str]:
        put(f"  %bo{tag} = mul i64 {index}, {PANEL}\n  %bp{tag} = getelementptr float, ptr %bb, i64 %bo{tag}")
        put(f"  %bv{tag} = load {VECTOR}, ptr %bp{tag}, align 4")
        for r in rows:
            put(f"  %ap{tag}.{r} = getelementptr float, ptr %ra{r}, i64 {index}\n  %as{tag}.{r} = load float, ptr %ap{tag}.{r}, align 4")
            put(f"  %ai{tag}.{r} = insertelement {VECTOR} poison, float %as{tag}.{r}, i32 0")
            put(f"  %av{tag}.{r} = shufflevector {VECTOR} %ai{tag}.{r}, {VECTOR} poison, <{PANEL} x i32> zeroinitializer")
            factors = f"{VECTOR} %av{tag}.{r}, {VECTOR} %bv{tag}"
            if before is None:
                put(f"  %x{tag}.{r} = fmul {VECTOR} %av{tag}.{r}, %bv{tag}")
            else:
                put(f"  %x{tag}.{r} = call {VECTOR} @llvm.fmuladd.v{PANEL}f32({factors}, {VECTOR} {before[r]})")
        return [f"%x{tag}.{r}" for r in rows]

    put("full:")
    full: list[str] | None = None
    for i in range(CHAIN):
        full = step(f"f{i}", str(i), full)
    assert full is not None
    put("  br label %sum\ntail:")
    head = step("h", "0", None)
    put("  %two = icmp sgt i64 %n, 1\n  br i1 %two, label %on, label %ended\non:\n  %i = phi i64 [ 1, %tail ], [ %in, %on ]")
    for r in rows:
        put(f"  %p{r} = phi {VECTOR} [ {head[r]}, %tail ], [ %xt.{r}, %on ]")
    step("t", "%i", [f"%p{r}" for r in rows])
    put("  %in = add i64 %i, 1\n  %more = icmp slt i64 %in, %n\n  br i1 %more, label %on, label %ended\nended:")
    for r in rows:
        put(f"  %e{r} = phi {VECTOR} [ {head[r]}, %tail ], [ %xt.{r}, %on ]")
    put("  br label %sum\nsum:")
    for r in rows:
        put(f"  %v{r} = phi {VECTOR} [ {full[r]}, %full ], [ %e{r}, %ended ]")
    put(f"  %place = urem i64 %count, {WIDTH}\n  %begins = icmp eq i64 %place, 0\n  br i1 %begins, label %joined, label %join\njoin:")
    for r in rows:
        put(f"  %g{r} = load {VECTOR}, ptr %group{r}, align 64\n  %s{r} = fadd {VECTOR} %g{r}, %v{r}")
    put("  br label %joined\njoined:")
    for r in rows:
        put(f"  %z{r} = phi {VECTOR} [ %v{r}, %sum ], [ %s{r}, %join ]")
    put(f"  %lastplace = icmp eq i64 %place, {WIDTH - 1}\n  %end = icmp sge i64 %after, %k\n  %closes = or i1 %lastplace, %end")
    put("  br i1 %closes, label %close, label %keep\nkeep:")
    for r in rows:
        put(f"  store {VECTOR} %z{r}, ptr %group{r}, align 64")
    put(f"  br label %done\nclose:\n  %firstgroup = icmp ult i64 %count, {WIDTH}\n  br i1 %firstgroup, label %closed, label %meet\nmeet:")
    for r in rows:
        put(f"  %w{r} = load {VECTOR}, ptr %whole{r}, align 64\n  %y{r} = fadd {VECTOR} %w{r}, %z{r}")
    put("  br label %closed\nclosed:")
    for r in rows:
        put(f"  %q{r} = phi {VECTOR} [ %z{r}, %close ], [ %y{r}, %meet ]")
    for r in rows:
        put(f"  store {VECTOR} %q{r}, ptr %whole{r}, align 64")
    put("  br label %done\ndone:\n  %again = icmp slt i64 %after, %k\n  br i1 %again, label %block, label %write")
    put(f"write:\n  %wide = icmp eq i64 %columns, {PANEL}\n  br i1 %wide, label %lines, label %cells\nlines:")
    for r in rows:
        put(f"  %lo{r} = mul i64 %pitch, {r}\n  %lp{r} = getelementptr float, ptr %c, i64 %lo{r}")
        put(f"  %lv{r} = load {VECTOR}, ptr %whole{r}, align 64\n  store {VECTOR} %lv{r}, ptr %lp{r}, align 4")
    put("  ret void\ncells:\n  %j = phi i64 [ 0, %write ], [ %jn, %cells ]")
    for r in rows:
        put(f"  %sp{r} = getelementptr float, ptr %whole{r}, i64 %j\n  %sv{r} = load float, ptr %sp{r}, align 4")
        put(f"  %to{r} = mul i64 %pitch, {r}\n  %ti{r} = add i64 %to{r}, %j")
        put(f"  %tp{r} = getelementptr float, ptr %c, i64 %ti{r}\n  store float %sv{r}, ptr %tp{r}, align 4")
    put("  %jn = add i64 %j, 1\n  %rest = icmp slt i64 %jn, %columns\n  br i1 %rest, label %cells, label %last\nlast:\n  ret void\n}")
    return "\n".join(code)


def _sums(m, out, w):  # type: ignore[no-untyped-def]
    """out = m @ w, [rows, terms] by [panels, terms, PANEL]: what the tiles compute, where the product of a sum may be rounded first."""
    for r in range(m.shape[0]):
        for column in range(out.shape[1]):
            whole = group = np.float32(0)
            for block in range(0, m.shape[1], CHAIN):
                own = m[r, block] * w[column // PANEL, block, column % PANEL]
                for k in range(block + 1, min(block + CHAIN, m.shape[1])):
                    own = own + m[r, k] * w[column // PANEL, k, column % PANEL]
                group = own if block % (CHAIN * WIDTH) == 0 else group + own
                if block + CHAIN >= m.shape[1] or (block // CHAIN) % WIDTH == WIDTH - 1:
                    whole = group if block < CHAIN * WIDTH else whole + group
            out[r, column] = whole


@fused.compile_loop("F2 I I F3", fused.PLAIN)
def _pack_part(w, outputs, columns, panels):  # type: ignore[no-untyped-def]
    """panels[p, t, c] = w[outputs[t], columns[PANEL p + c]], 0 beyond the last column."""
    for t in range(len(outputs)):
        row = w[outputs[t]]
        for p in range(panels.shape[0]):
            for c in range(panels.shape[2]):
                at = p * panels.shape[2] + c
                panels[p, t, c] = row[columns[at]] if at < len(columns) else np.float32(0)


_multiply = loops.loop("F2 F2 F3", fused.PLAIN, text_of_tiles)(_sums)


def _multiply_at(m: int, rows: int, terms: int, out: int, columns: int, panels: int, count: int) -> None:
    left, right = floats(m, rows * terms).reshape(rows, terms), floats(out, rows * columns).reshape(rows, columns)
    _multiply(left, right, floats(panels, count * terms * PANEL).reshape(count, terms, PANEL))


multiply_rows = Routine("polytriton_multiply_rows", 7, _multiply_at)  # its text stands beside a convolution's (convs.py)
