"""Plan program -> launches: which specialised kernel runs on which buffers, in what order. The lowest form of a Plan.

Everything is static: buffers, slots, tables and the order do not depend on images or on how many rows are left, which
the kernels read on the device. So a program runs without the host looking on, and can be captured once and replayed.

Symbols name tensors: `buf:3` coefficients, `image:1` a row array of state 1 (rows are packed anew, into the next state,
after every check), `from:1` where the rows of state 1 lay in the state before, `lo:conv1` a table, `weight:conv1` a layer's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polytriton.arithmetic import Arithmetic
from polytriton.ir.launches import Constants, Launch, Launches
from polytriton.ir.net import Node
from polytriton.ir.plan import Axis, Program, Step, Window, extent
from polytriton.kernels.choose import GPU, Sizes, Tiles
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.sequence import Frames, FrontierEntry, phases, place
from polytriton.kernels.steps import concat, gather, maxpool, scale, slope
from polytriton.passes.windows import input_axis
from polytriton.rounding import dot_error, one_rounding, sum_error

ROWS = ("image", "row_h", "row_w", "constant", "error", "index")


class Lowering:
    """Writes the launches of one program."""

    def __init__(self, emitter: Emitter, frames: Frames, numerics: Arithmetic, program: Program, sizes: Sizes = GPU) -> None:
        self.emitter, self.frames, self.numerics, self.program = emitter, frames, numerics, program
        self.sizes = sizes
        self.nodes = frames.net.by_name
        self.pending = dict.fromkeys(frames.plan.pending, one_rounding(numerics.u))  # relative to |M_j x_j|
        self.frontier: dict[str, FrontierEntry] = {}
        self.arriving: dict[str, list[FrontierEntry]] = {}
        self.out = Launches(program)
        self.state = 0
        self.step = program.steps[0]

    def run(self) -> Launches:
        for step in self.program.steps:
            self.step = step
            if step.op == "start":
                whole = step.windows[0]
                self.frontier[step.node] = FrontierEntry(whole, None if self.program.kind == "bound" else self._buffer(step.node, whole))
                if self.program.kind == "bound":
                    self._compact()  # rows whose neuron the other sign has settled leave at once
                continue
            if step.check:
                self._check(step.op == "input")
            self.out.ops[self.state] = self.out.ops.get(self.state, 0) + step.ops
            if step.op != "input":
                getattr(self, "_" + step.op)(self.nodes[step.node], step)
        return self.out

    # ---- buffers and launches ---------------------------------------------------------------------------

    def _buffer(self, name: str, window: Window) -> int:
        return self._values(window.cells * extent(self.nodes[name])[2])

    def _values(self, count: int) -> int:
        """A buffer of so many values a row, alive from now on."""
        self.out.buffers.append(count)
        self.out.lives.append([len(self.out.steps), len(self.out.steps)])
        return len(self.out.buffers) - 1

    def _touch(self, buffer: int | None) -> None:
        if buffer is not None:
            self.out.lives[buffer][1] = len(self.out.steps)

    def _launch(
        self, function: str, constants: Constants, bind: Mapping[str, str], tiles: Tiles, cells: int = 1, times: int = 1, columns: int = 1
    ) -> None:
        every = {**constants, **tiles.constants}
        step = f"%{self.step.node} in {self.program.kind} %{self.program.target}"
        kernel = self.emitter.kernel(function, every, self.numerics, tiles, step=step)
        names = tuple(bind[p] for p in kernel.parameters)
        for name in names:
            if name.startswith("buf:"):
                self._touch(int(name[4:]))
        self.out.steps.append(Launch(kernel, names, tiles.block, cells, times, columns))

    def _rows(self) -> dict[str, str]:
        """The row arrays of the present state."""
        return {f"{name}_ptr": f"{name}:{self.state}" for name in (*ROWS, "count", "sign", "channel")}

    def _entry(self, entry: FrontierEntry, name: str = "m", slot: str = "slot") -> dict[str, str]:
        return {f"{name}_ptr": f"buf:{entry.buffer}", f"{slot}_ptr": entry.slot or f"index:{self.state}"}

    def _pending(self, step: Step) -> float:
        """What the step pays at once for the rounding of M_j lambda_j, relative to |M_j x_j|."""
        return self.pending[step.node] if step.pays("relu") else 0.0

    def _terms(self, name: str, window: Window) -> int:
        return window.cells * extent(self.nodes[name])[2]

    def _size(self, name: str, window: Window) -> Constants:
        c = extent(self.nodes[name])[2]
        return {"SIZE": window.cells * c, "LINE": window.w.size * c, "C": c}

    # ---- bounds -----------------------------------------------------------------------------------------

    def _check(self, last: bool) -> None:
        names = list(self.frontier)
        for name in names:
            self.frontier[name] = self._write(name, self.frontier[name])
        for k, name in enumerate(names):
            entry = self.frontier[name]
            terms = self._terms(name, entry.window)
            constants = {
                "SLOT": entry.slot is not None, **self._size(name, entry.window), **place(entry.window), **self.frames.geometry(name),
                "REL": dot_error(terms + len(names) - 1) + self.pending.get(name, 0.0), "NODES": len(names),
                "FIRST": k == 0, "LAST": k == len(names) - 1,
            }  # fmt: skip
            tables = {"lo_ptr": f"lo:{name}", "hi_ptr": f"hi:{name}", "floor_ptr": f"underflow:{name}"}
            shared = {f"{s}_ptr": s for s in ("value", "raw", "slack", "group", "best", "raw_best", "done", "limit")}
            tiles = self.emitter.tiles_of("concretize_rows", constants, self.numerics, self.sizes.rows(terms))
            self._launch("concretize_rows", constants, {**self._rows(), **self._entry(entry), **tables, **shared}, tiles)
        if not last:
            self._compact()

    def _compact(self) -> None:
        """Rows that are done leave: the others move to the next state, coefficients stay and are found by slot."""
        old, new = self._rows(), self.state + 1
        neuron = any(e.buffer is None for e in self._entries())
        shared = {"group_ptr": "group", "done_ptr": "done", "blocks_ptr": "blocks"}
        tiles = Tiles(block=1024, constants={"B": 1024}, warps=4)
        self._launch("count_staying", {}, {**old, **shared}, tiles)
        to = {f"to_{name}_ptr": f"{name}:{new}" for name in (*ROWS, "count", "sign", "channel")}
        constants: Constants = {"NEURON": neuron, "NB": 1024}
        self._launch("move_rows", constants, {**old, **shared, **to, "from_ptr": f"from:{new}"}, tiles)
        self.state = new
        self.out.slots.append(f"from:{new}")
        moved: dict[str | None, str] = {None: f"from:{new}"}
        for slot in dict.fromkeys(e.slot for e in self._entries() if e.buffer is not None):
            if slot is not None:
                moved[slot] = f"slot:{len(self.out.slots)}"
                self.out.slots.append(moved[slot])
                bind = {**self._rows(), "from_ptr": f"from:{new}", "slot_ptr": slot, "to_slot_ptr": moved[slot]}
                self._launch("follow_slots", {}, bind, tiles)
        self.frontier = {k: e if e.buffer is None else replace(e, slot=moved[e.slot]) for k, e in self.frontier.items()}
        self.out.begins.append(len(self.out.steps))

    def _entries(self) -> list[FrontierEntry]:
        return list(self.frontier.values())

    # ---- forms of an entry ------------------------------------------------------------------------------

    def _give(self, step: Step, *entries: FrontierEntry) -> None:
        for name, window, entry in zip(step.to, step.windows, entries, strict=True):
            entry = replace(entry, window=window)
            if name in self.frontier:
                self.arriving.setdefault(name, []).append(entry)
            else:
                self.frontier[name] = entry

    def _write(self, name: str, entry: FrontierEntry) -> FrontierEntry:
        """Coefficients in a buffer, with their sign applied."""
        if entry.buffer is None:
            out = self._buffer(name, entry.window)
            c = extent(self.nodes[name])[2]
            tiles = self.sizes.rows(c)
            unused = ["H", "W", "C", "NH", "NW", "GAP_RH", "GAP_H", "GAP_RW", "GAP_W", "IH", "IW", "RH", "OH", "RW", "OW"]
            constants: Constants = {
                **dict.fromkeys(unused, 0), "T": self.numerics.type, "CHARGE": False, "SLICE": False, "BIAS": "none", "MASK": False,
                "CI": c, "HO": 1, "WO": 1,
            }  # fmt: skip
            bind = {**self._rows(), "out_ptr": f"buf:{out}", **dict.fromkeys(("bias_ptr", "first_ptr", "w_ptr"), "")}
            self._launch("start_rows", constants, bind, tiles, columns=-(-c // int(tiles.constants["BQ"])))
            entry = replace(entry, buffer=out, slot=None)
            if entry.sign == 1:
                return entry
        if entry.sign == 1:
            return entry
        return self._join(name, entry, None, entry.window)

    def _join(self, name: str, a: FrontierEntry, b: FrontierEntry | None, window: Window) -> FrontierEntry:
        """a, or a + b, on another window."""
        out, constants = self._buffer(name, window), self._joining(name, a, b, window)
        tables = {"lo_ptr": f"lo:{name}", "hi_ptr": f"hi:{name}", "floor_ptr": f"underflow:{name}", "out_ptr": f"buf:{out}"}
        bind = {**self._rows(), **self._entry(a, "a", "a_slot"), **self._entry(b or a, "b", "b_slot"), **tables}
        self._launch("join_rows", constants, bind, self.sizes.rows(self._terms(name, window), tensors=2))
        return FrontierEntry(window, out)

    def _joining(self, name: str, a: FrontierEntry, b: FrontierEntry | None, window: Window) -> Constants:
        other, grow = b or a, sum_error(self._terms(name, window))
        pending = self._pending(self.step) * grow if b is not None else 0.0
        own = one_rounding(self.numerics.u) * grow if self.step.pays("sum") else 0.0
        return {
            "SECOND": b is not None, "A_SLOT": a.slot is not None, "B_SLOT": b is not None and b.slot is not None,
            "A_SIGN": a.sign, "B_SIGN": other.sign, "C": extent(self.nodes[name])[2], "HO": window.h.size, "WO": window.w.size,
            **place(window), "AH": a.window.h.size, "AW": a.window.w.size, **place(a.window, "A_"),
            "BH": other.window.h.size, "BW": other.window.w.size, **place(other.window, "B_"), **self.frames.geometry(name),
            "A_REL": pending, "B_REL": pending, "OUT_REL": own,
        }  # fmt: skip

    # ---- steps ------------------------------------------------------------------------------------------

    def _relu(self, node: Node, step: Step) -> None:
        entry = self._write(node.name, self.frontier.pop(node.name))
        if step.pays("relu") or node.number("slope") not in (0.0, 1.0):
            slope(self, node, step, entry)
            return
        source, behind = node.inputs[0], step.pays("behind")
        if behind and self.nodes[source].op in ("conv", "linear") and self._fuses(self.nodes[source]):
            self.frontier[source] = replace(entry, relu=node.name, due=True)
            return
        out = self._buffer(node.name, entry.window)
        self._row_pass(entry, source, node.name, charge=behind, out=out)
        self._give(step, FrontierEntry(entry.window, out))

    def _fuses(self, node: Node) -> bool:
        """Whether the product's kernel applies the ReLU itself: it does so anew for every tap and column tile, and its operands no longer
        go straight to shared memory. So it does where there is one of each.
        """
        taps, n, k, ways = 1, self.nodes[node.inputs[0]].size, node.size, 1
        if node.op == "conv":
            (kh, kw), (ph, pw), groups = node.ints("k"), phases(node), node.integer("g", 1)
            taps, ways = -(-kh // ph) * -(-kw // pw), ph * pw
            n, k = extent(self.nodes[node.inputs[0]])[2] // groups, node.shape[0] // groups
        return taps <= self.numerics.fuse_taps and n <= self.sizes.product_columns(self.numerics, k, n, ways)

    def _scalars(self, entry: FrontierEntry, source: str, relu: str, charge: bool) -> tuple[Constants, dict[str, str]]:
        """Constants and tensors of a row pass: the ReLU `relu` over `source` ("" for none), and substituting `source`."""
        window = entry.window
        over = relu or source
        layer = self.nodes[source].op in ("conv", "linear")
        constants: Constants = {
            "RELU": bool(relu), "CHARGE": charge, "SLOT": entry.slot is not None, **place(window), **self.frames.geometry(over),
            **self.frames.geometry(source, "T_"), "BIAS": "line" if layer else "none", "SUM_ERROR": sum_error(self._terms(over, window)),
        }  # fmt: skip
        tables = {f"{t}_ptr": f"{t}:{over}" for t in ("below", "above", "cut")}
        tables |= {"t_ptr": f"t:{source}", "bias_ptr": f"bias:{source}", "floor_ptr": f"floor:{source}"}
        return constants, {**self._rows(), **self._entry(entry), **tables}

    def _row_pass(self, entry: FrontierEntry, source: str, relu: str, charge: bool, out: int | None) -> None:
        constants, bind = self._scalars(entry, source, relu, charge)
        constants |= self._size(relu or source, entry.window)
        if charge and self.nodes[source].op == "linear":  # an image of a dense layer has a bias a cell
            constants |= {"BIAS": "image", **dict.fromkeys(("RH", "OH", "RW", "OW"), 0)}
        tiles = self.emitter.tiles_of("relax_rows", constants, self.numerics, self.sizes.rows(self._terms(relu or source, entry.window)))
        self._launch("relax_rows", constants, {**bind, "out_ptr": f"buf:{out}"}, tiles)

    def _charges(self, step: Step, entry: FrontierEntry) -> bool:
        """Whether an affine step's kernel writes its scalars: they are its own to pay, or the ReLU before left them to it."""
        return step.pays("product") or entry.due

    def _linear(self, node: Node, step: Step) -> None:
        entry, window = self.frontier.pop(node.name), step.windows[0]
        if entry.buffer is None and entry.sign == 1:
            self._slice(node, step, entry, window, step.pays("product"))
            return
        entry = self._write(node.name, entry)
        constants, bind = self._scalars(entry, node.name, entry.relu, self._charges(step, entry))
        k, n = node.size, self._terms(step.to[0], window)
        _, w, c = extent(node)  # an image's tables may have a margin between their lines; its bias has none
        constants |= dict.fromkeys(("RH", "OH", "RW", "OW"), 0)  # its rows lie on the whole of the node
        constants |= {"T": self.numerics.type, "FORM": self.numerics.form, "K": k, "N": n, "LINE": w * c, "C": k}
        tiles = self.emitter.tiles_of("dense_step", constants, self.numerics, self.sizes.product(self.numerics, 0, k, n))
        scalars, parts = bool(constants["RELU"] or constants["CHARGE"]), tiles.constants["SK"]
        out = made = self._values(parts * n)
        bind |= {"w_ptr": f"weight:{node.name}", "out_ptr": f"buf:{made}"}
        columns = -(-n // tiles.constants["BN"]) * parts + scalars
        self._launch("dense_step", constants, bind, tiles, columns=columns)
        if parts > 1:
            out = self._values(n)
            bind = {**self._rows(), "parts_ptr": f"buf:{made}", "out_ptr": f"buf:{out}"}
            tiles = self.sizes.rows(n)
            columns = -(-n // tiles.constants["BQ"])
            self._launch("sum_parts", {"T": self.numerics.type, "N": n, "SK": parts}, bind, tiles, columns=columns)
        self._give(step, FrontierEntry(window, out))

    def _conv(self, node: Node, step: Step) -> None:
        entry, out_window = self.frontier.pop(node.name), step.windows[0]
        if entry.buffer is None and entry.sign == 1:
            self._slice(node, step, entry, out_window, step.pays("product"))
            return
        entry = self._write(node.name, entry)
        constants, bind = self._scalars(entry, node.name, entry.relu, self._charges(step, entry))
        (kh, kw), (sh, sw), (dh, dw) = node.ints("k"), node.ints("s", (1, 1)), node.ints("d", (1, 1))
        p, groups, window = node.ints("p", (0, 0, 0, 0)), node.integer("g", 1), entry.window
        co, ci = node.shape[0], extent(self.nodes[step.to[0]])[2]
        ph, pw = phases(node)
        constants |= {
            "T": self.numerics.type, "FORM": self.numerics.form, "H": window.h.size, "W": window.w.size, "CO": co, "G": groups,
            "HO": out_window.h.size, "WO": out_window.w.size, "CI": ci, "KH": kh, "KW": kw, "SH": sh, "SW": sw, "DH": dh, "DW": dw,
            "TOP": window.h.offset * sh + p[0] - out_window.h.offset, "LEFT": window.w.offset * sw + p[1] - out_window.w.offset,
            **self._mask(step), "PH": ph, "PW": pw,
        }  # fmt: skip
        out = self._buffer(step.to[0], out_window)
        cells = -(-out_window.h.size // ph) * -(-out_window.w.size // pw)
        default = self.sizes.product(self.numerics, cells * ph * pw, co // groups, ci // groups, ph * pw)
        tiles = self.emitter.tiles_of("conv_step", constants, self.numerics, default)
        scalars = bool(constants["RELU"] or constants["CHARGE"])
        columns = groups * -(-(ci // groups) // int(tiles.constants["BN"])) + scalars
        bind |= {"w_ptr": f"weight:{node.name}", "out_ptr": f"buf:{out}"}
        span = tiles.constants["SPAN"]
        rows = replace(tiles, block=tiles.constants["BM"] // span)
        self._launch("conv_step", constants, bind, rows, times=-(-cells // span) * ph * pw, columns=columns)
        self._give(step, FrontierEntry(out_window, out))

    def _mask(self, step: Step) -> Constants:
        h, w, _ = extent(self.nodes[step.to[0]])
        known: Constants = {"MASK": step.mask, "IH": h, "IW": w, **place(step.windows[0], "TO_")}
        return known if step.mask else {**dict.fromkeys(known, 0), "MASK": False}  # else nobody reads them

    def _slice(self, node: Node, step: Step, entry: FrontierEntry, window: Window, charge: bool) -> None:
        """Single neurons of an affine layer become slices of its weights."""
        h, w, c = extent(node)
        source = step.to[0]
        sh, sw, sc = extent(self.nodes[source])
        if node.op == "conv":
            k, d = node.ints("k"), node.ints("d", (1, 1))
            s, p = node.ints("s", (1, 1)), node.ints("p", (0, 0, 0, 0))
            natural = Window(*(input_axis(a, k[i], s[i], p[i], d[i]) for i, a in enumerate((entry.window.h, entry.window.w))))
        else:
            natural = Window(Axis(sh, 0, 0), Axis(sw, 0, 0))
        out = self._buffer(source, window)
        mask = self._mask(step)
        constants: Constants = {
            "T": self.numerics.type, "CHARGE": charge, "SLICE": True, "BIAS": "line", "H": h, "W": w, "C": c,
            "NH": natural.h.size, "NW": natural.w.size, "CI": sc, "HO": window.h.size, "WO": window.w.size,
            "GAP_RH": natural.h.stride - window.h.stride, "GAP_H": window.h.offset - natural.h.offset,
            "GAP_RW": natural.w.stride - window.w.stride, "GAP_W": window.w.offset - natural.w.offset,
            "MASK": mask["MASK"], "IH": mask["IH"], "IW": mask["IW"], **place(window),
        }  # fmt: skip
        size = self._terms(source, window)
        tiles = self.sizes.rows(size)
        layer = {"bias_ptr": f"bias:{node.name}", "first_ptr": f"first:{node.name}", "w_ptr": f"rows:{node.name}"}
        bind = {**self._rows(), **layer, "out_ptr": f"buf:{out}"}
        self._launch("start_rows", constants, bind, tiles, columns=-(-size // int(tiles.constants["BQ"])))
        self._give(step, FrontierEntry(window, out))

    def _add(self, node: Node, step: Step, sign: int = 1) -> None:
        entry = self.frontier.pop(node.name)
        if self._charges(step, entry):
            if entry.buffer is None:
                h, w, c = extent(node)
                tiles = Tiles(block=128, constants={"BR": 128}, warps=4)
                bind = {**self._rows(), "bias_ptr": "", "first_ptr": f"first:{node.name}"}
                self._launch("pay_neurons", {"BIAS": "none", "H": h, "W": w, "C": c}, bind, tiles)
            else:
                self._row_pass(entry, node.name, "", True, None)
        entry = replace(entry, due=False)
        self._give(step, entry, replace(entry, sign=entry.sign * sign))

    def _sub(self, node: Node, step: Step) -> None:
        self._add(node, step, -1)

    def _merge(self, node: Node, step: Step) -> None:
        a, b = self.frontier.pop(node.name), self.arriving[node.name].pop(0)
        a, b = (self._write(node.name, e) if e.buffer is None else e for e in (a, b))
        self.frontier[node.name] = self._join(node.name, a, b, step.windows[0])

    def _dense(self, node: Node, step: Step) -> None:
        entry = self.frontier[node.name]
        entry = self._write(node.name, entry) if entry.buffer is None else entry
        self.frontier[node.name] = self._join(node.name, entry, None, step.windows[0])

    _scale, _maxpool, _concat, _gather = scale, maxpool, concat, gather
