"""Plan -> script: what a whole run launches between its programs, in order (ir/script.py).

It lies here and not among the passes since it chooses kernels, which passes do not know. It depends on the network, its plan and what
is certified; on no image, no batch size and no device.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from polytriton.arithmetic import ARITHMETICS, Arithmetic
from polytriton.ir.addends import find_addends
from polytriton.ir.launches import Constants, Launch, Launches
from polytriton.ir.net import Node
from polytriton.ir.ops import relaxed_nodes, unsettled_nodes
from polytriton.ir.plan import extent
from polytriton.ir.script import HeldSymbols, RunScript, ScriptEntry, given_symbols
from polytriton.ir.script_check import check_script, program_reads
from polytriton.kernels import cell_kernels as cells
from polytriton.kernels.affine import AFFINE, WHERE, choose, count_source
from polytriton.kernels.choose import Tiles
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.sequence import Frames

PAIRS = {"lo": ("lo", "hi"), "hi": ("lo", "hi"), **dict.fromkeys(("below", "above", "lower", "cut"), ("below", "above", "cut"))}
ROW_ARRAYS = ("image", "row_h", "row_w", "constant", "error", "index", "sign", "channel", "count")


@dataclass(frozen=True)
class Deployment:
    """What of a semantics decides launches: `passes` is how often an addition may round, `flushes` whether operands may be lost."""

    real: bool = False
    passes: int = 1
    flushes: bool = False


DEPLOYMENTS = {"real": Deployment(real=True), "once": Deployment(), "twice": Deployment(passes=2), "flushing": Deployment(False, 2, True)}


def deployment(real: bool, passes: int, flushes: bool) -> str:
    """The name of the one that a semantics is."""
    made = Deployment(real, passes, flushes)
    return next(name for name, how in DEPLOYMENTS.items() if how == made)


class ScriptLowering:
    """Writes the script of one network."""

    def __init__(
        self, emitter: Emitter, frames: Frames, numerics: Arithmetic, how: Deployment, emulate: bool, *, early: bool = True,
        tight: bool = False,
    ) -> None:  # fmt: skip
        """`early`: a neuron that the likelier sign's row settles has no other; `tight`: rows for neurons that can be on, settled or not."""
        self.early, self.tight = early and not tight, tight
        self.emitter, self.frames, self.numerics, self.how, self.emulate = emitter, frames, numerics, how, emulate
        self.net, self.nodes = frames.net, frames.net.by_name
        self.every = frames.plan.candidates == "all"
        self.addends, self.unsettled, relaxed = find_addends(self.net), unsettled_nodes(self.net), relaxed_nodes(self.net)
        self.shown = {n.name for n in self.net if n.name in relaxed and "take" not in n.attrs}
        self.script = RunScript(self.net.name)
        self.programs: dict[str, Launches] = {}  # that narrow boxes on the way, by node
        self.wanted = frozenset[str]()  # tables that boxes' kernels make: the same in all sections, so that they are the same kernels

    def begin(self, section: str) -> None:
        self.out: list[ScriptEntry] = []
        self.held = HeldSymbols(given_symbols(section, self.script, self.net.input.name, self.net.output))
        self.noted = set[str]()  # nodes whose kernel notes all that there is
        self.script.sections[section] = self.out

    def run(self, programs: Sequence[Launches]) -> RunScript:
        asked = next(p for p in programs if p.program.kind != "bound")
        self.programs = {p.program.target: p for p in programs if p.program.kind == "bound"}
        self.wanted = frozenset(s for program in programs for s in program_reads(program))
        for section in ("interval", "refine"):
            self.begin(section)
            for node in self.net.nodes[1:]:
                self.box(node)
                if section == "refine":
                    self.bound(node)
            self.tables(program_reads(asked))
        self.begin("tables")
        for program in programs:
            self.tables(program_reads(program))
        self.begin("query")
        self.forms(self.nodes[asked.program.target])
        check_script(self.script, self.net, programs)
        return self.script

    # ---- entries ----------------------------------------------------------------------------------------

    def _add(self, entry: ScriptEntry) -> None:
        self.out.append(entry)
        self.held.take(entry)

    def _launch(
        self, function: str, constants: Constants, bind: Mapping[str, str], block: int = 1, count: int = 1, columns: int = 1, *,
        step: str, verb: str = "play", tiles: Tiles = cells.ONE, numerics: str = "float64",
    ) -> None:  # fmt: skip
        kernel = self.emitter.kernel(function, constants, ARITHMETICS[numerics], tiles, step=step)
        launch = Launch(kernel, tuple(bind[p] for p in kernel.parameters), block, count, 1, columns)
        for symbol in launch.bind:
            kind, _, name = symbol.partition(":")
            if verb == "play" and kind in ("biggest", "total") and function != "measure_boxes" and not function.endswith("_boxes"):
                self._measure_once(name)
        self._add(ScriptEntry(verb, launch))

    def _measure_once(self, name: str) -> None:
        if f"total:{name}" not in self.held:
            self._measure(name)

    def _measure(self, name: str, verb: str = "play") -> None:
        """`known`: somebody has narrowed the box, so all that was noted of it is noted anew."""
        node = self.nodes[name]
        noted = self._notes(node) if verb == "known" and name in self.noted else cells.CellNotes()
        bind = {**self._ends(name), "biggest_ptr": f"biggest:{name}", "total_ptr": f"total:{name}", **self._note_symbols(name)}
        self._cells("measure_boxes", cells.measured_box(node, noted, self.emulate), bind, node, verb)

    def _cells(
        self, function: str, constants: Constants, bind: Mapping[str, str], node: Node, verb: str = "play", numerics: str = "float64"
    ) -> None:
        count, step = cells.parts(node, self.emulate), f"%{node.name} in {WHERE}"
        self._launch(function, constants, bind, count=count, step=step, verb=verb, numerics=numerics)

    def _waits(self, name: str) -> bool:
        """Whether the host learns how many of its neurons are undecided."""
        return name in self.programs and name not in self.unsettled

    def _notes(self, node: Node) -> cells.CellNotes:
        return cells.CellNotes(node.name in self.shown, self._waits(node.name), self.tight)

    def _note_symbols(self, name: str) -> dict[str, str]:
        return {"told_ptr": f"told:{name}", "blocks_ptr": "open"}

    def _ends(self, name: str, prefix: str = "box") -> dict[str, str]:
        return {f"{prefix}_lo_ptr": f"low:{name}", f"{prefix}_hi_ptr": f"high:{name}"}

    def _outputs(self, name: str) -> dict[str, str]:
        more = {"error_ptr": f"own:{name}", "biggest_ptr": f"biggest:{name}", "total_ptr": f"total:{name}"}
        return {**self._ends(name), **more, **self._note_symbols(name)}

    # ---- boxes ------------------------------------------------------------------------------------------

    def box(self, node: Node) -> None:
        """The node's box, magnitude and error from its operands' boxes."""
        name, real, whole = node.name, self.how.real, self._is_whole(node.name)
        if node.op in AFFINE:
            terms = count_source(node, real)
            self._sums(node, terms)
            if whole and not self.how.flushes:
                self._affine(node, terms)
                return
        elif whole and node.op in ("relu", "add", "sub"):
            operations = self.how.passes * self.addends.sums[name] if name in self.addends.sums else 1
            operations = 0 if real else operations
            if node.op == "relu":
                self._relu(node, operations)
                return
            bind = {k: v for side, i in zip("ab", node.inputs, strict=True) for k, v in self._ends(i, side).items()}
            made = cells.sum_box(node, operations, self._notes(node), self.emulate)
            self._cells("sum_boxes", made, {**bind, **self._outputs(name)}, node)
            self.noted.add(name)
            return
        hosted = [f"low:{name}", f"high:{name}"]
        hosted += [f"own:{name}"] if node.op in (*cells.LAYERS, "add", "sub") else []
        hosted += [f"magnitude:{name}"] if node.op == "scale" else []
        given = [s for i in node.inputs for s in self._ends(i).values()]
        given += ["centre", "spread", f"magnitude:{name}"] if node.op in AFFINE else []
        self._add(ScriptEntry("host", made=tuple(hosted), given=tuple(given)))

    def _is_whole(self, name: str) -> bool:
        """Whether no sum that the node is made of has addends in common with another's."""
        return self.how.real or not self.addends.shared.get(name)

    def _affine(self, node: Node, terms: str) -> None:
        name, source, real = node.name, node.inputs[0], self.how.real
        first = name in self.programs and f"first:{name}" in program_reads(self.programs[name])
        counted = {"none": f"magnitude:{name}", "given": f"given:{name}", "present": "terms"}[terms]
        bind = {
            "centre_ptr": "centre", "spread_ptr": "spread", "magnitude_ptr": f"magnitude:{name}", "babs_ptr": f"babs:{name}",
            "terms_ptr": counted, "operand_ptr": f"biggest:{source}", "numbers_ptr": f"numbers:{name}", **self._outputs(name),
            "own_numbers_ptr": f"own_factors:{name}", "summed_ptr": f"total:{source}", "first_ptr": f"first:{name}",
        }  # fmt: skip
        made = cells.affine_box(node, self.nodes[source], real, self.numerics, self._notes(node), first, self.emulate)
        if not real or made["FLUSH"]:
            self._measure_once(source)
        self._cells("affine_boxes", made, bind, node)
        self.noted.add(name)

    def _relu(self, node: Node, operations: int) -> None:
        """Its box, and what is wanted of it and of its operand: the operand's box is final, its own is where nothing narrows it."""
        name, y = node.name, node.inputs[0]
        final = name not in self.programs and name not in self.shown

        def lacks(symbol: str) -> bool:
            return symbol in self.wanted and symbol not in self.held

        made = cells.ReluParts(
            measure=y in self.programs, told=self._tells_late(y), lines=lacks(f"below:{name}"), ends=final and lacks(f"lo:{name}"),
            charge=lacks(f"t:{y}"),
        )  # fmt: skip
        constants = cells.relu_box(self.frames, node, self.numerics, self.how.real, operations, made, self.emulate)
        of = self.nodes[y].inputs
        if constants["FLUSH"]:
            self._measure_once(of[0])
        bind = {
            **self._ends(y, "y"), "y_biggest_ptr": f"biggest:{y}", "y_total_ptr": f"total:{y}", **self._outputs(name),
            "told_ptr": f"told_after:{y}", "numbers_ptr": f"factors:{y}", "magnitude_ptr": f"magnitude:{y}", "own_error_ptr": f"own:{y}",
            "babs_ptr": f"babs:{y}", "operand_ptr": f"total:{of[0]}" if of else "", "t_ptr": f"t:{y}",
            **{f"{kind}_ptr": f"{kind}:{name}" for kind in ("below", "above", "lower", "cut", "lo", "hi")},
        }  # fmt: skip
        self._cells("relu_boxes", constants, bind, node, numerics=self.numerics.name)

    def _sums(self, node: Node, terms: str) -> None:
        name, source = node.name, node.inputs[0]
        made = choose(node, self.nodes[source], self.net.weight(node, "wabs") is not None, terms, self.emulate)
        (h, w, c), g, bn = extent(node), node.integer("g", 1), made.tiles.constants["BN"]
        dense = node.op == "linear"
        columns = -(-node.size // bn) if dense else g * -(-(c // g) // bn)
        bind = {
            "lo_ptr": f"low:{source}", "hi_ptr": f"high:{source}", "w_ptr": f"w:{name}", "wabs_ptr": f"wabs:{name}",
            "bias_ptr": f"b:{name}", "centre_ptr": "centre", "spread_ptr": "spread", "magnitude_ptr": f"magnitude:{name}",
            "terms_ptr": "terms", "count_ptr": "images",
        }  # fmt: skip
        block, count = made.tiles.constants["BM"], 1 if dense else h * w
        self._launch(made.function, made.constants, bind, block, count, columns, step=f"%{name} in {WHERE}", tiles=made.tiles)

    def _tell(self, name: str, symbol: str) -> None:
        node = self.nodes[name]
        self._cells("tell_boxes", dict(cells.cells(node, self.emulate)), {**self._ends(name), "told_ptr": f"{symbol}:{name}"}, node)

    # ---- tables -----------------------------------------------------------------------------------------

    def tables(self, symbols: Iterable[str]) -> None:
        """Those that this batch has not made yet."""
        symbols = list(symbols)
        floors = [s for s in symbols if s not in self.held and cells.TABLES.get(s.partition(":")[0]) == "floors"]
        for symbol in symbols:
            if symbol in self.held:
                continue
            kind, _, name = symbol.partition(":")
            if symbol in floors:  # two in one launch: a launch takes longer than its work
                self._floors(floors[:2])
                floors = floors[2:]
            else:
                self._table(kind, name) if kind in cells.TABLES else self._host_table(kind, name)

    def _host_table(self, kind: str, name: str) -> None:
        node = self.nodes[name]
        boxes = [s for i in (name, *node.inputs) for s in self._ends(i).values()]
        more = [s for s in (f"magnitude:{name}", f"own:{name}") if s in self.held]
        self._add(ScriptEntry("host", made=(f"{kind}:{name}",), given=(*(boxes if kind != "term_lo" and kind != "term_hi" else ()), *more)))

    def _floors(self, symbols: Sequence[str]) -> None:
        """Of one node or of two."""
        split = [s.partition(":")[::2] for s in symbols]
        nodes, bind = [self.nodes[name] for _, name in split], dict[str, str]()
        for prefix, symbol, node in zip(("", "other_"), symbols, nodes, strict=False):
            operand = f"total:{node.inputs[0]}" if node.inputs else ""
            to = {"total": f"total:{node.name}", "operand": operand, "numbers": f"factors:{node.name}", "floor": symbol}
            bind |= {f"{prefix}{parameter}_ptr": s for parameter, s in to.items()}
        affine = [node.op in cells.LAYERS and kind == "floor" for (kind, _), node in zip(split, nodes, strict=True)]
        constants = cells.floors(self.net, list(zip(nodes, affine, strict=True)), self.emulate)
        self._launch("floors", constants, bind, step=" and ".join(f"%{node.name}" for node in nodes) + " in a batch's tables")

    def _table(self, kind: str, name: str) -> None:
        node, first = self.nodes[name], kind == "first"
        function, constants = cells.table(self.frames, node, kind, self.numerics, self.emulate, real=self.how.real)
        of = node.inputs[0] if function == "relu_tables" else name
        made = PAIRS.get(kind, (kind,))
        made = (*made, "lower") if "below" in made and node.number("slope") not in (0.0, 1.0) else made
        bind = {f"{k}_ptr": f"{k}:{name}" for k in made} | {"numbers_ptr": f"{'own_factors' if first else 'factors'}:{name}"}
        bind |= {"lower_ptr": bind.get("lower_ptr", ""), **self._ends(of), "own_error_ptr": f"own:{name}", "babs_ptr": f"babs:{name}"}
        bind |= {"magnitude_ptr": f"magnitude:{name}", "operand_ptr": f"total:{node.inputs[0]}" if node.inputs else ""}
        bind |= {"t_ptr": f"{kind}:{name}"} if first else {}
        count, numerics = cells.parts(node, self.emulate), cells.table_numerics(kind, self.numerics).name
        self._launch(function, constants, bind, count=count, step=f"%{name} in a batch's tables", numerics=numerics)

    # ---- rows -------------------------------------------------------------------------------------------

    def bound(self, node: Node) -> None:
        """A node's undecided neurons are narrowed: found, made rows of either sign, and brought back."""
        name = node.name
        if name in self.shown:
            self._measure(name, "known")
            if name not in self.noted:
                self._tell(name, "told")
        if name not in self.programs:
            return
        self.tables(program_reads(self.programs[name]))
        waits, step = self._waits(name), f"%{name} as rows of neurons"
        leaves, block = self.every and self.early and waits, cells.neurons(self.emulate)
        bind = {"at_ptr": "at", "blocks_ptr": "open", "found_ptr": "found", "room_ptr": "room", "begin_ptr": "begin", **self._ends(name)}
        bind |= {f"{s}_ptr": f"{s}:0" for s in ROW_ARRAYS} | {f"{s}_ptr": s for s in ("group", "best", "raw_best", "done")}
        if waits:
            for function, of in (("count_open", cells.open_cells), ("find_open", cells.find_cells)):
                if function == "find_open" or name not in self.noted:
                    constants = of(node, self.tight, self.emulate)
                    self._launch(function, constants, bind, count=cells.parts(node, self.emulate), step=step)
        self._add(ScriptEntry("wait" if waits else "every", target=name))
        for verb in (*(["ahead"] if leaves else []), "first", "second"):
            constants = cells.open_rows(node, verb == "second", verb == "ahead", leaves, self.emulate)
            self._launch("open_neurons", constants, bind, block, step=step, verb=verb)
        self._launch("close_neurons", cells.close_rows(self.every, leaves, self.emulate), bind, block, step=step, verb="close")
        if name in self.shown and not self._tells_late(name):
            self._tell(name, "told_after")

    def _tells_late(self, name: str) -> bool:
        """Whether the node's neurons are narrowed and the next box to be made is its ReLU's, whose kernel tells of both."""
        k = next(k for k, n in enumerate(self.net.nodes) if n.name == name) + 1
        after = self.net.nodes[k] if k < len(self.net.nodes) else self.net.input
        follows = after.op == "relu" and after.inputs == (name,) and self._is_whole(after.name)
        return follows and name in self.programs and name in self.shown

    def forms(self, node: Node) -> None:
        """A query's rows, of exact coefficients and of others."""
        bind = {f"{s}_ptr": f"{s}:0" for s in ROW_ARRAYS} | {f"{s}_ptr": s for s in ("group", "best", "raw_best", "done", "forms", "gap")}
        bind |= {"rows_ptr": "block", "of_ptr": "of", "minus_ptr": "minus", "group_of_ptr": "group_of", "numbers_ptr": "flushed"}
        bind |= {**self._ends(node.name), "start_ptr": "buf:0"}
        for verb in ("forms", "gaps"):
            constants = cells.open_forms(node, verb == "gaps", self.numerics, self.emulate)
            count = cells.forms(self.emulate)
            step = f"%{node.name} as rows of a query"
            self._launch("open_forms", constants, bind, count, step=step, verb=verb, numerics=self.numerics.name)
