"""Per-node tables of one batch, in the run's coefficient type: boxes, relaxation lines and error vectors.

They are made from the boxes when first asked for and dropped when the boxes change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import count
from typing import Protocol

import torch
from torch import Tensor

from polytriton.ir.curves import CURVES
from polytriton.ir.net import Node
from polytriton.ir.ops import OPS
from polytriton.ir.plan import Step
from polytriton.runtime.centres import Centre, find_centre, is_centred
from polytriton.runtime.charges import LayerCharge, charge_factors
from polytriton.runtime.cpu.blocks import Packed, dense_depths, depths, pack_part, tap_depths
from polytriton.runtime.cpu.tape import Ending, EndingKey, Tape, TapeKey
from polytriton.runtime.cpu.torch_backend import Compact
from polytriton.runtime.curves import curve_lines
from polytriton.runtime.forward import Boxes
from polytriton.runtime.input_balls import InputBalls
from polytriton.runtime.kit import Kit
from polytriton.runtime.layers import Layer
from polytriton.runtime.narrow import Narrow, find_cells, make_narrow, stack_lines
from polytriton.runtime.planes import Planes, product_planes
from polytriton.runtime.relax import find_running, relu_lines, round_outward, round_up, sum_sizes
from polytriton.runtime.soundness import gamma, up

_SERIAL = count()
SHARE = 0.9  # of the weights, from which on it does not either


@dataclass(frozen=True)
class LineTables:
    below: Tensor
    above: Tensor
    lower_cut: Tensor | None
    upper_cut: Tensor
    gap: Tensor | None


@dataclass(frozen=True)
class BallTables:
    """The input's boxes and what lies in them too, float64; beside the image 0, and a scale of 1."""

    lo: Tensor
    hi: Tensor
    balls: InputBalls


class Maker(Protocol):
    """Makes tables of a batch before anyone asks for them."""

    def has(self, name: str, what: str) -> bool:
        """Whether a node's table is made; those that `Tables` hands out together are made together."""

    def table(self, name: str, what: str) -> Tensor: ...


