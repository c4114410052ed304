# ruff: noqa: E501  one row a mutant
"""Faults of what a layer says of the deployed network: each finding of an attack, and its relatives."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

SUMS, STORAGE, LAW = "tests/soundness/test_deployed_sums.py", "tests/soundness/test_storage.py", "tests/ir/test_deployed.py"
FORWARD, LAYOUTS, FOLD = "tests/kernels/test_forward.py", "tests/passes/test_layout.py", "tests/passes/test_fold.py"
COMPARE, DRAWN = "tests/frontend/test_onnx_compare.py", "tests/frontend/test_onnx_drawn.py"
GUARD, NUMBERS = "tests/api/test_guard.py", "tests/frontend/test_numbers.py"
LOSSES = f"{LAW}::test_each_loss_is_missed"
FOLDS, LAYOUT, DEPLOYED, REWRITE = "passes/fold.py", "passes/layout.py", "ir/deployed.py", "passes/rewrite.py"
OPS, CONSTANTS, IMPORT = "frontend/onnx_ops.py", "frontend/onnx_constants.py", "frontend/onnx.py"
MATRICES = "frontend/onnx_matrices.py"
NNET, ANSWERS = "frontend/nnet.py", "tests/frontend/test_nnet.py::test_answers_are_what_the_text_states"

DEPLOYED_SUMS: tuple[Mutant, ...] = (
    # constants and padding that are absorbed, cells that repeat
    m("a shift counts one term too few", FOLDS, 'max(n.integer("summands"), terms)', 'max(n.integer("summands"), terms - 1)', SUMS, LAW),
    m("a shift counts what is left of the terms", FOLDS, 'max(n.integer("summands"), terms)', 'max(n.integer("summands"), 1)', SUMS, LAW),
    m("a shift of zero sums to something", FOLDS, "if np.any(cabs != 0):  # an", "if True:  # an", f"{LAW}::test_a_scale_that_adds_nothing_keeps_zeros_out_of_the_count"),
    m("the second sum forgets what it absorbed", FOLDS, 'max(terms, n.integer("summands")) + 2', "terms + 2", SUMS, LAW),
    m("the first sum's count is dropped in a merge", FOLDS, 'replace(source, shape=n.shape).drop("to")', 'replace(source, shape=n.shape).drop("to", "summands")', SUMS, LAW),
    m("a batch norm behind a sum rounds nothing", FOLDS, '+ 3, source.integer("ops") + n.integer("ops") + 2', '+ 3, source.integer("ops")', FOLD, LAW),
    m("repeated cells count once", LAYOUT, 'max(reader.integer("summands"), int(used.sum()))', "int(np.unique(index[used]).size)", SUMS, LAW),
    m("repeated cells count as before", LAYOUT, 'max(reader.integer("summands"), int(used.sum()))', 'reader.integer("summands")', SUMS, LAW),
    m("cells read twice are not repeated", LAYOUT, "    if repeats > 1:\n", "    if repeats > 2:\n", LAYOUTS, LAW),
    m("columns that cancel leave no magnitude", LAYOUT, '_add_columns(np.abs(w), index, source.size), Ref(name)', 'np.abs(_add_columns(w, index, source.size)), Ref(name)', LAYOUTS, LAW),
    m("merged columns pass for deployed ones", LAYOUT, '"ops": reader.integer("ops") + 1}', '"ops": reader.integer("ops")}', LAYOUTS),
    m("large weights go out of sight", LAYOUT, "return w is not None and bool((np.abs(w[:, index < 0]) > HALF_MOST).any())", "return False", f"{LAW}::test_weights_out_of_sight_are_missed"),
    m("the tensor form counts the cells it sees", "runtime/forward.py", "float(layer.summands or 0), dtype", "float(layer.terms), dtype", FORWARD, SUMS),
    m("the kernels' count is of the cells they see", "runtime/gpu/places.py", "float(layer.summands or 0), dtype", "float(layer.terms), dtype", f"{FORWARD}::test_rounding_is_charged_for_the_operands_that_take_part"),
    m("a count of another batch's size is taken", "runtime/gpu/places.py", "count = batch * (1 if", "count = 1 * (1 if", f"{FORWARD}::test_a_given_count_is_of_its_own_layer_and_batch"),
    m("absorbed terms flush nothing", "runtime/layers.py", "return max(self.terms, self.summands or 0)", "return self.terms", f"{FORWARD}::test_rounding_is_charged_for_the_operands_that_take_part"),
    # copies that are computed with one by one
    m("copies of a cell are added once", LAYOUT, "_index(net, both[1])) and _distinct(shared[shared >= 0])", "_index(net, both[1]))", f"{LAW}::test_what_is_computed_twice_is_not_computed_once", SUMS),
    m("copies of a cell leak once", LAYOUT, "if rounds(reader) and not _distinct(index[index >= 0]):", "if False:", f"{LAW}::test_what_is_computed_twice_is_not_computed_once", SUMS),
    m("copies of a leak are no copies", "ir/ops.py", 'or (node.op == "relu" and node.number("slope") not in (0.0, 1.0))', "", f"{LAW}::test_what_is_computed_twice_is_not_computed_once"),
    m("law: copies may be made of what is computed twice", DEPLOYED, "    if _merges(was.label, now.label):\n", "    if False:\n", f"{LAW}::test_what_is_computed_twice_is_not_computed_once"),
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
    m("subnormal constants are multiplied", CONSTANTS, "            need_normal(s, k)\n", "            pass\n", STORAGE),
    m("a subnormal divisor divides", OPS, "    con.need_normal(s, c)\n", "", STORAGE),
    m("an extreme alpha is taken", MATRICES, "(apart or 2.0**-REACH < abs(factor) < 2.0**REACH)", "True", STORAGE),
    m("alpha moves no intermediate sum", MATRICES, '| {"gain": reach(alpha)}', '| {"gain": 0}', STORAGE),
    m("a vanishing variance is taken", OPS, "(spread > pro.TINY_SPREAD).all()", "(spread > 0).all()", STORAGE),
    m("a steep slope flushes like a flat one", "rounding.py", "return 4 * eta * max(1.0, abs(factor))", "return 4 * eta", STORAGE),
    m("a kernel's steep slope flushes like a flat one", "kernels/cell_kernels.py", 'flush_loss(ETA, slope)', "flush_loss(ETA)", STORAGE),
    m("a subnormal slope is taken", "ir/ops.py", "slope == 0 or slope >= NORMAL", "slope >= 0", STORAGE),
    # the import, and its check
    m("windows that crop are taken", "frontend/onnx_windows.py", "            if total < 0:  #", "            if total < -size:  #", DRAWN),
    m("a hanging window begins beyond the end", "frontend/onnx_windows.py", "if ceil and span % stride and count * stride < size + low:", "if ceil and span % stride:", DRAWN),
    m("what hangs over counts as padding", "frontend/onnx_windows.py", "self.image[1 + i] + self.real_hi[i]) if padding", "self.image[1 + i] + self.hi[i]) if padding", "tests/frontend/test_onnx.py"),
    m("nnet: the last layer has a ReLU", NNET, "if k + 1 < layers:", "if k < layers:", ANSWERS),
    m("nnet: no layer but the first has a ReLU", NNET, "if k + 1 < layers:", "if k == 0 < layers - 1:", ANSWERS),
    m("nnet: inputs are cut below at their greatest", NNET, '("Max", box[0])', '("Max", box[1])', ANSWERS),
    m("nnet: outputs are moved before they are stretched", NNET, 'model.emit("Mul", scale[1][-1:])\n        model.emit("Add", scale[0][-1:])', 'model.emit("Add", scale[0][-1:])\n        model.emit("Mul", scale[1][-1:])', ANSWERS),
    m("nnet: weights beyond float32 are taken", NNET, "if not all(isfinite(v) for v in row.tolist()):", "if not all(isfinite(v) for v in values):", "tests/frontend/test_nnet.py::test_what_is_wrong_is_told_by_its_line"),
    m("import: the largest allowance is everyone's", "frontend/onnx_compare.py", "(gap <= allowed) | (allowed == np.inf)", "(gap <= allowed.max()) | (allowed == np.inf)", COMPARE),
    m("import: single inputs have company", "frontend/onnx_compare.py", "np.where(np.arange(size) == i, 1.0, 0.0)", "np.where(np.arange(size) == i, 1.0, 0.5)", COMPARE),
    m("import: a node is given its answer", "frontend/onnx_compare.py", "    known: dict[str, Numbers] = {}\n", "    known: dict[str, Numbers] = {h.node: Numbers(theirs[h.tensor]) for h in step.outputs}\n", COMPARE),
    m("import: the largest magnitude is everyone's", "frontend/onnx_enclosure.py", "size + a.size(a.least), before + terms, slack).reshape", "np.full_like(size, size.max()), before + terms, slack).reshape", COMPARE),
    m("import: constants that cancelled weigh nothing", "frontend/onnx_enclosure.py", "* big + bias + a.size", "* big + np.abs(c).astype(a.size) + a.size", COMPARE),
    m("import: weights that are uncertain weigh what they are", "frontend/onnx_enclosure.py", "* big + bias + a.size", "* np.abs(factor).astype(a.size) + bias + a.size", "tests/frontend/test_onnx.py"),
    # what a caller has set, files that are replaced, boxes
    m("a public function is left unguarded", "frontend/vnnlib.py", "@guard\n@pause_collection()\ndef read_vnnlib", "@pause_collection()\ndef read_vnnlib", f"{GUARD}::test_every_public_function_is_guarded"),
    m("the command line is left unguarded", "cli.py", "@guard\ndef main", "def main", f"{GUARD}::test_every_public_function_is_guarded"),
    m("the caller's arithmetic is not put back", "guard.py", "    finally:\n        put(old)", "    finally:\n        pass", f"{GUARD}::test_no_state_reaches_a_result"),
    m("a callback may change the arithmetic", "guard.py", '            _need("a function that was called meanwhile has changed how this thread rounds")\n', "", f"{GUARD}::test_what_a_callback_changes_does_not_pass_unseen"),
    m("spoilt workers compute", "runtime/settings.py", "    if alone:\n        torch.set_num_threads(1)", "    if alone:\n        pass", f"{GUARD}::test_workers_of_torch_that_began_in_another_arithmetic"),
    m("the default type is the caller's", "runtime/settings.py", "        torch.set_default_dtype(torch.float32)\n", "        pass\n", f"{GUARD}::test_a_generators_caller_has_its_own_settings_between_the_steps"),
    m("the cache reads a model twice", "cache.py", "verifier = compile_bytes(data, stem,", "verifier = compile_bytes(_read(path) or data, stem,", "tests/artifact/test_cache.py::test_a_file_replaced_in_between_is_never_kept_as_the_old_one"),
    m("a cached network of another file is used", "cache.py", "if (source, made) != (made_from, candidates):", "if made != candidates:", "tests/artifact/test_cache.py::test_an_entry_of_another_file_is_not_used", "tests/api/test_several.py::test_networks_that_were_tied_otherwise_are_not_used"),
    m("integers are rounded to nearest", "frontend/numbers.py", 'odd = np.abs(near) >= WHOLE if kind in "ui"', 'odd = np.abs(near) >= np.inf if kind in "ui"', f"{NUMBERS}::test_ends_are_rounded_outward"),
    m("narrow pixels narrow epsilon", "frontend/balls.py", 'return pixels if pixels.dtype.kind in "ui" else as_float64(pixels, "the image")', "return pixels", f"{NUMBERS}::test_balls_around_narrow_pixels_hold_epsilon_as_it_is"),
    # sums that a runtime makes inside a layer
    m("a residual is rounded once", "runtime/forward.py", "self.semantics.passes * self.addends.sums[node.name], magnitude", "1, magnitude", "tests/soundness/test_addends.py"),
    m("an addend passes no products", "ir/addends.py", "max(before) + max(_products(net, n), n.integer(\"summands\"))", "max(before) + 0 * max(_products(net, n), n.integer(\"summands\"))", "tests/soundness/test_addends.py"),
    m("a scale hides the layer before it", "ir/addends.py", "passed[n.name] = max(before) + n.integer(\"ops\") + 2", "passed[n.name] = 0", "tests/soundness/test_addends.py"),
    m("layers before the last hold no addend", "ir/addends.py", "max(before) + max(_products", "max(_products", "tests/soundness/test_addends.py"),
    m("of two layers an addend is put into one", "ir/addends.py", 'sum(before) + n.integer("ops") + 1', 'max(before) + n.integer("ops") + 1', "tests/soundness/test_addends.py"),
    m("an operand is put into what is computed from it", "ir/addends.py", "0 if other in made_of[own]", "0 if own in made_of[other]", "tests/soundness/test_addends.py"),
    m("a scale's constant stays where it is", "runtime/forward.py", "self.semantics.passes * self.addends.late.get", "0 * self.addends.late.get", "tests/soundness/test_addends.py"),
    m("a layer's constant stays where it is", "ir/addends.py", "count + layers.get(name, 0)", "count", "tests/soundness/test_addends.py"),
    m("sums that make an operand anew share its rounding", "runtime/forward.py", "e = up(e + 2 * self._own_error(i, boxes))", "e = up(e + 0 * self._own_error(i, boxes))", "tests/soundness/test_addends.py"),
    m("layers that make an operand anew share its rounding", "runtime/forward.py", "2 * self.sizes_product(layer, self._own_error", "0 * self.sizes_product(layer, self._own_error", "tests/soundness/test_addends.py"),
    m("certificates: constants stay where they are", "checker_files.py", "made.passed or (self.chain[made.inputs[0]][0],)", "made.passed or (2 * (self.chain[made.inputs[0]][0] > 0),)", "tests/certificate/test_addends.py"),
    m("certificates: of two layers an addend is put into one", "checker_files.py", "met, gain = (sum(v) for v in zip", "met, gain = (max(v) for v in zip", "tests/certificate/test_addends.py"),
    m("only the last sum counts", "ir/addends.py", "behind[r.name] + (r.op in SUMS)", "(r.op in SUMS)", "tests/soundness/test_addends.py"),
    m("certificates: a residual is rounded once", "checker_files.py", "passed=(self.chain[j][0], self.chain[i][0]))", "passed=(2, 2))", "tests/certificate/test_addends.py"),
    m("certificates: a residual passes its own layers", "checker_files.py", "passed=(self.chain[j][0], self.chain[i][0]))", "passed=(self.chain[i][0], self.chain[j][0]))", "tests/certificate/test_addends.py"),
    m("certificates: weights may grow without end", "checker_files.py", "self.note(gain <= GAIN", "self.note(True or gain <= GAIN", "tests/certificate/test_addends.py"),
)  # fmt: skip
