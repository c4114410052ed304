"""Writes a program's steps down as a tape, for all rows that come the same way: `_Writer` walks them without rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from polytriton.ir.plan import Program, Step, Window
from polytriton.passes.windows import margins
from polytriton.rounding import one_rounding, sum_error
from polytriton.runtime.cpu import tape_loop as loop
from polytriton.runtime.cpu.blocks import Packed
from polytriton.runtime.cpu.products import Compact, conv_shape, reach
from polytriton.runtime.cpu.scalars import addition_error
from polytriton.runtime.cpu.tape import NEURON, Ending, EndingKey, Tape, TapeEntry
from polytriton.runtime.cpu.tape_code import TapeCode, join
from polytriton.runtime.cpu.torch_backend import TorchBackend, bias_lines
from polytriton.runtime.narrow import Narrow, lies_between
from polytriton.runtime.tables import Tables

SLOTS, ROOM = 62, 8  # bits of a whole number, but for its sign; slots that a step takes at most
FIRST, DEAR = 5 * 10**5, 2 * 10**7  # operations of an image's tables for which a query's first tape ends, and any other
WRITTEN = "merge", "relu", "dense"  # steps that take coefficients: single neurons are written out for them


def record(
    backend: TorchBackend, tables: Tables, program: Program, at: int, image: int | None, entries: dict[str, TapeEntry], early: bool
) -> Tape | None:
    """The tape from step `at` on, for rows with these entries (whose slots are numbers of no meaning yet); None where a walk is as good.

    `early`: it ends before a step whose tables are dear and not made yet, once rows may have left: where none is left nobody reads them.
    """
    writer, rest, dear = _Writer(backend, tables, program, image, entries), None, FIRST if at == 1 else DEAR
    for k in range(at, len(program.steps)):
        rest = writer.find_rest(k)
        if rest is not None or (early and writer.missing_ops(k) >= dear) or not writer.write(k):
            break
    tape = writer.tape(rest)
    if tape.steps <= 1:
        return None
    for key, place in writer.endings.items():
        ending = Ending(tape, *place)
        if ending.steps < tape.steps and not early:  # where a tape is full nothing follows, and another goes on
            tables.endings.setdefault(key, ending)
    return tape


class _Writer:
    """Walks a program without rows. The methods named after operators say what their namesakes in walk.py do."""

    def __init__(
        self, backend: TorchBackend, tables: Tables, program: Program, image: int | None, entries: dict[str, TapeEntry]
    ) -> None:
        self.backend, self.tables, self.kit, self.program, self.image = backend, tables, tables.kit, program, image
        self.code = TapeCode()
        self.checks = self.steps = 0
        self.endings: dict[EndingKey, tuple[int, int, int, int, int]] = {}
        self.frontier: dict[str, TapeEntry] = {}
        self.arriving: dict[str, list[TapeEntry]] = {}
        for name, held in entries.items():
            slot = NEURON if held.slot == NEURON else self.code.slot(self._size(name, held))
            self.frontier[name] = TapeEntry(slot, held.window, held.narrow, held.owes)
        self.before = {name: held.slot for name, held in self.frontier.items() if held.slot != NEURON}

    def tape(self, rest: Ending | None) -> Tape:
        """All that has been written; from here on the rest of another tape."""
        waiting = {name: entries for name, entries in self.arriving.items() if entries}
        tape = self.code.tape(self.steps, self.checks, self.before, self.frontier, waiting)
        return tape if rest is None else join(tape, rest, next(iter(self.frontier.values())).slot)

    def find_rest(self, k: int) -> Ending | None:
        """What is written already of the steps from a ReLU on that reads the only entry; where nothing is, the place is noted."""
        if self.program.steps[k].op != "relu" or len(self.frontier) != 1 or any(self.arriving.values()):
            return None
        (held,) = self.frontier.values()
        if held.slot == NEURON:
            return None
        owes = 0 if held.owes is None else held.owes.data_ptr()
        key = self.kit.endings(self.program)[k], self.image, held.window, held.narrow is not None, owes
        rest = self.tables.endings.get(key)
        if rest is None:
            self.endings[key] = held.slot, len(self.code.lines), len(self.code.sizes), self.checks, self.steps
        elif len(self.code.sizes) + len(rest.tape.sizes) - rest.slots > SLOTS:
            return None
        return rest

    def missing_ops(self, k: int) -> int:
        """What making tables for this and all later steps takes; 0 where no row can have left, or the step reads what is there."""
        step = self.program.steps[k]
        name = self.kit.nodes[step.node].inputs[0] if step.op == "relu" and step.pays("behind") else step.node
        waits = self.checks > 0 and name in self.kit.forward.layers and not self.tables.is_charged(name)
        return self.tables.missing_ops(self.program.steps[k:]) if waits else 0

    def write(self, k: int) -> bool:
        """Whether there are instructions for the step, which are written then."""
        step, coming = self.program.steps[k], self.program.steps[k + 1 : k + 3]
        if len(self.code.sizes) + ROOM > SLOTS or not self._knows(step):
            return False
        if step.check:
            self._check(step)
            self.checks += 1
        if step.op in WRITTEN and self._is_neuron(step.node):
            self._write_out(step.node)
        if step.op == "linear":
            self._linear(step, coming)
        elif step.op != "input":
            getattr(self, "_" + step.op)(step)
        self.steps += 1
        return True

    # ---- what there are instructions for ------------------------------------------------------------------

    def _knows(self, step: Step) -> bool:
        if step.check and len(self.frontier) > loop.MOST:
            return False
        if step.op in ("input", "add", "sub", "merge", "dense"):
            return True
        node = self.kit.nodes[step.node]
        if step.op == "relu":
            varies = step.pays("behind") and self.kit.varies(node.inputs[0])
            return not varies and self.tables.lines(node).lower_cut is None
        if step.op in ("linear", "conv"):
            held = self._standing(step.node)
            if step.op == "conv" and held and held[0].slot == NEURON:
                return margins(reach(node, held[0].window), step.windows[0]) is not None
            return self.kit.sums_in_blocks(self.kit.forward.layers[step.node])
        return False

    def _is_neuron(self, name: str) -> bool:
        """Whether one of the entries at a node is a single neuron."""
        return any(held.slot == NEURON for held in self._standing(name))

    # ---- instructions -------------------------------------------------------------------------------------

    def _place(self, name: str, window: Window, narrow: Narrow | None = None) -> tuple[int, ...]:
        if narrow is not None:
            return 0, 0, 0, 0, 0, 1, len(narrow.cells)
        frame = self.kit.frames[name]
        return *frame.origin(window), window.h.size, window.w.size * frame.channels

    def _size(self, name: str, held: TapeEntry) -> int:
        *_, height, line = self._place(name, held.window, held.narrow)
        return height * line

    # ---- frontier -----------------------------------------------------------------------------------------

    def _standing(self, name: str) -> list[TapeEntry]:
        """The entries at a node."""
        return [self.frontier[name], *self.arriving.get(name, [])] if name in self.frontier else []

    def _write_out(self, name: str) -> None:
        """Single neurons at a node become coefficients."""
        self.frontier[name] = self._dense_entry(name, self.frontier[name])
        if name in self.arriving:
            self.arriving[name] = [self._dense_entry(name, held) for held in self.arriving[name]]

    def _dense_entry(self, name: str, held: TapeEntry) -> TapeEntry:
        """The entry as coefficients, in a slot of its own where it is a single neuron."""
        if held.slot != NEURON:
            return held
        out = self.code.slot(self._size(name, held))
        self.code.emit(loop.UNIT, out=out, reals=[held.factor])
        return TapeEntry(out, held.window)

    def _take(self, name: str) -> TapeEntry:
        held = self.frontier.pop(name)
        self._pay_point(name, held)
        return held

    def _give(self, step: Step, *entries: TapeEntry) -> None:
        for name, entry in zip(step.to, entries, strict=True):
            if name in self.frontier:
                self.arriving.setdefault(name, []).append(entry)
            else:
                self.frontier[name] = entry

    def _pay_point(self, name: str, held: TapeEntry) -> None:
        if held.owes is not None:
            self.code.emit(loop.POINT, held.slot, 0, self._place(name, held.window, held.narrow), [self.code.address(held.owes)])

    def _give_product(self, step: Step, held: TapeEntry) -> None:
        """An affine step's result, which owes the value at its centre: at once, where it has no pass of its own to come."""
        found, name = self.tables.centre_tables(step.node), step.to[0]
        waits = name in self.frontier
        if found is not None and waits:
            self._pay_point(name, TapeEntry(held.slot, held.window, None, found[1]))
        elif found is not None:
            owes = found[1] if held.narrow is None else held.narrow.point(step.node, found[1])
            held = TapeEntry(held.slot, held.window, held.narrow, owes)
        self._give(step, held)

    def _charge(self, name: str, held: TapeEntry) -> None:
        """The constant and the error of substituting an affine node."""
        if held.slot == NEURON:
            self._charge_neuron(name, held.factor)
            return
        place = self._place(name, held.window)
        t, floor = self.tables.charge(name)
        bias = self.tables.constants(name, held.window.w.size)
        scale = sum_error(place[-2] * place[-1])
        rest = self.code.address(t), self.code.address(bias), self.code.address(floor), *bias_lines(bias)
        self.code.emit(loop.CHARGE, held.slot, 0, place, rest, [scale])

    def _charge_neuron(self, name: str, factor: float) -> None:
        first, layer = self.tables.first(name), self.kit.forward.layers.get(name)
        _, h, w, c = first.shape
        bias = None if layer is None else layer.b
        rest = self.code.address(first), self.code.address(bias), int(layer is not None and layer.node.op == "conv")
        self.code.emit(loop.CHARGE_BEGIN, place=(h * w * c, 0, w * c, c), rest=rest, reals=[factor])

    # ---- bounds -------------------------------------------------------------------------------------------

    def _check(self, step: Step) -> None:
        entries = list(self.frontier.items())
        floors, charges = [], []
        for k, (name, held) in enumerate(entries):
            place = self._place(name, held.window, held.narrow)
            low, high = self.tables.box(name) if held.narrow is None else held.narrow.box
            m = self._dense_entry(name, held).slot
            self.code.emit(loop.CANDIDATE, m, 0, place, [*map(self.code.address, (low, high, held.owes)), k])
            if held.slot == NEURON:
                self.code.drop(m)
            self.frontier[name] = TapeEntry(held.slot, held.window, held.narrow, factor=held.factor)
            floors.append(self.code.address(self.tables.floor(name)))
            terms = place[-2] * place[-1] + len(entries) - 1
            charges.append(self.kit.candidate_error(name, terms))
        charges += [0.0] * (loop.REALS - 1 - len(charges)) + [addition_error(len(entries))]
        self.code.emit(loop.SETTLE, rest=[len(entries), *floors], reals=charges)
        waiting = [held for parts in self.arriving.values() for held in parts]
        # RELAX reads the rows that stay where they are
        lazy = step.op == "relu" and step.pays("behind") and len(entries) + len(waiting) == 1 and not step.pays("relu")
        slots = {held.slot for held in (*self.frontier.values(), *waiting)} - {NEURON}
        lazy, live = lazy and bool(slots), sum(1 << slot for slot in slots)
        self.code.emit(loop.LEAVE, rest=[step.op == "input", lazy, live, self.checks])

    # ---- steps --------------------------------------------------------------------------------------------

    def _relu(self, step: Step) -> None:
        node = self.kit.nodes[step.node]
        source, held = node.inputs[0], self.frontier.pop(step.node)
        narrow = held.narrow
        place = self._place(node.name, held.window, narrow)
        terms = place[-2] * place[-1]
        if step.pays("relu"):
            self._weigh(node.name, held, first=True)
            self._pay(self.kit.pending[node.name] * sum_error(terms), self.tables.floor(node.name))
        gap = (self.tables.lines(node) if narrow is None else narrow).gap
        if not step.pays("behind"):
            self._relax(step, held, place, gap)
            return
        if narrow is None:
            lines, then = self.tables.lines(node), self._place(source, held.window)
            (t, floor), bias = self.tables.charge(source), self.tables.constants(source, held.window.w.size)
            below, above, cut = lines.below, lines.above, lines.upper_cut
        else:
            then = place
            t, floor, bias, below, above, cut = narrow.t, narrow.floor, narrow.bias, narrow.below, narrow.above, narrow.upper_cut
        out = self.code.slot(terms)
        tables = [self.code.address(v) for v in (below, above, cut, held.owes, t, bias, floor)]
        rest = *tables, *bias_lines(bias), *then[:5], self.code.address(gap)
        self.code.emit(loop.RELAX, held.slot, out, place, rest, [sum_error(terms)])
        self.code.drop(held.slot)
        self._give(step, TapeEntry(out, held.window, narrow))

    def _relax(self, step: Step, held: TapeEntry, place: tuple[int, ...], gap: Tensor | None) -> None:
        """A ReLU that pays for no affine node behind it."""
        assert held.narrow is None
        self._pay_point(step.node, held)
        lines, out = self.tables.lines(self.kit.nodes[step.node]), self.code.slot(place[-2] * place[-1])
        tables = [self.code.address(v) for v in (lines.below, lines.above, lines.upper_cut, gap)]
        self.code.emit(loop.RELAX_ALONE, held.slot, out, place, tables, [sum_error(place[-2] * place[-1])])
        self.code.drop(held.slot)
        self._give(step, TapeEntry(out, held.window))

    def _linear(self, step: Step, coming: Sequence[Step]) -> None:
        node, source = self.kit.nodes[step.node], step.to[0]
        held = self._take(node.name)
        if held.narrow is None and step.pays("product"):
            self._charge(node.name, held)
        then = self._narrow_behind(source, coming)
        if held.slot == NEURON:
            rows = self.kit.weights[node.name].rows
            size = self._size(source, TapeEntry(0, step.windows[0], then))
            out = self.code.slot(size)
            cells = 0 if then is None else self.code.address(then.cells)
            begin = 1, rows.shape[1], 1, size, 0, 0, int(then is not None), self.code.address(rows), cells
            self.code.emit(loop.BEGIN, out=out, rest=begin, reals=[held.factor])
            self._give(step, TapeEntry(out, step.windows[0], then))
            return
        part, then = self.tables.part(node, self.image, held.narrow, then)
        window = step.windows[0]
        out = self.code.slot(self._size(source, TapeEntry(0, window, then)))
        whole = self.kit.multiplier(node.name) if part is None else part.w
        assert isinstance(whole, Packed)
        pick, place, scratch = [0, 0, 0], [0, 0, 0], []
        if isinstance(part, Compact) and held.narrow is None:
            scratch.append(self.code.slot(whole.terms))
            pick = [1, scratch[-1], self.code.address(part.outputs)]
        if isinstance(part, Compact) and part.inputs is not None and then is None:
            scratch.append(self.code.slot(whole.columns))
            place = [1, scratch[-1], self.code.address(part.inputs)]
        rest = [self.code.address(whole.panels), whole.panels.shape[0], whole.terms, whole.columns, *pick, *place]
        self.code.emit(loop.LINEAR, held.slot, out, (), rest)
        for slot in (*scratch, held.slot):
            self.code.drop(slot)
        self._give_product(step, TapeEntry(out, window, then))

    def _narrow_behind(self, name: str, coming: Sequence[Step]) -> Narrow | None:
        if self.frontier or not lies_between(name, coming) or not all(map(self._knows, coming)):
            return None
        return self.tables.narrow(self.kit.nodes[name], self.image)

    def _conv(self, step: Step) -> None:
        node, source, window = self.kit.nodes[step.node], step.to[0], step.windows[0]
        held = self._take(node.name)
        if step.pays("product"):
            self._charge(node.name, held)
        made = TapeEntry(self._begin(step, held) if held.slot == NEURON else self._convolve(step, held), window)
        if step.mask:
            self.code.emit(loop.MASK, made.slot, 0, self._place(source, window), [self.code.address(self.tables.image_mask(source))])
        if held.slot == NEURON:
            self._give(step, made)
        else:
            self._give_product(step, made)

    def _begin(self, step: Step, held: TapeEntry) -> int:
        """A neuron's weights, in a window around them."""
        node, window, rows = self.kit.nodes[step.node], step.windows[0], self.kit.weights[step.node].rows
        around = margins(reach(node, held.window), window)
        assert around is not None
        _, height, width, ci = rows.shape
        out = self.code.slot(window.h.size * window.w.size * ci)
        rest = height, width * ci, window.h.size, window.w.size * ci, around[0], around[1] * ci, 0, self.code.address(rows)
        self.code.emit(loop.BEGIN, out=out, rest=rest, reals=[held.factor])
        return out

    def _convolve(self, step: Step, held: TapeEntry) -> int:
        node, window = self.kit.nodes[step.node], step.windows[0]
        shape, w, frame = conv_shape(node, held.window), self.kit.multiplier(node.name), self.kit.frames[node.name]
        assert isinstance(w, Packed)
        ci, (kh, kw) = w.shape[1], shape.kernel
        rows = held.window.h.size, held.window.w.size, frame.channels
        each = rows[0] * rows[1] * w.pitch
        some = self.backend.tap_rows(each)
        self.code.taps, self.code.near = max(self.code.taps, some * each), max(self.code.near, kh)
        out = self.code.slot(window.h.size * window.w.size * ci)
        rest = kh, kw * ci, ci, *shape.lead(window), *shape.stride, *shape.dilation, some, self.code.address(w.panels)
        place = 0, 0, 0, 0, 0, window.h.size, window.w.size * ci
        self.code.emit(loop.CONV, held.slot, out, place, [*rest, w.panels.shape[0], *rows])
        self.code.drop(held.slot)
        return out

    def _add(self, step: Step, sign: float = 1.0) -> None:
        held = self._take(step.node)
        if step.pays("product"):
            self._charge(step.node, held)
        other, factor = held.slot, held.factor
        if held.slot == NEURON:
            factor *= sign
        elif sign == 1.0:
            self.code.uses[held.slot] += 1
        else:
            other = self.code.slot(self.code.sizes[held.slot])
            self.code.emit(loop.COPY, held.slot, other, reals=[sign])
        first, second = step.windows
        self._give(step, TapeEntry(held.slot, first, factor=held.factor), TapeEntry(other, second, factor=factor))

    def _sub(self, step: Step) -> None:
        self._add(step, -1.0)

    def _dense(self, step: Step) -> None:
        held, window = self._take(step.node), step.windows[0]
        if held.window != window:
            out = self.code.slot(self._size(step.node, TapeEntry(0, window)))
            self.code.emit(loop.ZERO, out, out)
            self._join(step.node, held, out, window)
            held = TapeEntry(out, window)
        self.frontier[step.node] = held

    def _join(self, name: str, held: TapeEntry, target: int, window: Window) -> None:
        """The entry joins a slot of rows on another window, which contains it but for cells off the image."""
        (*_, height, line), old, channels = self._place(name, window), held.window, self.kit.frames[name].channels
        top, left = window.h.offset - old.h.offset, window.w.offset - old.w.offset
        down, across = old.h.stride - window.h.stride, old.w.stride - window.w.stride
        rest = height, line, top, left * channels, down, across * channels
        self.code.emit(loop.JOIN, held.slot, target, self._place(name, old), rest)
        self.code.drop(held.slot)

    def _merge(self, step: Step) -> None:
        name, window = step.node, step.windows[0]
        parts = [self._take(name), self.arriving[name].pop(0)]
        weighed = 0
        for part in parts:
            if step.pays("relu"):
                self._weigh(name, part, first=not weighed)
                weighed += 1
        place = self._place(name, window)
        fits = [part.window == window and self.code.uses[part.slot] == 1 for part in parts]
        if any(fits):
            target = parts.pop(fits.index(True)).slot
        else:
            target = self.code.slot(place[-2] * place[-1])
            self.code.emit(loop.ZERO, target, target)
        for part in parts:
            self._join(name, part, target, window)
        made = TapeEntry(target, window)
        if step.pays("sum"):
            self._weigh(name, made, first=not weighed)
            weighed += 1
        floor = weighed * self.tables.floor(name)
        self._pay(one_rounding(self.kit.coefficients.u) * sum_error(place[-2] * place[-1]), floor)
        self.frontier[name] = made

    def _weigh(self, name: str, held: TapeEntry, first: bool) -> None:
        self.code.emit(
            loop.WEIGH, held.slot, 0, self._place(name, held.window, held.narrow), [self.code.address(self.tables.xabs(name)), first]
        )

    def _pay(self, scale: float, floor: Tensor) -> None:
        self.code.emit(loop.PAY, rest=[self.code.address(floor)], reals=[scale])
