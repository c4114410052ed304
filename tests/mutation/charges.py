# ruff: noqa: E501  one row a mutant
"""Faults in who pays which rounding: in the pass, in the checker that counts, in those who execute the plan."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

PRODUCTS, SHARED = "runtime/layer_products.py", "tests/runtime/test_sharing.py::test_long_products_are_shared"
NARROW, KEPT = "tests/runtime/test_narrow.py", "tests/runtime/test_sides.py::test_an_images_rows_leave_out_what_is_off_in_it"
PASS, CHECK, WALK, LAUNCHES = "passes/charge.py", "ir/check.py", "runtime/cpu/walk.py", "kernels/launches.py"
FRONTIER = "runtime/cpu/frontier.py"
BLOCKS, SUMMED = "runtime/cpu/blocks.py", "tests/runtime/test_blocks.py"
LAYERS, HELD = "runtime/layers.py", "tests/runtime/test_weights.py"
CONVS, CONVOLVED = "runtime/cpu/convs.py", "tests/runtime/test_convs.py"
CHARGES, CENTRES, TERMS = "tests/passes/test_charge.py", "tests/soundness/test_centres.py", "tests/soundness/test_terms.py"
COUNTS, ALIKE, LAUNCHED = f"{CHARGES}::test_the_checker_counts", f"{CHARGES}::test_whoever_pays_rows_pay_the_same", f"{CHARGES}::test_whoever_pays_launches_are_the_same"

PAYMENTS: tuple[Mutant, ...] = (
    m("charges: what pends is forgotten", PASS, '["relu"] * (step.node in pending)', '["relu"] * False', CHARGES),
    m("charges: what pends is paid everywhere", PASS, '["relu"] * (step.node in pending)', '["relu"] * True', CHARGES),
    m("charges: merges add for nothing", PASS, '["sum"] * (step.op == "merge")', '["sum"] * False', CHARGES),
    m("charges: a product is taken for a sum", PASS, '["product"] * affine', '["sum"] * affine', CHARGES),
    m("charges: the layer behind pays once more", PASS, "pay = [] if ahead else _debt(step, pending)", "pay = _debt(step, pending)", CHARGES),
    m("charges: a ReLU pays for whatever comes next", PASS, "and after.node in step.to and", "and", CHARGES),
    m("charges: a candidate may stand between", PASS, " and not after.check\n", "\n", CHARGES),
    m("checker: a charge may be forgotten", CHECK, "need(kind in own or kind in ahead, step, f\"forgets", "need(True, step, f\"forgets", COUNTS),
    m("checker: a charge may be paid twice", CHECK, "need((*own, *ahead).count(kind) == 1, step", "need(True, step", COUNTS),
    m("checker: a charge may be of another kind", CHECK, "need(kind in owed, step", "need(True, step", COUNTS),
    m("checker: whoever reads a ReLU's product owes nothing", CHECK, 'owed.add("relu")', "pass", COUNTS),
    m("checker: whatever comes next may be paid for", CHECK, "after.op in AHEAD and after.node == step.to[0]", "True", COUNTS),
    m("checker: a candidate may stand before what is paid", CHECK, "met and after is not None and not after.check", "met", f"{CHARGES}::test_no_candidate_stands_between_a_relu_and_what_it_has_paid_for"),
    m("checker: a step may keep silent", CHECK, "need(step.pay is not None, step,", "need(True, step,", COUNTS),
    m("silence is taken for nothing to pay", "ir/plan.py", "        if self.pay is None:\n", "        if self.pay is None:\n            return False\n        if self.pay is None:\n", f"{CHARGES}::test_a_plan_that_does_not_say_who_pays_is_not_run"),
    m("the walk forgets what a ReLU pays for the layer behind", WALK, 'if step.pays("behind"):\n            self._charge', "if False:\n            self._charge", ALIKE),
    m("the walk pays for a layer twice", FRONTIER, '        if not step.pays("product"):\n            return\n', "", ALIKE),
    m("the walk pays for the layer behind unasked", WALK, 'not step.pays("behind") or', "", ALIKE),
    m("launches: what is left to the next kernel is forgotten", LAUNCHES, 'return step.pays("product") or entry.due', 'return step.pays("product")', LAUNCHED),
    m("launches: a layer is paid twice", LAUNCHES, 'return step.pays("product") or entry.due', "return True", f"{CHARGES}::test_launches_pay_what_the_plan_says_and_nothing_else"),
    m("launches: a ReLU of its own pass forgets the layer behind", "kernels/steps.py", ', due=step.pays("behind")', "", LAUNCHED),
    m("launches: an interval ReLU forgets the layer behind", "kernels/interval_launches.py", 'replace(out, due=step.pays("behind"))', "out", LAUNCHED),
    m("blocks: what follows in a block rounds half as often", BLOCKS, "own = (terms - block * CHAIN).clamp(max=CHAIN) - at % CHAIN", "own = ((terms - block * CHAIN).clamp(max=CHAIN) - at % CHAIN) // 2", SUMMED),
    m("blocks: blocks meet for nothing", BLOCKS, "return 1 + own + beside.clamp(min=0) + beyond.clamp(min=0)", "return 1 + own + beyond.clamp(min=0)", SUMMED),
    m("blocks: groups meet for nothing", BLOCKS, "return 1 + own + beside.clamp(min=0) + beyond.clamp(min=0)", "return 1 + own + beside.clamp(min=0)", SUMMED),
    m("blocks: groups are one long chain", BLOCKS, "%place = urem i64 %count, {WIDTH}", "%place = urem i64 %count, 1073741824", SUMMED),
    m("blocks: products are no roundings", BLOCKS, "return 1 + own + beside", "return own + beside", TERMS),
    m("blocks: lines of a kernel meet for nothing", BLOCKS, "return terms + min(lines, 3) - 1 + -(-lines // 3) * places - 1", "return terms", SUMMED),
    m("blocks: a cell takes each tap once", BLOCKS, "+ -(-lines // 3) * places - 1", "", SUMMED),
    m("blocks: shifted sums in any order", "runtime/cpu/sums.py", "target[b + q] += source[s0 + q] + source[s1 + q] + source[s2 + q]", "target[b + q] = target[b + q] + source[s0 + q] + source[s1 + q] + source[s2 + q]", SUMMED),
    m("layers: magnitudes of float32 weights have signs", LAYERS, "return self.stored.abs().double() if", "return self.stored.double() if", HELD),
    m("layers: weights that are no float32 numbers are held as such", LAYERS, 'node.op == "linear" and exact32 and w.size', 'node.op == "linear" and w.size', HELD),
    m("layers: what cancelled in a merge is read over", "runtime/layer_products.py", "None if sizes and layer.cancelled else layer.short", "layer.short", HELD),
    m("layers: the largest sum is that of the first outputs", LAYERS, "for k in range(0, len(rows), some):", "for k in range(0, 1, some):", HELD),
    m("convs: rows are summed where the first ones belong", CONVS, "%co = mul i64 %a, %crow", "%co = mul i64 0, %crow", CONVOLVED),
    m("convs: the rows after a part are left out", CONVS, "%more = icmp slt i64 %b, %m.shape0", "%more = icmp slt i64 %m.shape0, %b", CONVOLVED),
    m("convs: of some rows at a time only the first is multiplied", CONVS, "%rows = mul i64 %n, %cells", "%rows = mul i64 1, %cells", CONVOLVED),
    m("blocks: what is left of a layer keeps its places", "runtime/cpu/blocks.py", "max(alone[k], moved[max(before - 1, 0)])", "alone[k]", f"{SUMMED}::test_outputs_that_move_up_are_charged_for_both_places"),
    m("blocks: products round half as much", "runtime/cpu/affine_cells.py", "charged[j] + gamma * (1 + nu) * nn[j]", "charged[j] + gamma * 0.5 * nn[j]", TERMS),
    m("centres: a product's value at its centre stays in the constant", WALK, "            self.backend.pay(self.rows, value, -1.0)\n        self._pay_intercepts", "            self.backend.pay(self.rows, None, -1.0)\n        self._pay_intercepts", CENTRES),
    m("narrow: rows pay nothing for a layer whose off cells they leave out", "runtime/narrow.py", "gap[0] if gap else None, t, floor,", "gap[0] if gap else None, 0 * t, floor,", NARROW),
    m("narrow: every image has the first one's lines", "runtime/narrow.py", "tables.line_stack(relu)[:, image]", "tables.line_stack(relu)[:, 0]", KEPT),
    m("products: every part is the first boxes'", PRODUCTS, "self._plain(node, *parts[k])", "self._plain(node, *parts[0])", SHARED),
    m("products: a scale is cut into outputs", PRODUCTS, 'node.op != "scale" and ', "", SHARED),
    m("products: channels are cut out of their groups", PRODUCTS, 'node.integer("g", 1) == 1', "True", SHARED),
    m("narrow: images have no margin", "runtime/tables.py", "return (frame.h, frame.w) == (1, 1) and not any(frame.halo)", "return True", NARROW),
    m("narrow: the cut above a ReLU is left out with the cells", "runtime/narrow.py", "lines.below, lines.above, lines.upper_cut, t,", "lines.below, lines.above, 0 * lines.upper_cut, t,", NARROW),
    m("vectors: a sum of magnitudes lets signs cancel", "runtime/cpu/vectors.py", "np.float64(abs(row[k])) * xx[k]", "np.float64(row[k]) * xx[k]", NARROW),
    m("vectors: four sums of magnitudes let signs cancel", "runtime/cpu/vectors.py", "v = np.float64(abs(row[k]))", "v = np.float64(row[k])", NARROW),
    m("vectors: a block's magnitudes are its weights", "runtime/cpu/vectors.py", "part.abs_() if sizes", "part if sizes", NARROW),
    m("vectors: a vector is another's", "runtime/cpu/vectors.py", "x[b + 2], x[b + 3]", "x[b + 3], x[b + 2]", NARROW),
    m("blocks: a part of a layer has the columns of the whole", "runtime/cpu/blocks.py", "row[columns[at]] if at", "row[at] if at", NARROW),
    m("centres: a candidate forgets what is owed", WALK, "                self.backend.pay(self.rows, value, -1.0)\n            ball", "                self.backend.pay(self.rows, None, -1.0)\n            ball", CENTRES),
    m("centres: a pass of its own pays nothing", FRONTIER, "        self.backend.pay(self.rows, value, -1.0)\n\n", "        self.backend.pay(self.rows, None, -1.0)\n\n", CENTRES),
    m("centres: an entry that waits owes another's centre", FRONTIER, "if found is not None and self.arriving.get(name):", "if found is not None and False:", CENTRES),
    m("centres: a sum over a centre rounds nothing", "runtime/charges.py", "layer.rho + gamma(layer.terms + 4, U64), 2 * dot_error(operands)", "layer.rho + gamma(layer.terms + 4, U64), 0.0", CENTRES),
    m("centres: a constant takes the bias alone", "runtime/tables.py", "return self.kit.bias_line(name, width) if found is None else found[0]", "return self.kit.bias_line(name, width)", CENTRES),
    m("centres: an operand lies half as far from its centre", "runtime/cpu/cells.py", "(over if over >= under or over != over else under) * GROW", "(over if over >= under or over != over else under) * 0.5", TERMS),
    m("centres: the image is of the point before it was rounded", "runtime/cpu/cells.py", "middle = np.float64(point[i])", "middle = 0.5 * lo[i] + 0.5 * hi[i]", CENTRES, TERMS),
    m("centres: the image's own sum rounds nothing", "runtime/charges.py", "layer.rho + gamma(layer.terms + 4, U64), 2 * dot", "layer.rho, 2 * dot", CENTRES),
    m("centres: the sum over the image rounds nothing", "runtime/charges.py", "ChargeFactors(sized, dot_error(outputs), imaged,", "ChargeFactors(sized, 0.0, imaged,", CENTRES),
    m("centres: rounded weights meet no radius", "runtime/cpu/affine_cells.py", "charged[j] = c + nu * nn[j]", "charged[j] = c", TERMS),
)
