"""Plan program -> launches in the paper's interval arithmetic: the invariant of kernels/device/interval.py, step by step.

An entry's coefficients are two buffers, the lower and the upper ends; `upper` maps one to the other. Buffers that hold exact
coefficients (a query's forms, slices of the weights) are both ends at once. The row arrays `constant` and `error` hold the lower
and the upper end of the constant interval here, so that rows that leave move as they do everywhere (kernels/device/compact.py).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from polytriton.arithmetic import Arithmetic
from polytriton.errors import UnsupportedModel
from polytriton.ir.launches import Constants
from polytriton.ir.net import Net, Node
from polytriton.ir.plan import Program, Step, Window, extent
from polytriton.kernels.choose import GPU, Sizes, Tiles, power
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames, FrontierEntry, phases, place
from polytriton.kernels.steps import part_run, pool_shape
from polytriton.passes.windows import whole

OPERATORS = ("input", "linear", "conv", "scale", "add", "sub", "relu", "maxpool", "concat", "gather")
STEPS = ("start", "merge", "dense", *OPERATORS)
EMULATED = 1 << 14  # values of a product's tile in the interpreter
RELATION = "relation"  # the kind of a query program whose rows bring coefficients over the input along


def check_supported(net: Net) -> None:
    """UnsupportedModel where an operator has no interval kernel."""
    for node in net:
        if node.op not in OPERATORS:
            raise UnsupportedModel(f"%{node.name}: interval arithmetic has no kernel for a {node.op}", "use --numerics folded")


def repeats(net: Net, node: Node) -> int:
    """How often a gather reads a cell at most."""
    index = net.weight(node, "index")
    assert index is not None
    return int(np.bincount(index[index >= 0]).max(initial=0))


def product_tiles(numerics: Arithmetic, sizes: Sizes, columns: int, terms: int, cells: int = 0) -> Tiles:
    """A product's tile of BM rows, or pairs of a row and one of `cells` cells, and BN columns; RM x RN of its numbers lie in one thread.

    On a GPU three sums of each and the addresses of RM rows stay in registers of which two blocks fit an SM. A row of threads is so
    short that its weights are fewer than the threads: Triton moves what is more through shared memory, term by term. The interpreter's
    cost is a fixed one an operation: there a tile is as large as caches like, of as many cells as there are.
    """
    if sizes.emulate:
        bn = power(columns, 1, 128)
        bm = EMULATED // bn
        made, warps = {"BM": bm, "BN": bn, "RM": bm, "RN": bn}, 1
    else:
        bn, warps, across = power(columns, 16, 64), 4, 16
        own = 4 if numerics.type == "tl.float64" else 8
        made = {"BM": own * 32 * warps // across, "BN": bn, "RM": own, "RN": bn // across}
    made["BK"] = power(terms, 32, 64)
    if not cells:
        return Tiles(made["BM"], made, warps)
    span = power(cells, 1, made["BM"]) if sizes.emulate else 1
    return Tiles(made["BM"] // span, {**made, "SPAN": span}, warps)


class IntervalLowering(Lowering):
    """Writes the launches of one program; a program of kind RELATION takes the coefficients over the input in its buffer 1."""

    def __init__(self, emitter: Emitter, frames: Frames, numerics: Arithmetic, program: Program, sizes: Sizes = GPU) -> None:
        super().__init__(emitter, frames, numerics, program, sizes)
        check_supported(frames.net)
        if strange := [s for s in program.steps if s.op not in STEPS]:  # what Lowering has besides is folded arithmetic
            raise AssertionError(f"%{strange[0].node}: {strange[0].op} has no interval form")
        self.upper: dict[int, int] = {}
        self.input = frames.net.input.name
        if program.kind == RELATION and program.target == self.input:
            raise UnsupportedModel("the network's output is its input", "state the property over inputs alone")

    # ---- buffers and launches ---------------------------------------------------------------------------

    def _buffer(self, name: str, window: Window) -> int:
        number = super()._buffer(name, window)
        if number == 0 and self.program.kind == RELATION:
            every = whole(*extent(self.nodes[self.input])[:2])
            self.frontier[self.input] = FrontierEntry(every, super()._buffer(self.input, every))
        return number

    def _pair(self, name: str, window: Window) -> FrontierEntry:
        low = self._buffer(name, window)
        self.upper[low] = self._buffer(name, window)
        return FrontierEntry(window, low)

    def _ends(self, entry: FrontierEntry, low: str = "lo_m", high: str = "hi_m", slot: str = "slot") -> dict[str, str]:
        assert entry.buffer is not None
        ends = {f"{low}_ptr": f"buf:{entry.buffer}", f"{high}_ptr": f"buf:{self.upper.get(entry.buffer, entry.buffer)}"}
        return {**ends, f"{slot}_ptr": entry.slot or f"index:{self.state}"}

    def _outputs(self, out: FrontierEntry) -> dict[str, str]:
        assert out.buffer is not None
        return {"out_lo_ptr": f"buf:{out.buffer}", "out_hi_ptr": f"buf:{self.upper[out.buffer]}"}

    def _scalars_of_rows(self) -> dict[str, str]:
        rows = self._rows()
        return {**rows, "constant_lo_ptr": rows["constant_ptr"], "constant_hi_ptr": rows["error_ptr"]}

    def _row_constants(self, name: str, entry: FrontierEntry) -> tuple[Constants, Tiles]:
        """What every pass over the rows' cells on a node is told, and its tiles."""
        tiles = self.sizes.rows(self._terms(name, entry.window), tensors=2)
        return {
            "SLOT": entry.slot is not None, **self._size(name, entry.window), **place(entry.window), **self.frames.geometry(name),
            "INTERPRET": self.sizes.emulate,
        }, tiles  # fmt: skip

    # ---- bounds -----------------------------------------------------------------------------------------

    def _check(self, last: bool) -> None:
        names = list(self.frontier)
        for name in names:
            self.frontier[name] = self._write(name, self.frontier[name])
        for k, name in enumerate(names):
            entry = self.frontier[name]
            constants, tiles = self._row_constants(name, entry)
            constants |= {"FIRST": k == 0, "LAST": k == len(names) - 1}
            shared = {f"{s}_ptr": s for s in ("value", "raw", "group", "best", "raw_best", "done", "limit")}
            bind = {**self._scalars_of_rows(), **self._ends(entry), **self._box("box", name), **shared}
            self._launch("interval_check", constants, bind, tiles)
        if not last:
            self._compact()

    def _box(self, kind: str, name: str) -> dict[str, str]:
        """A node's own box ("box"), or that of its constants, b and what its exact product lacks ("term")."""
        return {"box_lo_ptr": f"{kind}_lo:{name}", "box_hi_ptr": f"{kind}_hi:{name}"}

    def _give(self, step: Step, *entries: FrontierEntry) -> None:
        """A relation's own coefficients wait over the input, and what arrives there joins them at once: no sum is left open."""
        if self.program.kind != RELATION or self.input not in step.to:
            super()._give(step, *entries)
            return
        for name, window, entry in zip(step.to, step.windows, entries, strict=True):
            if name == self.input:
                own = self.frontier[name]
                self.frontier[name] = self._join(name, own, FrontierEntry(window, entry.buffer, entry.slot, entry.sign), own.window)
            else:
                super()._give(Step(step.op, step.node, (name,), (window,)), entry)

    # ---- forms of an entry ------------------------------------------------------------------------------

    def _join(self, name: str, a: FrontierEntry, b: FrontierEntry | None, window: Window) -> FrontierEntry:
        """a, or a + b, on another window."""
        out, other = self._pair(name, window), b or a
        constants: Constants = {
            "SECOND": b is not None, "A_SLOT": a.slot is not None, "B_SLOT": b is not None and b.slot is not None,
            "A_SIGN": a.sign, "B_SIGN": other.sign, "C": extent(self.nodes[name])[2], "HO": window.h.size, "WO": window.w.size,
            **place(window), "AH": a.window.h.size, "AW": a.window.w.size, **place(a.window, "A_"),
            "BH": other.window.h.size, "BW": other.window.w.size, **place(other.window, "B_"), "INTERPRET": self.sizes.emulate,
        }  # fmt: skip
        bind = {
            **self._rows(), **self._ends(a, "a_lo", "a_hi", "a_slot"), **self._ends(other, "b_lo", "b_hi", "b_slot"),
            **self._outputs(out),
        }  # fmt: skip
        self._launch("interval_join", constants, bind, self.sizes.rows(self._terms(name, window), tensors=2))
        return out

    def _merge(self, node: Node, step: Step) -> None:
        if self.program.kind != RELATION or node.name != self.input:  # there they have met already
            super()._merge(node, step)

    # ---- steps ------------------------------------------------------------------------------------------

    def _take(self, node: Node) -> FrontierEntry:
        return self._write(node.name, self.frontier.pop(node.name))

    def _constants(self, step: Step, entry: FrontierEntry) -> None:
        """The node's own constants join, where they are to be paid: b, and what its exact product lacks, as a box of them."""
        if not self._charges(step, entry):
            return
        name = step.node
        constants, tiles = self._row_constants(name, entry)
        rows = self._scalars_of_rows()
        values = {"value_lo_ptr": rows["constant_lo_ptr"], "value_hi_ptr": rows["constant_hi_ptr"]}
        self._launch("interval_concretize", constants, {**rows, **self._ends(entry), **self._box("term", name), **values}, tiles)

    def _neurons(self, name: str) -> None:
        """The same for rows that are one neuron of the node."""
        tiles = Tiles(block=128, constants={"BR": 128}, warps=4)
        constants: Constants = {"C": extent(self.nodes[name])[2], **self.frames.geometry(name), "INTERPRET": self.sizes.emulate}
        self._launch("interval_neurons", constants, {**self._scalars_of_rows(), **self._box("term", name)}, tiles)

    def _try_slice(self, node: Node, step: Step) -> bool:
        """Rows that are single neurons of an affine layer become slices of its weights, both ends at once."""
        entry = self.frontier[node.name]
        if entry.buffer is not None or entry.sign != 1:
            return False
        if step.pays("product"):
            self._neurons(node.name)
        self._slice(node, step, self.frontier.pop(node.name), step.windows[0], charge=False)  # no scalars of folded arithmetic
        return True

    def _linear(self, node: Node, step: Step) -> None:
        if self._try_slice(node, step):
            return
        entry, window = self._take(node), step.windows[0]
        self._constants(step, entry)
        out = self._pair(step.to[0], window)
        n = self._terms(step.to[0], window)
        constants: Constants = {
            "T": self.numerics.type, "SLOT": entry.slot is not None, "K": node.size, "N": n, "INTERPRET": self.sizes.emulate
        }  # fmt: skip
        tiles = self.emitter.tiles_of("interval_dense", constants, self.numerics, product_tiles(self.numerics, self.sizes, n, node.size))
        bind = {**self._rows(), **self._ends(entry), "w_ptr": f"weight:{node.name}", **self._outputs(out)}
        self._launch("interval_dense", constants, bind, tiles, columns=-(-n // int(tiles.constants["BN"])))
        self._give(step, out)

    def _conv(self, node: Node, step: Step) -> None:
        if self._try_slice(node, step):
            return
        entry, to = self._take(node), step.windows[0]
        self._constants(step, entry)
        (kh, kw), (sh, sw), (dh, dw) = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
        p, groups, window = node.ints("p", (0, 0, 0, 0)), node.integer("g", 1), entry.window
        ci, (ph, pw) = extent(self.nodes[step.to[0]])[2], phases(node)
        constants: Constants = {
            "T": self.numerics.type, "SLOT": entry.slot is not None, "H": window.h.size, "W": window.w.size, "CO": node.shape[0],
            "G": groups, "HO": to.h.size, "WO": to.w.size, "CI": ci, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw,
            "TOP": window.h.offset * sh + p[0] - to.h.offset, "LEFT": window.w.offset * sw + p[1] - to.w.offset, **self._mask(step),
            "PH": ph, "PW": pw, "INTERPRET": self.sizes.emulate,
        }  # fmt: skip
        cells = -(-to.h.size // ph) * -(-to.w.size // pw)
        default = product_tiles(self.numerics, self.sizes, ci // groups, node.shape[0] // groups, cells)
        tiles = self.emitter.tiles_of("interval_conv", constants, self.numerics, default)
        out, span = self._pair(step.to[0], to), tiles.constants["SPAN"]
        columns = groups * -(-(ci // groups) // int(tiles.constants["BN"]))
        bind = {**self._rows(), **self._ends(entry), "w_ptr": f"weight:{node.name}", **self._outputs(out)}
        rows = replace(tiles, block=tiles.constants["BM"] // span)
        self._launch("interval_conv", constants, bind, rows, times=-(-cells // span) * ph * pw, columns=columns)
        self._give(step, out)

    def _scale(self, node: Node, step: Step) -> None:
        entry = self._take(node)
        self._constants(step, entry)
        out = self._pair(step.to[0], entry.window)
        constants, tiles = self._row_constants(node.name, entry)
        factor = {"factor_ptr": f"factor:{node.name}"}
        bind = {**self._rows(), **self._ends(entry), **factor, **self._outputs(out)}
        self._launch("interval_scale", constants, bind, tiles)
        self._give(step, out)

    def _relu(self, node: Node, step: Step) -> None:
        entry = self._take(node)
        out = self._pair(step.to[0], entry.window)
        constants, tiles = self._row_constants(node.name, entry)
        constants["LOWER"] = node.number("slope") not in (0.0, 1.0)
        tables = {f"{t}_ptr": f"{t}:{node.name}" for t in ("below", "above", "lower", "cut")} | self._box("box", node.name)
        bind = {**self._scalars_of_rows(), **self._ends(entry), **tables, **self._outputs(out)}
        self._launch("interval_relax", constants, bind, tiles)
        self._give(step, replace(out, due=step.pays("behind")))

    def _add(self, node: Node, step: Step, sign: int = 1) -> None:
        """Both branches share the coefficients; [-e, e] is its own negative, so a sign still to be applied changes nothing there."""
        entry = self.frontier.pop(node.name)
        if entry.buffer is not None:
            self._constants(step, entry)
        elif step.pays("product"):
            self._neurons(node.name)
        entry = replace(entry, due=False)
        self._give(step, entry, replace(entry, sign=entry.sign * sign))

    def _concat(self, node: Node, step: Step) -> None:
        """Coefficients are cut into those of the operands, both ends alike; nothing is rounded."""
        entry, begin, made = self._take(node), 0, []
        for name, window in zip(step.to, step.windows, strict=True):
            inner, outer = part_run(self.nodes[name], node)
            size, terms = self._terms(name, window), self._terms(node.name, entry.window)
            constants: Constants = {
                "SLOT": entry.slot is not None, "FROM": terms, "SIZE": size, "INNER": inner, "OUTER": outer, "BEGIN": begin
            }  # fmt: skip
            out = self._pair(name, window)
            self._move("part_rows", constants, entry, {}, out, size)
            begin += inner
            made.append(out)
        self._give(step, *made)

    def _maxpool(self, node: Node, step: Step) -> None:
        entry, to = self._take(node), step.windows[0]
        out, values = self._pair(node.inputs[0], to), to.cells * extent(node)[2]
        constants: Constants = {**pool_shape(self, node, entry, to), "INTERPRET": self.sizes.emulate}
        tiles = self.sizes.rows(max(values, self._terms(node.name, entry.window)), tensors=2)
        tables = {"winner_ptr": f"winner:{node.name}", **self._box("box", node.name)}
        bind = {**self._scalars_of_rows(), **self._ends(entry), **tables, **self._outputs(out)}
        self._launch("interval_pool", constants, bind, tiles, columns=-(-values // int(tiles.constants["BQ"])) + 1)
        self._give(step, out)

    def _gather(self, node: Node, step: Step) -> None:
        """Every coefficient moves to the cell that it read, or is dropped where that is padding; those that meet in a cell add up."""
        entry, source, window = self._take(node), step.to[0], step.windows[0]
        size, cells, terms = self._terms(source, window), 1 if window.whole else window.cells, self._terms(node.name, entry.window)
        read_most = repeats(self.frames.net, node)
        constants: Constants = {
            "T": self.numerics.type, "SLOT": entry.slot is not None, "FROM": terms, "SIZE": size, "CO": terms // cells,
            "CI": size // cells, "REPEATS": read_most,
        }  # fmt: skip
        kind, out = "cell" if window.whole else "channel", self._pair(source, window)
        readers = {"starts_ptr": f"{kind}_starts:{node.name}", "readers_ptr": f"{kind}_readers:{node.name}"}
        if read_most > 1:
            tiles, ends = self.sizes.rows(size, tensors=2), {**self._rows(), **self._ends(entry), **readers, **self._outputs(out)}
            constants["INTERPRET"] = self.sizes.emulate
            self._launch("interval_gather", constants, ends, tiles, columns=-(-size // int(tiles.constants["BQ"])))
        else:
            self._move("gather_rows", constants, entry, readers, out, size)
        self._give(step, out)

    def _move(self, function: str, constants: Constants, entry: FrontierEntry, more: dict[str, str], out: FrontierEntry, size: int) -> None:
        tiles, ends, to = self.sizes.rows(size), self._ends(entry), self._outputs(out)
        for end in ("lo", "hi"):
            bind = {**self._rows(), "m_ptr": ends[f"{end}_m_ptr"], "slot_ptr": ends["slot_ptr"], **more, "out_ptr": to[f"out_{end}_ptr"]}
            self._launch(function, constants, bind, tiles, columns=-(-size // int(tiles.constants["BQ"])))
