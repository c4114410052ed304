# ruff: noqa: E501  one row a mutant
"""Faults of what a layer says of the deployed network: each finding of an attack, and its relatives."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

SUMS, STORAGE, LAW = "tests/soundness/test_deployed_sums.py", "tests/soundness/test_storage.py", "tests/ir/test_deployed.py"
FORWARD, LAYOUTS, FOLD = "tests/kernels/test_forward.py", "tests/passes/test_layout.py", "tests/passes/test_fold.py"
COMPARE, DRAWN = "tests/frontend/test_onnx_compare.py", "tests/frontend/test_onnx_drawn.py"
LOSSES = f"{LAW}::test_each_loss_is_missed"
FOLDS, LAYOUT, DEPLOYED, REWRITE = "passes/fold.py", "passes/layout.py", "ir/deployed.py", "passes/rewrite.py"
OPS, CONSTANTS, IMPORT = "frontend/onnx_ops.py", "frontend/onnx_constants.py", "frontend/onnx.py"

DEPLOYED_SUMS: tuple[Mutant, ...] = (
    # constants and padding that are absorbed, cells that repeat
    m("a shift counts one term too few", FOLDS, 'max(n.integer("summands"), terms)', 'max(n.integer("summands"), terms - 1)', SUMS, LAW),
    m("a shift counts what is left of the terms", FOLDS, 'max(n.integer("summands"), terms)', 'max(n.integer("summands"), 1)', SUMS, LAW),
    m("a shift of zero sums to something", FOLDS, "if np.any(cabs != 0):  # an", "if True:  # an", f"{LAW}::test_a_scale_that_adds_nothing_keeps_zeros_out_of_the_count"),
    m("the second sum forgets what it absorbed", FOLDS, 'max(terms, n.integer("summands")) + 2', "terms + 2", SUMS, LAW),
    m("the first sum's count is dropped in a merge", FOLDS, 'replace(source, shape=n.shape).without("to")', 'replace(source, shape=n.shape).without("to", "summands")', SUMS, LAW),
    m("a batch norm behind a sum rounds nothing", FOLDS, '+ 3, source.integer("ops") + n.integer("ops") + 2', '+ 3, source.integer("ops")', FOLD, LAW),
    m("repeated cells count once", LAYOUT, 'max(reader.integer("summands"), int(used.sum()))', "int(np.unique(index[used]).size)", SUMS, LAW),
    m("repeated cells count as before", LAYOUT, 'max(reader.integer("summands"), int(used.sum()))', 'reader.integer("summands")', SUMS, LAW),
    m("cells read twice are not repeated", LAYOUT, "    if repeats > 1:\n", "    if repeats > 2:\n", LAYOUTS, LAW),
    m("columns that cancel leave no magnitude", LAYOUT, '_added(np.abs(w), index, source.size), Ref(name)', 'np.abs(_added(w, index, source.size)), Ref(name)', LAYOUTS, LAW),
    m("merged columns pass for deployed ones", LAYOUT, '"ops": reader.integer("ops") + 1}', '"ops": reader.integer("ops")}', LAYOUTS),
    m("large weights go out of sight", LAYOUT, "return w is not None and bool((np.abs(w[:, index < 0]) > HALF_MOST).any())", "return False", f"{LAW}::test_weights_out_of_sight_are_missed"),
    m("the tensor form counts the cells it sees", "runtime/forward.py", "float(layer.summands or 0), dtype", "float(layer.terms), dtype", FORWARD, SUMS),
    m("the kernels' count is of the cells they see", "runtime/forward_kernels.py", "float(layer.summands or 0), dtype", "float(layer.terms), dtype", FORWARD),
    m("a count of another batch's size is taken", "runtime/forward_kernels.py", "key = layer.node.name, shape[0]", "key = layer.node.op, 0", FORWARD),
    m("absorbed terms flush nothing", "runtime/layers.py", "return max(self.terms, self.summands or 0)", "return self.terms", FORWARD),
    # the law
    m("law: a loss does not end the pass", REWRITE, "    if problem:\n", "    if problem and not problem:\n", LAW),
    m("law: roundings may go", DEPLOYED, '(("roundings", "roundings"), ("conversions"', '(("conversions"', LOSSES),
    m("law: conversions may go", DEPLOYED, '("conversions", "conversions of operands"), ', "", LOSSES),
    m("law: magnitudes may shrink", DEPLOYED, "(now.magnitude < was.magnitude * ROOM).any()", "(now.magnitude < 0).any()", LOSSES),
    m("law: cells may become zero", DEPLOYED, "    if (was.present & ~now.present).any():\n", "    if (was.present & now.present & False).any():\n", LOSSES),
    m("law: all cells are always there", DEPLOYED, "    yield {name: np.zeros(size, dtype=bool) for name, size in shared.items()}\n", "", LOSSES),
    m("law: repeated cells are never alone", DEPLOYED, "        yield repeated\n", "        yield {name: np.ones(size, dtype=bool) for name, size in shared.items()}\n", LOSSES),
    m("law: a constant beside a zero is zero", DEPLOYED, "present = operand.present & (a != 0) | (c != 0) | (size != 0)", "present = operand.present & (a != 0)", LOSSES),
    m("law: flushes may go out of sight", DEPLOYED, "return charged < was.exposed", "return charged < 0 * was.exposed", f"{LAW}::test_weights_out_of_sight_are_missed"),
    m("law: the storage type may go", DEPLOYED, 'if before.input.integer("half") > after', 'if 0 * before.input.integer("half") > after', f"{LAW}::test_the_storage_type_is_missed"),
    m("law: another output will do", DEPLOYED, "    if before.output != after.output:\n", "    if False:\n", f"{LAW}::test_another_output_must_owe_as_much"),
    m("law: a layer counts nothing of its own", DEPLOYED, 'summands(net, node, operand.present) + 1 + node.integer("ops")', 'node.integer("ops")', LOSSES),
    # what a network stores, flushes or overflows
    m("activations of float16 pass for float32", OPS, "computes = op.live is not op.known if isinstance(value, Act) else not value.exact", "computes = False if isinstance(value, Act) else not value.exact", STORAGE),
    m("constants computed in float16 pass for float32", OPS, "computes = op.live is not op.known if isinstance(value, Act) else not value.exact", "computes = op.live is not op.known if isinstance(value, Act) else False", STORAGE),
    m("what only moves float16 numbers is refused", OPS, "computes = op.live is not op.known if isinstance(value, Act) else not value.exact", "computes = True", STORAGE),
    m("deployed semantics take float16 networks", "runtime/forward.py", 'if net.input.integer("half") and not semantics.real:', "if False:", STORAGE),
    m("exact arithmetic refuses float16 networks", "runtime/forward.py", 'if net.input.integer("half") and not semantics.real:', 'if net.input.integer("half"):', STORAGE),
    m("subnormal constants are multiplied", CONSTANTS, "        for k in known:\n            need_normal(s, k)\n", "", STORAGE),
    m("a subnormal divisor divides", OPS, "    con.need_normal(s, c)\n", "", STORAGE),
    m("an extreme alpha is taken", OPS, "(apart or 2.0**-REACH < abs(factor) < 2.0**REACH)", "True", STORAGE),
    m("alpha moves no intermediate sum", OPS, '| {"gain": reach(alpha)}', '| {"gain": 0}', STORAGE),
    m("a vanishing variance is taken", OPS, "(spread > TINY_SPREAD).all()", "(spread > 0).all()", STORAGE),
    m("a steep slope flushes like a flat one", "runtime/soundness.py", "return 4 * eta * max(1.0, abs(factor))", "return 4 * eta", STORAGE),
    m("a kernel's steep slope flushes like a flat one", "kernels/cells.py", '4 * ETA * max(1.0, abs(node.number("slope")))', "4 * ETA", "tests/kernels/test_boxes.py"),
    m("a subnormal slope is taken", "ir/ops.py", "slope == 0 or slope >= NORMAL", "slope >= 0", STORAGE),
    # the import, and its check
    m("windows that crop are taken", "frontend/onnx_windows.py", "            if total < 0:  #", "            if total < -size:  #", DRAWN),
    m("a hanging window begins beyond the end", "frontend/onnx_windows.py", "if ceil and span % stride and count * stride < size + low:", "if ceil and span % stride:", DRAWN),
    m("what hangs over counts as padding", "frontend/onnx_windows.py", "self.image[1 + i] + self.real_hi[i]) if padding", "self.image[1 + i] + self.hi[i]) if padding", "tests/frontend/test_onnx.py"),
    m("import: the largest allowance is everyone's", "frontend/onnx_compare.py", "(gap <= allowed) | (allowed == np.inf)", "(gap <= allowed.max()) | (allowed == np.inf)", COMPARE),
    m("import: single inputs have company", "frontend/onnx_compare.py", "np.where(np.arange(size) == i, 1.0, 0.0)", "np.where(np.arange(size) == i, 1.0, 0.5)", COMPARE),
    m("import: a node is given its answer", "frontend/onnx_compare.py", "    known: dict[str, Numbers] = {}\n", "    known: dict[str, Numbers] = {h.node: Numbers(theirs[h.tensor]) for h in step.outputs}\n", COMPARE),
    m("import: the largest magnitude is everyone's", "frontend/onnx_enclosure.py", "size + a.size(a.least), before + terms, slack).shaped", "np.full_like(size, size.max()), before + terms, slack).shaped", COMPARE),
    m("import: constants that cancelled weigh nothing", "frontend/onnx_enclosure.py", '_magnitude(net, node, "babs", c).astype(a.size)', "np.abs(c).astype(a.size)", COMPARE),
)  # fmt: skip
