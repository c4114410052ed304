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

    def begin(self, section: str) -> None:
        self.out: list[ScriptEntry] = []
        self.held = HeldSymbols(given_symbols(section, self.script, self.net.input.name, self.net.output))
        self.script.sections[section] = self.out

    def run(self, programs: Sequence[Launches]) -> RunScript:
        asked = next(p for p in programs if p.program.kind != "bound")
        bound = {p.program.target: p for p in programs if p.program.kind == "bound"}
        for section in ("interval", "refine"):
            self.begin(section)
            for node in self.net.nodes[1:]:
                self.box(node)
                if section == "refine":
                    self.bound(node, bound.get(node.name))
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
        size = {"biggest_ptr": f"biggest:{name}", "total_ptr": f"total:{name}"}
        self._cells("measure_boxes", {}, {**self._ends(name), **size}, self.nodes[name], verb)

    def _cells(self, function: str, constants: Constants, bind: Mapping[str, str], node: Node, verb: str = "play") -> None:
        own = {**constants, **cells.cells(node, self.emulate)}
        self._launch(function, own, bind, count=cells.parts(node, self.emulate), step=f"%{node.name} in {WHERE}", verb=verb)

    def _ends(self, name: str, prefix: str = "box") -> dict[str, str]:
        return {f"{prefix}_lo_ptr": f"low:{name}", f"{prefix}_hi_ptr": f"high:{name}"}

    def _outputs(self, name: str) -> dict[str, str]:
        more = {"error_ptr": f"own:{name}", "biggest_ptr": f"biggest:{name}", "total_ptr": f"total:{name}"}
        return {**self._ends(name), **more}

    # ---- boxes ------------------------------------------------------------------------------------------

    def box(self, node: Node) -> None:
        """The node's box, magnitude and error from its operands' boxes."""
        name, real = node.name, self.how.real
        whole = real or not self.addends.shared.get(name)
        if node.op in AFFINE:
            terms = count_source(node, real)
            self._sums(node, terms)
            if whole and not self.how.flushes:
                source = node.inputs[0]
                if not real:
                    self._measure_once(source)
                counted = {"none": f"magnitude:{name}", "given": f"given:{name}", "present": "terms"}[terms]
                bind = {
                    "centre_ptr": "centre", "spread_ptr": "spread", "magnitude_ptr": f"magnitude:{name}", "babs_ptr": f"babs:{name}",
                    "terms_ptr": counted, "operand_ptr": f"biggest:{source}", "numbers_ptr": f"numbers:{name}", **self._outputs(name),
                }  # fmt: skip
                self._cells("affine_boxes", cells.affine_box(node, self.nodes[source], real, self.emulate), bind, node)
                return
        elif whole and node.op in ("relu", "add", "sub"):
            operations = self.how.passes * self.addends.sums[name] if name in self.addends.sums else 1
            function, constants = cells.elementwise_box(node, 0 if real else operations, self.emulate)
            bind = {k: v for side, i in zip("ab", node.inputs, strict=False) for k, v in self._ends(i, side).items()}
            self._cells(function, constants, {**bind, **self._outputs(name)}, node)
            return
        made = [f"low:{name}", f"high:{name}"]
        made += [f"own:{name}"] if node.op in (*cells.LAYERS, "add", "sub") else []
        made += [f"magnitude:{name}"] if node.op == "scale" else []
        given = [s for i in node.inputs for s in self._ends(i).values()]
        given += ["centre", "spread", f"magnitude:{name}"] if node.op in AFFINE else []
        self._add(ScriptEntry("host", made=tuple(made), given=tuple(given)))

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
        self._cells("tell_boxes", {}, {**self._ends(name), "told_ptr": f"{symbol}:{name}"}, self.nodes[name])

    # ---- tables -----------------------------------------------------------------------------------------

    def tables(self, symbols: Iterable[str]) -> None:
        """Those that this batch has not made yet."""
        for symbol in symbols:
            if symbol not in self.held:
                kind, _, name = symbol.partition(":")
                self._table(kind, name) if kind in cells.TABLES else self._host_table(kind, name)

    def _host_table(self, kind: str, name: str) -> None:
        node = self.nodes[name]
        boxes = [s for i in (name, *node.inputs) for s in self._ends(i).values()]
        more = [s for s in (f"magnitude:{name}", f"own:{name}") if s in self.held]
        self._add(ScriptEntry("host", made=(f"{kind}:{name}",), given=(*(boxes if kind != "term_lo" and kind != "term_hi" else ()), *more)))

    def _table(self, kind: str, name: str) -> None:
        node, first = self.nodes[name], kind == "first"
        function, constants = cells.table(self.frames, node, kind, self.numerics, self.emulate, real=self.how.real)
        of = node.inputs[0] if function == "relu_tables" else name
        made = PAIRS.get(kind, (kind,))
        made = (*made, "lower") if "below" in made and node.number("slope") not in (0.0, 1.0) else made
        bind = {f"{k}_ptr": f"{k}:{name}" for k in made} | {"numbers_ptr": f"{'own_factors' if first else 'factors'}:{name}"}
        bind |= {"lower_ptr": bind.get("lower_ptr", ""), **self._ends(of), "own_error_ptr": f"own:{name}", "babs_ptr": f"babs:{name}"}
        bind |= {"magnitude_ptr": f"magnitude:{name}", "total_ptr": f"total:{name}"}
        bind |= {"operand_ptr": f"total:{node.inputs[0]}"} if node.inputs else {"operand_ptr": ""}
        bind |= {"t_ptr": f"{kind}:{name}"} if first else {"floor_ptr": f"{kind}:{name}"} if kind == "underflow" else {}
        count = 1 if function == "floors" else cells.parts(node, self.emulate)
        numerics = cells.table_numerics(kind, self.numerics).name
        self._launch(function, constants, bind, count=count, step=f"%{name} in a batch's tables", numerics=numerics)

    # ---- rows -------------------------------------------------------------------------------------------

    def bound(self, node: Node, program: Launches | None) -> None:
        """A node's undecided neurons are narrowed: found, made rows of either sign, and brought back."""
        name = node.name
        if name in self.shown:
            self._measure(name, "known")
            self._tell(name, "told")
        if program is None:
            return
        self.tables(program_reads(program))
        waits, step = name not in self.unsettled, f"%{name} as rows of neurons"
        leaves, block = self.every and self.early and waits, cells.neurons(self.emulate)
        bind = {"at_ptr": "at", "blocks_ptr": "open", "found_ptr": "found", "room_ptr": "room", "begin_ptr": "begin", **self._ends(name)}
        bind |= {f"{s}_ptr": f"{s}:0" for s in ROW_ARRAYS} | {f"{s}_ptr": s for s in ("group", "best", "raw_best", "done")}
        if waits:
            for function, of in (("count_open", cells.open_cells), ("find_open", cells.find_cells)):
                constants = of(node, self.tight, self.emulate)
                self._launch(function, constants, bind, count=cells.parts(node, self.emulate), step=step)
        self._add(ScriptEntry("wait" if waits else "every", target=name))
        for verb in (*(["ahead"] if leaves else []), "first", "second"):
            constants = cells.open_rows(node, verb == "second", verb == "ahead", leaves, self.emulate)
            self._launch("open_neurons", constants, bind, block, step=step, verb=verb)
        self._launch("close_neurons", cells.close_rows(self.every, leaves, self.emulate), bind, block, step=step, verb="close")
        if name in self.shown:
            self._tell(name, "told_after")

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