class Tables:
    """Lazy tables over one batch's boxes."""

    def __init__(self, kit: Kit, boxes: Boxes, maker: Maker | None = None) -> None:
        """`maker`: who makes some of them beforehand."""
        self.kit, self.boxes, self.maker = kit, boxes, maker
        self.serial = next(_SERIAL)  # names this batch's tables wherever copies of them are kept
        self.dtype = kit.coefficients.dtype
        self._box: dict[str, tuple[Tensor, Tensor]] = {}
        self._ball: BallTables | None = None
        self._absmax: dict[str, Tensor] = {}
        self._sums: dict[str, Tensor] = {}
        self._xabs: dict[str, Tensor] = {}
        self._lines: dict[str, LineTables] = {}
        self._planes: dict[str, Planes] = {}
        self._charge: dict[str, tuple[Tensor, Tensor]] = {}
        self._centres: dict[str, Centre] = {}
        self._points: dict[str, tuple[Tensor, Tensor]] = {}
        self._first: dict[str, Tensor] = {}
        self._pool: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}
        self._floors: dict[str, Tensor] = {}
        self._inside: dict[str, Tensor] = {}
        self._live: dict[str, Tensor] = {}
        self._active: dict[tuple[str, int], Compact | None] = {}
        self._narrow: dict[tuple[str, int], Narrow | None] = {}
        self._line_stacks: dict[str, Tensor] = {}
        self.tapes: dict[TapeKey, Tape | None] = {}
        self.endings: dict[EndingKey, Ending] = {}

    def list_tables(self) -> dict[tuple[str, str], Tensor]:
        """The tables that are there and that programs of dense layers and ReLUs read, by what they are and of which node."""
        found = dict[tuple[str, str], Tensor]()
        lines = {name: (v.below, v.above, v.upper_cut, v.gap) for name, v in self._lines.items()}
        each = {"floor": self._floors, "first": self._first}
        several = (("low", "high"), self._box), (("below", "above", "cut", "gap"), lines), (("t", "charged"), self._charge)
        for names, tables in (*several, (("image", "point"), self._points)):
            found |= {(what, name): v for name, those in tables.items() for what, v in zip(names, those, strict=True) if v is not None}
        return found | {(what, name): v for what, tables in each.items() for name, v in tables.items()}

    def _take_made(self, name: str, *what: str) -> list[Tensor] | None:
        """Tables of a node that are made already, under the names of `list_tables`."""
        return None if self.maker is None or not self.maker.has(name, what[0]) else [self.maker.table(name, one) for one in what]

    def box(self, name: str) -> tuple[Tensor, Tensor]:
        if name not in self._box:
            low, high = self._take_made(name, "low", "high") or round_outward(self.boxes.lo[name], self.boxes.hi[name], self.dtype)
            self._box[name] = self.kit.frames[name].table(low), self.kit.frames[name].table(high)
        return self._box[name]

    def ball(self, name: str) -> BallTables | None:
        """Where the node is the input, and that is known to lie in a ball."""
        if self.boxes.ball is None or name != self.kit.net.input.name:
            return None
        if self._ball is None:
            arranged = self.kit.forward.arranged_ball(self.boxes.ball)
            if arranged is None:
                return None
            table = self.kit.frames[name].table
            self._ball = BallTables(table(self.boxes.lo[name]), table(self.boxes.hi[name]), arranged.move_cells(table))
        return self._ball

    def absmax(self, name: str) -> Tensor:
        """The largest magnitude in each box, float64 without margin."""
        if name not in self._absmax:
            self._measure(name)
        return self._absmax[name]

    def sum_absmax(self, name: str) -> Tensor:
        """The same summed over the cells, [batch]."""
        if name not in self._sums:
            self._measure(name)
        return self._sums[name]

    def _measure(self, name: str) -> None:
        self._absmax[name], self._sums[name] = self._take_made(name, "size", "sum") or sum_sizes(self.boxes.lo[name], self.boxes.hi[name])

    def xabs(self, name: str) -> Tensor:
        """The largest magnitude in each box, as a table."""
        if name not in self._xabs:
            lo, hi = self.box(name)
            self._xabs[name] = torch.maximum(lo.abs(), hi.abs())
        return self._xabs[name]

    def lines(self, node: Node) -> LineTables:
        if node.name not in self._lines and (given := self._take_made(node.name, "below", "above", "cut", "gap")) is not None:
            self._lines[node.name] = LineTables(given[0], given[1], None, given[2], given[3])
        if node.name not in self._lines:
            source = node.inputs[0]
            lo, hi = self.boxes.lo[source], self.boxes.hi[source]
            error = None if self.kit.forward.semantics.real else self.boxes.error.get(node.name)  # a plain ReLU has none
            if node.op in CURVES:
                made = curve_lines(node, lo, hi, self.dtype, error)
            else:
                made = relu_lines(lo, hi, node.number("slope"), self.dtype, error)
            # rows stand on the ReLU's own windows; its operand has the same shape, so the operand's frame would do too
            table = self.kit.frames[node.name].table
            cut, gap = (None if v is None else table(v) for v in (made.lower_cut, made.gap))
            self._lines[node.name] = LineTables(table(made.lower_slope), table(made.upper_slope), cut, table(made.upper_cut), gap)
        return self._lines[node.name]

    def planes(self, node: Node) -> Planes:
        """Beside the product of two activations."""
        if node.name not in self._planes:
            boxes, (a, b) = self.boxes, node.inputs
            error = None if self.kit.forward.semantics.real else boxes.error[node.name]
            made = product_planes((boxes.lo[a], boxes.lo[b]), (boxes.hi[a], boxes.hi[b]), self.dtype, error)
            table = self.kit.frames[node.name].table
            self._planes[node.name] = Planes(*(table(v) for v in (made.first, made.second, made.lower_cut, made.upper_cut)))
        return self._planes[node.name]

    def first(self, name: str) -> Tensor:
        """t of an identity row's own node, float64 without margin: its coefficients are weights, not a rounded product."""
        if name not in self._first:
            # its own box is still to be bounded: that is not remembered
            given = self._take_made(name, "first")
            self._first[name] = given[0] if given else self._vector(name, self.boxes.absmax(name), torch.float64, product=False)
        return self._first[name]

    def charge(self, name: str) -> tuple[Tensor, Tensor]:
        """t as a table in the coefficient type, and what underflow may cost a row whatever its coefficients [batch]."""
        if name not in self._charge:
            given = self._take_made(name, "t", "charged")
            t, floor = given or (self._vector(name, self.absmax(name), self.dtype, product=True), self._floor(name))
            self._charge[name] = self.kit.frames[name].table(t), floor
        return self._charge[name]

    def is_charged(self, name: str) -> bool:
        """Whether a node's `charge` is there already."""
        return name in self._charge or (self.maker is not None and self.maker.has(name, "t"))

    def missing_ops(self, steps: Sequence[Step]) -> int:
        """Operations an image that making the charges of these steps' layers takes: two sums an output, of those that are not made."""
        layers = [self.kit.forward.layers[s.node] for s in steps if s.op in ("linear", "conv") and not self.is_charged(s.node)]
        return 4 * sum(layer.node.size * layer.terms for layer in layers)

    def centre(self, name: str) -> Centre | None:
        """Of an affine node whose products are centred."""
        layer = self.kit.forward.layers.get(name)
        if not self.kit.coefficients.centred or layer is None or not is_centred(layer):
            return None
        if name not in self._centres:
            given = self._take_made(name, "point", "image", "reach")
            self._centres[name] = Centre(*given) if given else find_centre(self.kit.forward, layer, self.boxes, self.dtype)
        return self._centres[name]

    def centre_tables(self, name: str) -> tuple[Tensor, Tensor] | None:
        """The centre's image, and its point, as tables; None for nodes without one."""
        found = self.centre(name)
        if found is None:
            return None
        if name not in self._points:
            frames, operand = self.kit.frames, self.kit.nodes[name].inputs[0]
            self._points[name] = frames[name].table(found.image), frames[operand].table(found.point)
        return self._points[name]

    def constants(self, name: str, width: int) -> Tensor:
        """What coefficients over a node bring to the constant: the image of its centre as a table, or lines of its bias."""
        found = self.centre_tables(name)
        return self.kit.bias_line(name, width) if found is None else found[0]

    def _vector(self, name: str, xabs: Tensor, dtype: torch.dtype, *, product: bool) -> Tensor:
        """t of a node's cells, of magnitudes `xabs`, rounded up to this type; `product`: their coefficients are a rounded product."""
        c = self.kit.coefficients
        node, boxes = self.kit.nodes[name], self.boxes
        if name in self.kit.forward.layers:
            return self._layer_vector(name, xabs, dtype, product=product)
        zero = torch.zeros_like(xabs)
        t = boxes.error.get(name, zero) if OPS[node.op].kind != "nonlinear" else zero  # the lines have theirs
        if node.op == "gather" and product:
            repeats = self.kit.forward.moves[name].repeats
            t = t + (gamma(repeats - 1, c.u) if repeats > 1 else 0.0) * xabs
        if product and name in self.kit.pending:
            t = t + self.kit.pending[name] * xabs  # M_j lambda_j was rounded once
        return round_up(up(t), dtype)

    def _layer_vector(self, name: str, xabs: Tensor, dtype: torch.dtype, *, product: bool) -> Tensor:
        layer, boxes = self.kit.forward.layers[name], self.boxes
        operand, size, centre = layer.node.inputs[0], boxes.magnitude[name], self.centre(name) if product else None
        if centre is None:
            distance, below, entries = self.absmax(operand), self.sum_absmax(operand), size
        else:
            distance = centre.radius
            below = sum_sizes(distance, distance)[1]
            entries = self.kit.forward.sizes_product(layer, distance) if centre.entries is None else centre.entries
        pending = self.kit.pending.get(name, 0.0) if product else 0.0  # M_j lambda_j was rounded once
        counts = size.shape[1:].numel(), distance.shape[1:].numel()
        factors = charge_factors(self.kit.coefficients, layer, *counts, centred=centre is not None, pending=pending)
        depths = self._depths(layer, self.live(name)) if product and self.kit.sums_in_blocks(layer) else None
        return LayerCharge(
            e=boxes.error[name] if name in boxes.error else torch.zeros_like(size),
            size=size,
            entries=entries,
            babs=layer.babs,
            below=below,
            xabs=xabs,
            image=None if centre is None else centre.image,
            depths=depths,
            loss=self._product_loss(layer, name, distance, entries, factors.nu) if product and depths is None else None,
            factors=factors,
        ).total(dtype)

    def _product_loss(self, layer: Layer, name: str, below: Tensor, size: Tensor, nu: float) -> Tensor:
        """R: what the entries of M W round, times how far the operand lies from what is exact (`below`; `size` is wabs times that)."""
        # K of an entry of M W: the outputs that read the cell and can have a coefficient; zeros add exactly
        k = self.kit.coefficients.product_error(self.kit.forward.readers(layer, self.live(name))) * (1 + nu)
        if layer.node.op == "linear":
            return k * size
        return self.kit.forward.sizes_product(layer, torch.where(below > 0, k * below, torch.zeros_like(below)))

    def _depths(self, layer: Layer, live: Tensor) -> Tensor:
        """How many roundings a coefficient's products pass through, at most: of each output, or of a convolution's channels."""
        node = layer.node
        if node.op == "linear":
            return dense_depths(live.flatten(1)).view(live.shape)
        count = torch.tensor(live.shape[-1], device=live.device)
        whole = depths(torch.arange(int(count), device=live.device), count)
        return tap_depths(whole, tuple(layer.stored.shape), node.ints("s", (1, 1)), node.ints("d", (1, 1))).double()

    def live(self, name: str) -> Tensor:
        """Where rows can have a coefficient: not where every reader is a ReLU that is off (both its slopes are zero)."""
        if name not in self._live:
            self._live[name] = self._find_live(name)
        return self._live[name]

    def _find_live(self, name: str) -> Tensor:
        boxes, net = self.boxes, self.kit.net
        found = list[Tensor]()
        for user in self.kit.users[name]:
            node = self.kit.nodes[user]
            if node.op == "relu" and node.number("slope") == 0.0:
                found.append(find_running(boxes.lo[name], boxes.hi[name]))
                if user in boxes.signed:  # a multiplier gives a coefficient where the slopes are zero
                    found.append(boxes.signed[user] != 0)
            elif node.op in ("add", "sub") and user in boxes.lo and user != net.output:
                found.append(self.live(user))
            else:
                break
        else:
            if found and name != net.output:
                return reduce(torch.logical_or, found)
        return torch.ones_like(boxes.lo[name], dtype=torch.bool)

    def active(self, node: Node, image: int | None) -> Compact | None:
        """The part of a dense layer that matters to the rows of an image (None: of several); None where little is saved.

        A coefficient over a cell that is exactly zero for every reachable input says nothing: it may be left at zero.
        """
        if image is None or not self.kit.is_large(node.name):
            return None
        key = (node.name, image)
        if key not in self._active:
            outputs, inputs = find_cells(self.live(node.name)[image]), find_cells(self.absmax(node.inputs[0])[image] > 0)
            w = self.kit.weights[node.name].back
            small = outputs.numel() * inputs.numel() <= SHARE * w.numel()
            every = inputs.numel() == w.shape[1]
            if small:
                some = None if every else inputs
                if self.kit.sums_in_blocks(self.kit.forward.layers[node.name]):
                    held: Tensor | Packed = pack_part(w, outputs, some)
                else:
                    held = w.index_select(0, outputs)
                    held = held if some is None else held.index_select(1, some)
                self._active[key] = Compact(held, outputs, some, w.shape[1])
            else:
                self._active[key] = None
        return self._active[key]

    def part(self, node: Node, image: int | None, held: Narrow | None, then: Narrow | None) -> tuple[Compact | None, Narrow | None]:
        """The part of a dense layer that rows, which may stand on some cells alone, are multiplied by, and the cells `then` that the result
        may have alone, where these are the part's.
        """
        part = self.active(node, image) if held is None else held.part
        if then is not None and (part is None or part.inputs is None or not torch.equal(part.inputs, then.cells)):
            then = None
        return part, then

    def only_image(self, images: Tensor) -> int | None:
        """The image that all rows are of."""
        if self.boxes.batch == 1:
            return 0
        return None if not images.shape[0] or bool((images != images[0]).any()) else int(images[0])

    def narrow(self, relu: Node, image: int | None) -> Narrow | None:
        """Tables of a ReLU and the dense layer that it reads without cells that are off, where the rows of an image leave these out."""
        if image is None or not (self._is_vector(relu.name) and self._is_vector(relu.inputs[0])):
            return None
        key = (relu.name, image)
        if key not in self._narrow:
            part = self.active(self.kit.nodes[relu.inputs[0]], image)
            self._narrow[key] = None
            if part is not None and self._leaves_zeros(relu.name, image, part):
                self._narrow[key] = make_narrow(self, relu, image, part)
        return self._narrow[key]

    def line_stack(self, relu: Node) -> Tensor:
        """`stack_lines` of this batch."""
        if relu.name not in self._line_stacks:
            self._line_stacks[relu.name] = stack_lines(self, relu)
        return self._line_stacks[relu.name]

    def _leaves_zeros(self, name: str, image: int, part: Compact) -> bool:
        """Whether all cells of a node that the part leaves out are zero for every execution."""
        moves = self.absmax(name)[image].flatten() != 0
        return bool(moves.sum() == moves[part.outputs].sum())

    def _is_vector(self, name: str) -> bool:
        """Whether a cell's number is its place in every table: pixels have a margin around them where a padded convolution reads them."""
        frame = self.kit.frames[name]
        return (frame.h, frame.w) == (1, 1) and not any(frame.halo)

    def _floor(self, name: str) -> Tensor:
        """K eta a coefficient for the product, eta for the ReLU's, times the largest values they multiply."""
        c = self.kit.coefficients
        layer = self.kit.forward.layers.get(name)
        if layer is None:
            return self.floor(name)
        own, below = self.sum_absmax(name), self.sum_absmax(layer.node.inputs[0])
        return up(2 * c.eta * (own + layer.floor_share * below))

    def floor(self, name: str) -> Tensor:
        """Underflow of one rounded operation a coefficient, [batch]."""
        if name not in self._floors:
            given = self._take_made(name, "floor")
            self._floors[name] = given[0] if given else up(2 * self.kit.coefficients.eta * self.sum_absmax(name))
        return self._floors[name]

    def image_mask(self, name: str) -> Tensor:
        """One on the image, zero on the margin."""
        if name not in self._inside:
            f = self.kit.frames[name]
            self._inside[name] = f.table(
                torch.ones(self.boxes.batch, f.h, f.w, f.channels, dtype=self.dtype, device=self.kit.forward.device)
            )
        return self._inside[name]

    def pool(self, node: Node) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Winning tap, whether it is sure, the upper constant, and the magnitude of what overlapping windows add up."""
        if node.name not in self._pool:
            w, table = self.boxes.winners[node.name], self.kit.frames[node.name].table
            source = node.inputs[0]
            largest = self.kit.forward.taps(node, self.absmax(source)).amax(-1)
            tap = table((w.tap + 1).to(torch.int64)) - 1  # the margin has no winner
            self._pool[node.name] = (
                tap,
                table(w.sure.to(torch.int64)),
                table(round_up(w.most, self.dtype)),
                table(round_up(largest, self.dtype)),
            )
        return self._pool[node.name]
