"""Walks one program of the Plan over a block of rows: the only interpreter of Plan steps.

Every step keeps the invariant of frontier.py.
"""

from __future__ import annotations

import torch
from torch import Tensor

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Node
from polytriton.ir.plan import Program, Step
from polytriton.passes.windows import whole, windows_per_cell
from polytriton.rounding import dot_error, one_rounding, sum_error
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.cpu.frontier import Entry
from polytriton.runtime.cpu.products import conv_shape, crop, reach
from polytriton.runtime.cpu.tape_player import TapePlayer
from polytriton.runtime.cpu.torch_backend import Place, Rows, TorchBackend
from polytriton.runtime.narrow import Narrow, lies_between
from polytriton.runtime.results import Identity, Results
from polytriton.runtime.soundness import gamma
from polytriton.runtime.tables import Tables

__all__ = ["Identity", "Results", "Walk"]
_Found = tuple[str, Place, Tensor, Tensor]  # an entry of a frontier: its node, its rows' windows, their least values and weights


class Walk(TapePlayer):
    """One block of rows on its way from the target to the input."""

    def __init__(
        self, backend: TorchBackend, tables: Tables, program: Program, rows: Rows, results: Results, chosen: Chosen | None = None
    ) -> None:
        super().__init__(backend, tables, rows)
        self.program, self.results, self.chosen = program, results, chosen
        self.step, self.coming = program.steps[0], program.steps[1:3]
        self.image = tables.only_image(rows.image)
        self.extra: Tensor | None = None
        self.left: list[int] = []
        self.stay: Tensor | None = None  # rows of the only entry that this ReLU is to read: those that left are still there

    @torch.inference_mode()
    def run(self, start: Tensor | Identity, extra: Tensor | None = None) -> None:
        """`extra` are coefficients over the input that a query brings along: bounded on their own until the input is reached."""
        self.extra = extra
        self.results.left.append(self.left)
        k = 0
        while k < len(self.program.steps):
            found = self._find_tape(k)
            if found is not None:
                if not self._play(found, k):
                    return
                k += found.steps
                continue
            k, step = k + 1, self.program.steps[k]
            self.step, self.coming = step, self.program.steps[k : k + 2]
            if step.op == "start":
                self.frontier[step.node] = (start, step.windows[0])
                continue
            if step.op == "input" and extra is not None:
                self._add_input(step, extra)
                self.extra = None
            if step.check and not self._check(step.op == "input"):
                return
            self.results.ops += step.ops * len(self.rows)
            if step.op != "input":
                getattr(self, "_curve" if step.op in CURVES else "_" + step.op)(self.kit.nodes[step.node], step)

    # ---- bounds -----------------------------------------------------------------------------------------

    def _check(self, last: bool) -> bool:
        """Takes a candidate bound; rows of decided groups leave. False when no row is left."""
        entries, found, others = self._entries(), list[_Found](), list[_Found]()
        for name, (m, window) in entries:
            matrix = m if isinstance(m, Tensor) else self._matrix(name, m)
            held, point = self.narrow.get(name), self.owed.pop(name, None)
            place = self._place(name, window) if held is None else held.place(len(matrix))
            box, ends = self.tables.box(name) if held is None else held.box, self.rows.excess is not None
            least, weight, value, most = self.backend.concretize(matrix, place, *box, point, ends)
            if value is not None:
                self.backend.pay(self.rows, value, -1.0)
            ball = self.tables.ball(name)
            if ball is not None:
                least = torch.maximum(least, self.backend.least_in_ball(matrix, place, ball, self.rows.image))
            found.append((name, place, least, weight))
            if most is not None:
                others.append((name, place, -most, weight))
        self._settle(self.results, self.rows.constant, self.rows.error, found)
        if self.rows.excess is not None:
            assert self.results.other is not None
            self._settle(self.results.other, -self.rows.constant, self.rows.error + self.rows.excess, others)
        if self.results.group is None:
            return True
        stay, total = self.backend.open_rows(self.rows, self.results), len(self.rows)
        if last:
            return False
        self.left.append(len(stay))
        if total - len(stay) > self.backend.config.leave * total or not len(stay):
            stay = self.backend.pad(stay)[:total]
            self.rows = self.rows.keep(stay)
            self.image = self.tables.only_image(self.rows.image) if self.image is None else self.image
            if self._moves_by_relaxing():
                self.stay = stay
            else:
                self.frontier = {
                    k: (m.keep(stay) if isinstance(m, Identity) else m.index_select(0, stay), w) for k, (m, w) in self.frontier.items()
                }
        return len(stay) > 0

    def _settle(self, results: Results, raw: Tensor, slack: Tensor, found: list[_Found]) -> None:
        """A candidate bound: the least values of these entries join `raw`."""
        for k, (name, place, least, weight) in enumerate(found):
            terms, floor = place.height * place.line + len(found) - 1, self.tables.floor(name)  # a cell's own sum, then the nodes'
            charged = self.kit.candidate_error(name, terms)
            if k + 1 == len(found):
                self.backend.settle(self.rows, results, raw, slack, least, weight, charged, floor, len(found))
            else:
                slack = torch.add(slack, weight, alpha=charged) + floor[self.rows.image]
                raw = raw + least

    def _entries(self) -> list[tuple[str, Entry]]:
        """The frontier, and what a query brings along over the input."""
        entries = list(self.frontier.items())
        if self.extra is not None:
            name = self.kit.net.input.name
            f = self.kit.frames[name]
            rows = self.extra[self.rows.index].to(self.kit.coefficients.dtype).view(-1, f.h, f.w, f.channels).contiguous()
            entries.append((name, (rows, whole(f.h, f.w))))
        return entries

    # ---- steps ------------------------------------------------------------------------------------------

    def _linear(self, node: Node, step: Step) -> None:
        source, held = step.to[0], self.narrow.pop(node.name, None)
        m, window = self._take(node)
        then = self._narrow_behind(source)
        if isinstance(m, Identity):
            self._pay_product(step, m, window)
            w = self.kit.weights[node.name].rows
            rows = w if then is None else then.keep(node.name, "rows", lambda: w)
            self._give(step, self._as_entry(rows.index_select(0, m.channel).mul_(m.sign.to(w.dtype)[:, None]), source, then))
            return
        if held is None:
            self._pay_product(step, m, window)
        active, then = self.tables.part(node, self.image, held, then)
        found = self.backend.linear(m, self.kit.multiplier(node.name) if active is None else active, held is not None, then is not None)
        self._give(step, self._as_entry(found, source, then))
        self._owe_centre(step)

    def _as_entry(self, m: Tensor, name: str, held: Narrow | None) -> Tensor:
        """Rows [rows, cells] as they stand on a node, all its cells or these."""
        if held is None:
            return m.view(len(m), *self._extent(name))
        self.narrow[name] = held
        return m.view(len(m), 1, 1, -1)

    def _narrow_behind(self, name: str) -> Narrow | None:
        """Tables of the ReLU that rows are given to, where it is the next to be substituted, a dense layer follows it, and rows leave
        out cells there.
        """
        if self.frontier or not lies_between(name, self.coming) or not self._fuses(self.coming[0]):
            return None
        return self.tables.narrow(self.kit.nodes[name], self.image)

    def _conv(self, node: Node, step: Step) -> None:
        m, window = self._take(node)
        w, out = self.kit.weights[node.name], step.windows[0]
        shape = conv_shape(node, window)
        self._pay_product(step, m, window)
        if isinstance(m, Identity):
            full = w.rows.index_select(0, m.channel).mul_(m.sign.to(w.rows.dtype)[:, None, None, None])
            result = self.backend.embed(full, self.rows, reach(node, window), out)
        else:
            result = self.backend.conv(m, self.kit.multiplier(node.name), shape, out)
        if step.mask:
            place = self._place(step.to[0], out)
            result = self.backend.table_product(result, place, self.tables.image_mask(step.to[0]))
        self._give(step, result)
        if not isinstance(m, Identity):
            self._owe_centre(step)

    def _scale(self, node: Node, step: Step) -> None:
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_product(step, m, window)
        frame, a = self.kit.frames[node.name], self.kit.weights[node.name].back
        if window.whole:
            self._give(step, m * a)
        else:
            table = frame.table(a.expand(self.tables.boxes.batch, *a.shape))
            self._give(step, self.backend.table_product(m, self._place(node.name, window), table))

    def _add(self, node: Node, step: Step, sign: float = 1.0) -> None:
        m, window = self._take(node)
        self._pay_product(step, m, window)
        if isinstance(m, Identity):
            self._give(step, m, Identity(m.sign * sign, m.channel))
        else:
            self._give(step, m, m if sign == 1.0 else m * sign)  # shared until a step works in place

    def _sub(self, node: Node, step: Step) -> None:
        self._add(node, step, -1.0)

    def _concat(self, node: Node, step: Step) -> None:
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_product(step, m, window)
        parents = [self.kit.nodes[i] for i in node.inputs]
        if len(node.shape) == 1 or (len(node.shape) == 3 and node.integer("axis") == 0):
            parts = torch.split(m, [self._extent(p.name)[2] for p in parents], dim=3)
        elif len(node.shape) == 3:
            axis = node.integer("axis")
            parts = torch.split(m, [p.shape[axis] for p in parents], dim=axis)
        else:
            logical = m.reshape(len(m), *node.shape)
            parts = torch.split(logical, [p.shape[node.integer("axis")] for p in parents], dim=node.integer("axis") + 1)
        self._give(
            step, *(p.reshape(len(m), *part_shape(p, self._extent(q.name))).contiguous() for p, q in zip(parts, parents, strict=True))
        )

    def _gather(self, node: Node, step: Step) -> None:
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_product(step, m, window)
        moves, source = self.kit.forward.moves[node.name], step.to[0]
        if moves.channels is not None:
            out = m.new_zeros(*m.shape[:3], self._extent(source)[2])
            self._give(step, out.index_add_(3, moves.channels, m))
            return
        h, w, c = self._extent(source)
        out = m.new_zeros(len(m), h * w * c + 1)  # the last cell takes what falls on padding
        out.index_add_(1, torch.where(moves.cells >= 0, moves.cells, h * w * c), m.reshape(len(m), -1))
        self._give(step, out[:, :-1].reshape(len(m), h, w, c).contiguous())

    def _fuses(self, step: Step) -> bool:
        """Whether one loop serves a ReLU and what it pays for the affine step behind it."""
        if step.op != "relu" or not step.pays("behind") or self.kit.nodes[step.to[0]].op not in ("conv", "linear"):
            return False
        node = self.kit.nodes[step.node]
        return self.tables.lines(node).lower_cut is None and not self._chooses(node)

    def _chooses(self, node: Node) -> bool:
        return self.chosen is not None and node.name in self.chosen.slopes

    def _moves_by_relaxing(self) -> bool:
        """Whether the pass to come may leave out the rows that left: it writes the others anew, and nothing else reads them."""
        if len(self.frontier) > 1 or self.step.pays("relu") or not self._fuses(self.step):
            return False
        ((m, _),) = self.frontier.values()
        return isinstance(m, Tensor)

    def _relu(self, node: Node, step: Step) -> None:
        if self._fuses(step):
            self._relax_and_charge(node, step)
            return
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_pending(step, m, window)
        lines = self.tables.lines(node)
        place = self._place(node.name, window)
        terms = place.height * place.line
        source = node.inputs[0]
        if self.rows.excess is not None:
            assert lines.gap is not None
            self._exceed(self.backend.positive_dot(m, place, lines.gap), sum_error(terms))
        if self.chosen is not None and self._chooses(node):
            m, total = self.chosen.relax(self.backend, self.tables, self.rows, node, window, m)
        else:
            m, total = self.backend.relax(self._own(m), place, lines.below, lines.above, lines.lower_cut, lines.upper_cut)
        self._pay_intercepts(total, sum_error(terms))
        if step.pays("behind"):
            self._charge(source, m, window)
        self._give(step, m)

    def _relax_and_charge(self, node: Node, step: Step) -> None:
        """A ReLU, and what it pays for the affine step behind it, in one loop."""
        source, held, point = node.inputs[0], self.narrow.pop(node.name, None), self.owed.pop(node.name, None)
        m, window = self._dense_entry(node.name, self._take(node))
        if held is None:
            self._pay_pending(step, m, window)
            lines, place, then = self.tables.lines(node), self._place(node.name, window), self._place(source, window)
            (t, floor), bias = self.tables.charge(source), self.tables.constants(source, place.width)
            below, above, upper_cut, gap = lines.below, lines.above, lines.upper_cut, lines.gap
        else:
            place = then = held.place(len(self.rows))
            t, floor, bias, below, above, upper_cut, gap = (
                held.t, held.floor, held.bias, held.below, held.above, held.upper_cut, held.gap
            )  # fmt: skip
            self.narrow[source] = held
        gap = gap if self.rows.excess is not None else None
        given = below, above, upper_cut, then, t, bias, self.stay, point, gap
        m, total, constant, error, value, beyond = self.backend.relax_and_charge(m, place, *given)
        self.stay, terms = None, place.height * place.line
        if beyond is not None:
            self._exceed(beyond, sum_error(terms))
        if value is not None:
            self.backend.pay(self.rows, value, -1.0)
        self._pay_intercepts(total, sum_error(terms))
        self.backend.pay(self.rows, constant, 1.0, error, sum_error(terms), floor)
        self._give(step, m)

    def _exceed(self, beyond: Tensor, scale: float) -> None:
        """The other end of a ReLU's positive coefficients: it may lie so far above its line below."""
        self.backend.exceed(self.rows, beyond, scale * scale)

    def _pay_intercepts(self, total: Tensor, scale: float) -> None:
        """Their sum has one sign (at most zero): enlarging it covers the rounding of its sum. At 0 a ReLU lies below its line above by as
        much as that meets, and nowhere by more: the other end of its negative coefficients.
        """
        self.backend.pay(self.rows, total, scale)
        if self.rows.excess is not None:
            self.backend.exceed(self.rows, total, -scale * scale)

    def _curve(self, node: Node, step: Step) -> None:
        """A smooth function, by the lines beside it."""
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_pending(step, m, window)
        if self.chosen is not None and self._chooses(node):
            bent, each, size, rounded = self.chosen.bend(self.backend, self.tables, self.rows, node, window, m)
            self._pay_cuts(each, size)
            if rounded is not None:  # what was pending on them: the step to come knows the coefficients that are left
                source, place = node.inputs[0], self._place(node.inputs[0], window)
                weight, scale = self.backend.weigh(rounded, place, self.tables.xabs(source)), sum_error(place.height * place.line)
                self.backend.pay(self.rows, None, 0.0, weight, self.kit.pending[source] * scale, self.tables.floor(source))
            self._give(step, bent)
            return
        lines, place = self.tables.lines(node), self._place(node.name, window)
        assert lines.lower_cut is not None
        self._give(step, self._by_cuts(self._own(m), place, lines.below, lines.above, lines.lower_cut, lines.upper_cut))

    def _mul(self, node: Node, step: Step) -> None:
        """A product of two activations, by the planes beside it: a coefficient for each of them."""
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_pending(step, m, window)
        if self.chosen is not None and self._chooses(node):
            tilted, each = self.chosen.tilt(self.backend, self.tables, self.rows, node, window, m)
            self._pay_cuts(each, each.abs())
            self._give(step, *tilted)
            return
        planes, place = self.tables.planes(node), self._place(node.name, window)
        second = self.backend.table_product(m, place, planes.second)
        self._give(step, self._by_cuts(self._own(m), place, planes.first, planes.first, planes.lower_cut, planes.upper_cut), second)

    def _by_cuts(self, m: Tensor, place: Place, below: Tensor, above: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
        """Rows over f become rows over its operand. Cuts have both signs: what their sum rounds is charged by their magnitudes."""
        terms, weight = place.height * place.line, self.backend.weigh(m, place, torch.maximum(lower.abs(), upper.abs()))
        m, total = self.backend.relax(m, place, below, above, lower, upper)
        self.backend.pay(self.rows, total, 1.0, weight, 2 * dot_error(terms) * sum_error(terms))
        return m

    def _maxpool(self, node: Node, step: Step) -> None:
        """A row over max(x) becomes one over the winners (lower side, and upper where sure) and a constant."""
        m, window = self._dense_entry(node.name, self._take(node))
        self._pay_pending(step, m, window)
        tap, sure, most, largest = self.tables.pool(node)
        place, b = self._place(node.name, window), self.backend
        winner = b._gather(tap, place).view_as(m)
        linear = (m > 0) | (b._gather(sure, place).view_as(m) > 0)
        rest = torch.where(linear, torch.zeros_like(m), m)
        constant = b.table_dot(rest, place, most) + (m * 0).double().sum((1, 2, 3))  # NaN must survive the selection
        shape = conv_shape(node, window)
        (kh, kw), (sh, sw), (dh, dw) = shape.kernel, shape.stride, shape.dilation
        _, h, w, c = m.shape
        out = m.new_zeros(len(m), (h - 1) * sh + (kh - 1) * dh + 1, (w - 1) * sw + (kw - 1) * dw + 1, c)
        for i in range(kh):
            for j in range(kw):
                part = torch.where((winner == i * kw + j) & linear, m, torch.zeros_like(m))
                out[:, i * dh : i * dh + (h - 1) * sh + 1 : sh, j * dw : j * dw + (w - 1) * sw + 1 : sw] += part
        u, terms = self.kit.coefficients.u, place.height * place.line
        size = b.table_dot(m.abs(), place, largest)
        # windows that meet in a cell add up; the constants' sum is charged its own rounding
        meets = windows_per_cell(kh, sh, dh) * windows_per_cell(kw, sw, dw)
        scale = (gamma(meets - 1, u) + dot_error(terms)) * sum_error(terms)
        self.backend.pay(self.rows, constant, 1.0, size, scale, self.tables.floor(node.inputs[0]) * sum_error(terms))
        self._give(step, crop(out, shape.lead(step.windows[0]), step.windows[0]))

    def _dense(self, node: Node, step: Step) -> None:
        m, window = self._dense_entry(node.name, self._take(node))
        self.frontier[node.name] = (self.backend.embed(m, self.rows, window, step.windows[0]), step.windows[0])

    def _merge(self, node: Node, step: Step) -> None:
        """Contributions of several readers add up on the union of their windows: one rounding a coefficient.

        A product rounded before the sum may cancel in it, so contributions that are products are charged theirs first.
        """
        self._leave_centre(node.name)
        window, xabs = step.windows[0], self.tables.xabs(node.name)
        parts, weights = [], []
        for take in (lambda: self.frontier.pop(node.name), lambda: self.arriving[node.name].pop(0)):
            part, at = self._dense_entry(node.name, take())
            if step.pays("relu"):
                weights.append(self.backend.weigh(part, self._place(node.name, at), xabs))
            parts.append((self._own(part), at))
        m = self.backend.union(self.rows, parts[0], parts[1], window)
        place = self._place(node.name, window)
        if step.pays("sum"):
            weights.append(self.backend.weigh(m, place, xabs))
        scale = one_rounding(self.kit.coefficients.u) * sum_error(place.height * place.line)
        self.backend.pay(self.rows, None, 0.0, torch.stack(weights).sum(0), scale, len(weights) * self.tables.floor(node.name))
        self.frontier[node.name] = (m, window)

    def _add_input(self, step: Step, extra: Tensor) -> None:
        self._leave_centre(step.node)
        m, window = self._dense_entry(step.node, self.frontier[step.node])
        self._pay_pending(step, m, window)  # a rounded product may cancel against what the query brings
        total = m + extra[self.rows.index].to(m.dtype).view_as(m)
        place = self._place(step.node, window)
        weight = self.backend.weigh(total, place, self.tables.xabs(step.node))
        scale = 2 * self.kit.coefficients.u * sum_error(place.height * place.line)
        self.backend.pay(self.rows, None, 0.0, weight, scale, self.tables.floor(step.node))
        self.frontier[step.node] = (total, window)


def part_shape(part: Tensor, extent: tuple[int, int, int]) -> tuple[int, int, int]:
    """The physical shape of an operand's coefficients; a window keeps its own height and width."""
    return (part.shape[1], part.shape[2], extent[2]) if part.dim() == 4 and part.shape[3] == extent[2] else extent
