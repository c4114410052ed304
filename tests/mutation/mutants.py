# ruff: noqa: E501  one row a mutant
"""Single faults in the numerics: a text of one file, what takes its place, and the tests likeliest to notice first."""

from __future__ import annotations

from tests.mutation.balls import BALLS
from tests.mutation.boxes import BOX_SUMS
from tests.mutation.certificates import CERTIFICATES
from tests.mutation.charges import PAYMENTS
from tests.mutation.curves import CURVES
from tests.mutation.deployed import DEPLOYED_SUMS
from tests.mutation.ends import ENDS
from tests.mutation.input_maps import INPUT_MAPS
from tests.mutation.launches import LAUNCHES
from tests.mutation.mutant import Mutant, m
from tests.mutation.pieces import PIECES
from tests.mutation.properties import PROPERTIES
from tests.mutation.reach import REACH
from tests.mutation.recipes import RECIPES
from tests.mutation.search import SEARCHES
from tests.mutation.several import SEVERAL
from tests.mutation.tapes import TAPES

CONSTANTS, TERMS = "tests/soundness/test_constants.py", "tests/soundness/test_terms.py"
SUBNORMAL = "tests/soundness/test_subnormal_weights.py"
TRAPS, GAPS, DEPLOYED = "tests/soundness/test_traps.py", "tests/soundness/test_gaps.py", "tests/soundness/test_deployments.py"
PROCESS, SOUND, FOLD = "tests/soundness/test_process.py", "tests/soundness/test_soundness.py", "tests/passes/test_fold.py"
SOAK = "tests/soak/test_soak.py::test_a_burst_of_cases"
BACKEND, WINDOWS = "tests/runtime/test_backend.py", "tests/passes/test_windows.py"
PRODUCTS, RELAXATIONS = "tests/runtime/test_products.py", "tests/runtime/test_relaxations.py"
FACTORS = "runtime/charges.py"
AFFINE, ALIKE = "runtime/cpu/affine_cells.py", "tests/runtime/test_affine_cells.py"
UNDECIDED = "tests/runtime/test_undecided.py"
CELLS, COMPILED = "runtime/cpu/cells.py", f"{RELAXATIONS}::test_compiled_cells_are_the_tensor_forms"
LINES = f"{TRAPS}::test_relu_lines_enclose_the_function_in_rationals"
OVERFLOW = f"{TRAPS}::test_overflow_never_makes_a_finite_wrong_bound"
BORDER = f"{TRAPS}::test_no_cell_is_lost_at_a_border"
PASSES = f"{BACKEND}::test_row_passes_are_what_they_say_to_within_dot_error"
WINNERS = f"{RELAXATIONS}::test_winners_of_a_pool"
GRADIENT = f"{PRODUCTS}::test_substituting_a_convolution_is_its_gradient"
FRAME = f"{BACKEND}::test_a_frames_margin_is_zero_and_the_rest_in_place"
BETWEEN = f"{RELAXATIONS}::test_the_operators_own_error_lies_between_the_lines"
DEEPPOLY, ATTACKS = "tests/e2e/test_deeppoly.py", "tests/attacks"
ROWS, STEPS, RUNS = "tests/kernels/test_rows_kernels.py", "tests/kernels/test_steps.py", "tests/kernels/test_kernel_runs.py"
RELAXED, LEAST = f"{ROWS}::test_relax_rows", f"{ROWS}::test_concretize_rows"
DENSE, CONV, JOIN, START = (f"{STEPS}::test_{n}" for n in ("dense_step", "conv_step", "join_rows", "start_rows_on_slices_of_the_weights"))
PENDING, PAID = f"{STEPS}::test_pending_roundings_are_paid_where_the_sum_cancels", f"{ROWS}::test_roundings_that_all_go_one_way_are_paid"
BROKEN = f"{ROWS}::test_nothing_finite_comes_of_a_broken_row"
PARTS, ENLARGED = "tests/kernels/test_forward.py::test_parts_are_those_of_the_tensor_form", "tests/kernels/test_forward.py::test_sums_keep_their_enlargement"
AT_ONCE, RELUS = "tests/kernels/test_fused_cells.py", "kernels/device/relus.py"
FORWARD, COMPACT = "tests/kernels/test_forward.py", "tests/kernels/test_compact.py"
SLOPES, ROUTES, EVERY = "tests/kernels/test_elementwise.py", "tests/kernels/test_routes.py", "tests/kernels/test_every_operator.py"
CHARGED = f"{EVERY}::test_launches_charge_what_the_tensor_form_charges"
MERGED, LANES, LANE_RUNS = (f"tests/kernels/test_{n}.py" for n in ("merge_scalars", "lanes", "lane_runs"))
PAPER, THREE_SUMS, PRODUCED = "kernels/device/interval_products.py", "kernels/device/interval_sums.py", "tests/kernels/test_interval.py"
PRODUCT_BITS = "tests/kernels/test_interval_bits.py"
ROUTE, ROUTED = "kernels/device/interval_route.py", "tests/kernels/test_interval_route.py"
INTERVALS, WHOLE = "tests/kernels/test_interval_steps.py", "tests/kernels/test_interval_runs.py"
BOXES, TABLED, NEURONS, PLAYED, TOLD, FORMS = (f"tests/kernels/test_{n}.py" for n in ("boxes", "table_kernels", "neurons", "player", "told", "forms"))
PLAYER = "runtime/gpu/player.py"
LEAPS, LEAPT = "runtime/gpu/leaps.py", "tests/kernels/test_leaps.py"
QUICK = (CONSTANTS, TERMS, GAPS, TRAPS, DEPLOYED, PROCESS, SOAK, BACKEND, PRODUCTS, RELAXATIONS, FOLD, WINDOWS, ATTACKS, SOUND, DEEPPOLY)
KERNELS = (ROWS, STEPS, RUNS, FORWARD, COMPACT)


ARITHMETIC, SOUNDNESS, TABLES, RELAX, WALK = "arithmetic.py", "runtime/soundness.py", "runtime/tables.py", "runtime/relax.py", "runtime/cpu/walk.py"
KIT = "runtime/kit.py"
FRONTIER = "runtime/cpu/frontier.py"
ROW_TEXT, ROW_PASSES, ROW_CODE = "runtime/cpu/row_code.py", "runtime/cpu/row_passes.py", "tests/runtime/test_row_code.py"
FUSED, TORCH, ENGINE, FORWARDS = "runtime/cpu/fused.py", "runtime/cpu/torch_backend.py", "runtime/engine.py", "runtime/forward.py"
SCALARS, SUMS = "runtime/cpu/scalars.py", "runtime/cpu/sums.py"
_SCALARS = "tests/runtime/test_scalars.py::test_"
SETTLED, PAID = f"{_SCALARS}a_candidate_is_no_higher_than_the_exact_one", f"{_SCALARS}rows_pay_for_the_roundings_of_their_scalars"
BROKEN_SCALARS, LEAVE = f"{_SCALARS}nothing_finite_comes_of_a_broken_row", f"{_SCALARS}groups_leave_together_and_padded_rows_count_once"
KEPT = f"{_SCALARS}bounds_are_kept_on_the_side_of_their_sign"
RESULTS = "runtime/results.py"
FOLDS, LAYOUT, WINDOW, ROUNDING = "passes/fold.py", "passes/layout.py", "passes/windows.py", "rounding.py"
LOWER, MERGES, PROGRAMS = "passes/lower.py", "tests/passes/test_merges.py", "tests/passes/test_lower.py"


MUTANTS: tuple[Mutant, ...] = (
    # constants
    m("halve gamma of a product", ARITHMETIC, "return gammas(terms, self.u)\n", "return gammas(terms, self.u / 2)\n", CONSTANTS),
    m("halve gamma", ROUNDING, "return (n * u) / (1 - n * u) * GROW", "return (n * u / 2) / (1 - n * u) * GROW", CONSTANTS),
    m("gamma without its denominator", ROUNDING, "(n * u) / (1 - n * u) * GROW", "(n * u) * GROW", CONSTANTS),
    m("row sums cost half", ROUNDING, "return 2 * (terms + 8) * U64", "return 0.5 * terms * U64", CONSTANTS),
    m("sums of one sign are not enlarged", ROUNDING, "return 1 + dot_error(terms) + 8 * U64", "return 1 + 8 * U64", CONSTANTS),
    m("blocks forget their last rounding", ARITHMETIC, "clamp(max=self.inner) + 2", "clamp(max=self.inner)", CONSTANTS),
    m("parts of a split product do not underflow", ARITHMETIC, '"tf32x3", U32, 8 * ETA32', '"tf32x3", U32, ETA32', CONSTANTS),
    m("libraries sum in blocks", ARITHMETIC, "inner=0, centred=True, ", "centred=True, ", CONSTANTS),
    m("float32 rounds like 25 bits", ARITHMETIC, "U32, ETA32, ETA64 = 2.0**-24,", "U32, ETA32, ETA64 = 2.0**-25,", CONSTANTS),
    m("deployed sums round to nearest only", SOUNDNESS, "u: float = 2.0**-23", "u: float = 2.0**-24", CONSTANTS),
    m("a layer's bias is added for nothing", SOUNDNESS, "(nonzero + ops) + 1, sem.u)", "(nonzero + ops) - 1, sem.u)", CONSTANTS),
    m("what merging hid rounds nothing", SOUNDNESS, "* (nonzero + ops) + 1", "* nonzero + 1", CONSTANTS),
    m("tensor cores sum plainly", SOUNDNESS, "gammas(sem.passes *", "gammas(1 *", CONSTANTS),
    m("only one operand is converted", SOUNDNESS, "** (2 * products)", "** products", CONSTANTS),
    m("flushing in a deployed sum costs nothing", SOUNDNESS, "* babs + 2 * lost", "* babs", CONSTANTS),
    m("overflow is not noticed", SOUNDNESS, "(magnitude + babs <= BIG) & (x_max <= BIG)", "magnitude + babs < float(\"inf\")", OVERFLOW),
    m("a residual sum rounds nothing", SOUNDNESS, "gamma(operations, sem.u) * magnitude + flush", "0 * magnitude + flush", CONSTANTS),
    m("a flushed sum costs nothing", SOUNDNESS, "* magnitude + flush_loss(sem.eta, factor)", "* magnitude", CONSTANTS, SOAK),
    # the step vector t
    m("t without the deployed error", TABLES, 't = boxes.error.get(name, zero) if OPS[node.op].kind != "nonlinear" else zero', "t = zero", TERMS),
    m("t of a layer without the deployed error", TABLES, "e=boxes.error[name] if name in boxes.error else torch.zeros_like(size)", "e=torch.zeros_like(size)", TERMS),
    m("t without merged weights", FACTORS, "return ChargeFactors(layer.rho + nu, layer.rho + dot_error", "return ChargeFactors(nu, layer.rho + dot_error", TERMS),
    m("t without stored weights", FACTORS, "nu = 0.0 if layer.exact32", "nu = 0.0 if True or layer.exact32", TERMS),
    m("t without the bias's sum", FACTORS, "layer.rho + nu, layer.rho + dot_error(outputs)", "layer.rho + nu, layer.rho", TERMS),
    m("t without a dense product", TABLES, "return k * size", "return 0 * size", TERMS),
    m("t without a convolution's product", TABLES, "torch.where(below > 0, k * below,", "torch.where(below > 0, 0 * below,", TERMS),
    m("t without subnormal weights", FACTORS, "eta = c.eta if c.dtype == torch.float32 else 0.0", "eta = 0.0", TERMS),
    m("small weights count as zero", KIT, "if self.coefficients.flushes and bool(((w.abs() < self.coefficients.eta) & (w != 0)).any()):\n            w = flush(w, self.coefficients.eta)", "if self.coefficients.flushes:\n            w = flush(w, 2.0**20 * self.coefficients.eta)", SUBNORMAL),
    m("intervals leave out subnormal weights", KIT, "if self.coefficients.flushes and", "if", SUBNORMAL),
    m("t without repeats of a gather", TABLES, "gamma(repeats - 1, c.u) if repeats > 1", "gamma(repeats - 1, c.u) if repeats > 1e9", TERMS),
    m("t without the ReLU's product", TABLES, "t = t + self.kit.pending[name] * xabs", "t = t + 0", TERMS),
    m("t of a layer without the ReLU's product", TABLES, "pending = self.kit.pending.get(name, 0.0) if product else 0.0", "pending = 0.0", TERMS),
    m("compiled t rounded to nearest", AFFINE, "tt[j] = up_to(np.float64(tt[j]), whole)", "pass", ALIKE),
    m("compiled t: subnormal weights of the first image", AFFINE, "eta * below[first // each]", "eta * below[0]", ALIKE),
    m("compiled t: a channel's biases are the first one's", AFFINE, "charged[j] = ee[j] + sized * ss[j] + offset * babs[j]", "charged[j] = ee[j] + sized * ss[j] + offset * babs[0]", ALIKE),
    m("compiled t: pending roundings of another image", AFFINE, "xx = xabs[first:last]", "xx = xabs[:n]", ALIKE),
    m("compiled boxes: magnitudes of another image", AFFINE, "magnitude[first:last]", "magnitude[: len(babs)]", ALIKE),
    m("compiled t: sums of any order are free", AFFINE, "charged[j] = charged[j] + ll[j]", "pass", ALIKE),
    m("compiled t: roundings of the cell's channel", AFFINE, "depths[first if own else 0 : last if own else n]", "depths[:n]", ALIKE),
    m("compiled t: a sum may be of any length", AFFINE, "if x < 0.5 else np.inf", "if x < 2.0 else np.inf", ALIKE),
    m("t rounded to nearest", TABLES, "(self._vector(name, self.absmax(name), self.dtype, product=True), self._floor(name))", "(self._vector(name, self.absmax(name), torch.float64, product=True).to(self.dtype), self._floor(name))", TERMS, SOAK),
    m("a layer's underflow is forgotten", TABLES, "(own + layer.floor_share * below)", "own", TERMS),
    m("a coefficient's underflow is forgotten", TABLES, "up(2 * self.kit.coefficients.eta *", "up(0 * self.kit.coefficients.eta *", TERMS),
    m("boxes rounded to nearest", TABLES, "round_outward(self.boxes.lo[name], self.boxes.hi[name], self.dtype)", "self.boxes.lo[name].to(self.dtype), self.boxes.hi[name].to(self.dtype)", TERMS),
    m("a cell of the box [0, 0] is dead", CELLS, "runs[i] = not hi[i] <= 0 or lo[i] >= 0", "runs[i] = not hi[i] <= 0", GAPS),
    m("dense layers are cut for the first image", TABLES, "self.live(node.name)[image]", "self.live(node.name)[0]", GAPS, DEEPPOLY),
    m("tables' margins are ones", TORCH, "F.pad(values, (0, 0, left, right, t, b)).contiguous()", "F.pad(values, (0, 0, left, right, t, b), value=1).contiguous()", FRAME),
    # relaxations
    m("mu rounded to nearest", RELAX, "torch.where(y.double() < x, torch.nextafter(y, torch.full_like(y, float(\"inf\"))), y)", "y", CONSTANTS),
    m("intercepts without their own rounding", RELAX, "side * (8 * U64 * (f.abs() + product.abs()) + 1e-300)", "0 * side", LINES),
    m("slopes swapped", RELAX, "(steep, chord) if slope <= 1 else (chord, steep)", "(chord, steep) if slope <= 1 else (steep, chord)", LINES),
    m("the upper end of a box is no break point", RELAX, "torch.maximum(torch.maximum(gap_lo, gap_hi), zero)", "torch.maximum(gap_lo, zero)", LINES),
    m("a leaky ReLU rounds nothing", RELAX, "lower_cut - error, (upper_cut + error)", "lower_cut, upper_cut", BETWEEN),
    m("compiled lines without their own rounding", CELLS, "moved = moved + (8 * U64 * (abs(f) + abs(product)) + 1e-300)", "moved = moved + 0.0", COMPILED),
    m("compiled intercepts rounded to nearest", CELLS, "cut[i] = up_to(np.float64(cut[i]), worst)", "cut[i] = np.float64(cut[i])", COMPILED),
    m("compiled lines look at one end of the box", CELLS, "for y in (low, high):", "for y in (low, low):", COMPILED),
    m("a compiled ReLU is on from its upper end", CELLS, "above[i] = 1.0 if low >= 0 else 0.0", "above[i] = 1.0 if high >= 0 else 0.0", COMPILED),
    m("compiled boxes are rounded to nearest below", CELLS, "low[i] = -up_to(-np.float64(low[i]), -lo[i])", "low[i] = np.float64(low[i])", COMPILED),
    m("compiled boxes are rounded to nearest above", CELLS, "high[i] = up_to(np.float64(high[i]), hi[i])", "high[i] = np.float64(high[i])", COMPILED),
    m("every winner is sure", RELAX, "sure = best >= others", "sure = best >= best", WINNERS),
    m("the runner-up is forgotten", RELAX, "most = hi.amax(-1)", "most = best", WINNERS),
    # the walk
    m("pending products at candidates", KIT, "return dot_error(terms) + self.pending.get(name, 0.0)", "return dot_error(terms)", GAPS),
    m("pending products at merges", WALK, '            if step.pays("relu"):\n                weights.append', "            if False:\n                weights.append", GAPS),
    m("a candidate's own sum rounds nothing", KIT, "return dot_error(terms) + self.pending", "return self.pending", GAPS, SOAK, DEEPPOLY),
    m("a candidate's weight is not charged", SCALARS, "slack[r] + weight[r] * rel + floor", "slack[r] + floor", SETTLED),
    m("a candidate's floor is another image's", SCALARS, "weight[r] * rel + floor[image[r]]", "weight[r] * rel + floor[0]", SETTLED),
    m("torch: a candidate's weight is not charged", SCALARS, "torch.add(slack, weight, alpha=rel)", "torch.add(slack, weight, alpha=0.0)", SETTLED),
    m("what is no number replaces a bound", SCALARS, "if abs(value) < np.inf and value > best[k]:", "if not value <= best[k]:", BROKEN_SCALARS),
    m("a row leaves alone", SCALARS, "if not done[group[index[r]]]:", "if not best[index[r]] >= 0:", LEAVE),
    m("a candidate adds its error", SCALARS, "value = found - size\n", "value = found + size\n", SETTLED),
    m("torch: a candidate adds its error", SCALARS, "value = raw - slack\n", "value = raw + slack\n", SETTLED),
    m("scalars round nothing", SCALARS, " * (1 + 8 * U64) + 4 * U64 * abs(constant[r]) + TINY", "", PAID),
    m("torch: scalars round nothing", SCALARS, "(rows.error * (1 + 8 * U64)).add_(rows.constant.abs(), alpha=4 * U64)", "rows.error", PAID),
    m("a merge rounds nothing", WALK, "scale = one_rounding(self.kit.coefficients.u)", "scale = 0 * one_rounding(self.kit.coefficients.u)", GAPS, SOAK),
    m("a merge drops one branch", WALK, "self.backend.union(self.rows, parts[0], parts[1], window)", "self.backend.embed(parts[0][0], self.rows, parts[0][1], window)", SOAK),
    m("the padding mask is skipped", WALK, "        if step.mask:\n", "        if step.mask and False:\n", BORDER, SOAK, DEEPPOLY),
    m("a checkpoint takes every row for proved", RESULTS, "return best > 0 if self.strict else best >= 0", "return best > -1", SOAK, DEEPPOLY),
    m("rows leave, their images stay", WALK, "            self.rows = self.rows.keep(stay)\n", "            kept = self.rows.image[: len(stay)]\n            self.rows = self.rows.keep(stay)\n            self.rows.image = kept\n", SOAK, DEEPPOLY),
    m("sub adds", WALK, "self._add(node, step, -1.0)", "self._add(node, step, 1.0)", SOAK),
    m("shared coefficients are overwritten", FRONTIER, "return m.clone() if any(", "return m if any(", SOAK, f"{RELAXATIONS}::test_both_sides_of_a_sum_keep_their_own_rows"),
    m("overlapping pools round nothing", WALK, "scale = (gamma(meets - 1, u) + dot_error(terms)) * sum_error(terms)", "scale = 0.0", GAPS),
    m("a pool's upper bound is its winner", WALK, "linear = (m > 0) | (b._gather(sure, place).view_as(m) > 0)", "linear = (m > 0) | (m <= 0)", SOAK),
    m("identity rows pay nothing", FRONTIER, "self.backend.pay(self.rows, constant, 1.0, self.tables.first(name)[at])", "self.backend.pay(self.rows, constant, 1.0)", SOAK, DEPLOYED),
    m("a form over the input joins for nothing", WALK, "scale = 2 * self.kit.coefficients.u", "scale = 0 * self.kit.coefficients.u", GAPS),
    # queries
    m("a form's stored coefficients are exact", RESULTS, "off = (exact - start.double()).abs()", "off = 0 * exact", SOAK, GAPS),
    m("a form over the input is exact", "runtime/results.py", "gap = (given - given.to(dtype).double()).abs()", "gap = 0 * given", GAPS, SOAK),
    m("the second sign takes the first's bounds", SCALARS, "kept = up if sign[r] > 0 else down", "kept = down if sign[r] > 0 else up", KEPT),
    m("torch: the second sign takes the first's bounds", SCALARS, "zip(bounds, (1, -1), strict=True)", "zip(bounds, (-1, 1), strict=True)", KEPT),
    m("what is no number becomes a neuron's bound", SCALARS, "return abs(found) < np.inf and not", "return not", KEPT),
    # compiled row passes and their torch forms
    m("concretize swaps the ends", ROW_PASSES, 'cells.add("value", wide, code.where(negative, high, low, "double"))', 'cells.add("value", wide, code.where(negative, low, high, "double"))', SOAK, ROW_CODE),
    m("concretize weighs one end", ROW_PASSES, 'code.where(code.fresh(f"fcmp ogt {code.vector(\'double\')} {a}, {b}"), a, b, "double")', "a", ROW_CODE, PASSES),
    m("concretize swaps the ends in the plain loop", FUSED, "total += x * (high if x < 0 else low)", "total += x * (low if x < 0 else high)", ROW_CODE),
    m("concretize weighs one end in the plain loop", FUSED, "max(abs(low), abs(high))", "abs(low)", ROW_CODE),
    m("relax swaps the slopes", FUSED, "mm[q] = x * (aa[q] if x < 0 else bb[q])", "mm[q] = x * (bb[q] if x < 0 else aa[q])", PASSES, GRADIENT),
    m("the last cell of a line is not charged", FUSED, "err += abs(x) * np.float64(tt[q])", "err += abs(x) * np.float64(tt[q]) if q < line - 1 else 0.0", PASSES, GRADIENT),
    m("the charge behind a ReLU forgets signs", ROW_PASSES, "code.magnitude(behind)", "behind", ROW_CODE, PASSES, GRADIENT),
    m("the charge behind a ReLU forgets signs in the plain loop", FUSED, "err += abs(np.float64(n)) * np.float64(tt[q])", "err += np.float64(n) * np.float64(tt[q])", ROW_CODE),
    m("row code: slopes are swapped", ROW_PASSES, "code.where(negative, tables[\"above\"], tables[\"below\"])", "code.where(negative, tables[\"below\"], tables[\"above\"])", ROW_CODE),
    m("row code: cuts of positive coefficients", ROW_PASSES, 'cells.add_where("total", negative', 'cells.add_where("total", code.compare("ogt", x)', ROW_CODE),
    m("row code: cells before a line's last count twice", ROW_TEXT, 'self.mask = "%mask"', 'self.mask = ""', ROW_CODE),
    m("row code: one cell of a line's last is left out", ROW_TEXT, "icmp uge", "icmp ugt", ROW_CODE),
    m("row code: a line's last cells are left out", ROW_TEXT, "br i1 %ragged, label %few{tag}, label %on{tag}", "br i1 false, label %few{tag}, label %on{tag}", ROW_CODE),
    m("row code: cells before a line's last are overwritten", ROW_TEXT, 'self.fresh(f"load {kind}, ptr {to}, align {SIZES[self.real]}")', "self.zero()", ROW_CODE),
    m("row code: rows on one window share what is behind it", ROW_PASSES, 'alike = ("base", "lines.3", "lines.0")', 'alike = ("base", "lines.0")', ROW_CODE),
    m("row code: rows on one window share a bias", ROW_PASSES, 'alike = ("base", "lines.3", "lines.0")', 'alike = ("base", "lines.3")', ROW_CODE),
    m("row code: rows share a window unasked", ROW_PASSES, 'alike = ("base",)', 'alike = ("height",)', ROW_CODE),
    m("row code: the second row adds to the first's sums", ROW_TEXT, "cells.sums = {name: held[k, name] for name in self.sums}", "cells.sums = {name: held[0, name] for name in self.sums}", ROW_CODE),
    m("row code: rows begin one behind the other", ROW_TEXT, 'self.place("%m", self.number("lines.2", r) if what.moved else at)', 'self.place("%m", at)', ROW_CODE),
    m("row code: lines of a bias lie as the window's do", ROW_PASSES, 'Table("lines.0", "lines.1", "double")', 'Table("lines.0", "next_pitch", "double")', ROW_CODE),
    m("row code: the error is that of the window before", ROW_PASSES, 'Table("lines.3", "next_pitch")', "OWN", ROW_CODE),
    m("row code: half of a vector's sums", ROW_TEXT, "fadd <{width} x double> {parts[0]}, {parts[1]}", "fadd <{width} x double> {parts[0]}, {parts[0]}", ROW_CODE),
    m("row code: the second sums are written over the first", ROW_TEXT, "self.place(f'%{name}', r, real='double')", "self.place(f'%{name}', '%r', real='double')", ROW_CODE),
    m("row code: a choice is taken for another", ROW_TEXT, "i64 {2 << k}, i64 0", "i64 {4 >> k}, i64 0", ROW_CODE),
    m("row code: short lines come in vectors", ROW_TEXT, "%narrow = icmp slt i64 %line, {lanes}", "%narrow = icmp slt i64 %line, 1", ROW_CODE),
    m("shifted sums lose a line of the kernel", SUMS, "if found > k + 2:", "if found > k + 3:", PASSES, GRADIENT),
    m("shifted sums begin a line late", SUMS, "f >= 0 and f % sh == 0 and f // sh < h", "f > 0 and f % sh == 0 and f // sh < h", PASSES, GRADIENT),
    m("rows read the first image's tables", TORCH, "base = rows.image * image + start", "base = 0 * rows.image * image + start", SOAK, PASSES, GRADIENT),
    m("windows begin a cell late", TORCH, "(self.halo[0] - window.h.offset) * pitch", "(self.halo[0] - window.h.offset + 1) * pitch", SOAK, PASSES, GRADIENT),
    m("torch's concretize swaps the ends", TORCH, "(x * torch.where(x < 0, high, low)).sum((1, 2))", "(x * torch.where(x < 0, low, high)).sum((1, 2))", PASSES, GRADIENT),
    m("torch's charge forgets signs", TORCH, "(x.abs() * self._gather(t, place).double()).sum((1, 2))", "(x * self._gather(t, place).double()).sum((1, 2))", PASSES, GRADIENT),
    # windows
    m("a window one cell short", WINDOW, "(axis.size - 1) * s + (k - 1) * d + 1,", "(axis.size - 1) * s + (k - 1) * d,", WINDOWS),
    m("a window ignores padding", WINDOW, "axis.offset * s + p)", "axis.offset * s)", WINDOWS),
    m("a union ignores the second branch", WINDOW, "high = max(a.size - a.offset, b.size - b.offset)", "high = a.size - a.offset", WINDOWS),
    m("a merge keeps the last branch's window", LOWER, "win.union(self.frontier[name], window, self.image(name))", "window", WINDOWS),
    m("a merge keeps the first branch's window", LOWER, "win.union(self.frontier[name], window, self.image(name))", "self.frontier[name]", WINDOWS),
    m("branches meet without a merge", LOWER, "if name in self.frontier:", "if False:", PROGRAMS),
    m("a node is substituted before its last reader", LOWER, "max(writer.frontier, key=lambda name: writer.order[name])", "min(writer.frontier, key=lambda name: (name == net.input.name, writer.order[name]))", MERGES),
    m("the second branch of a sum is forgotten", LOWER, "to, (window,) * len(to)))", "to[:1], (window,)))", PROGRAMS),
    m("coefficients off an image are carried on through a sum", LOWER, 'RESTS = ("relu", "maxpool", "mul", "input", *CURVES)', 'RESTS = ("relu", "maxpool", "input", "add")', PROGRAMS),
    m("clipping takes one cell more", WINDOW, "axis.size - lead - tail), axis.stride", "axis.size - lead - tail - 1), axis.stride", WINDOWS),
    # interval pass
    m("the radius is rounded down", FORWARDS, "rad = up(torch.maximum(hi - mid, mid - lo))", "rad = torch.maximum(hi - mid, mid - lo) * (1 - 2.0**-52)", SOAK, argued="still sound: the spread is enlarged by 2^-34 for sums of half a million terms, and gamma(n + 4) has three roundings of |mid| + rad to spare"),
    m("the interval pass rounds nothing", FORWARDS, "return gamma(layer.terms + 4, 2.0**-53) + layer.rho", "return 0.0", SOAK),
    m("boxes without the deployed error", FORWARDS, "parts.spread, e, magnitude, layer.babs, interval_rounds", "parts.spread, 0 * e, magnitude, layer.babs, interval_rounds", DEPLOYED, SOAK),
    m("magnitudes are those of the middle", AFFINE, "size[i] = abs(middle) + rad[i]", "size[i] = abs(middle)", TERMS, SOAK),
    m("compiled boxes: NaN is a bound below", AFFINE, "low if abs(low) < np.inf else -np.inf", "low if not abs(low) == np.inf else -np.inf", ALIKE),
    m("compiled boxes: half widths of NaN", AFFINE, "over if over >= under or over != over else under", "over if over >= under else under", ALIKE),
    m("compiled boxes: half widths rounded to nearest", AFFINE, "rad[i] = wide * GROW", "rad[i] = wide", ALIKE),
    m("neurons that the loop finds have each other's columns", CELLS, "pixel % width, i % channels", "pixel % height, i % channels", UNDECIDED),
    m("neurons on from below zero get no rows", CELLS, "(high > 0 and (settled or low < 0))", "(high > 0 and low < 0)", UNDECIDED),
    m("neurons of other images are found", "runtime/undecided.py", "torch.nonzero(images[found.where[0]])", "torch.nonzero(images[found.where[0]] | True)", UNDECIDED),
    m("a NaN may pass a ReLU", FORWARDS, "wild = ~(torch.isfinite(lo) & torch.isfinite(hi))", "wild = torch.zeros_like(lo, dtype=torch.bool)", OVERFLOW),
    m("a merged shift hides its terms", "kernels/affine.py", '"given" if "summands" in node.attrs else "present"', '"present"', GAPS),
    m("pools read zeros off the image", FORWARDS, "value=-INF)", "value=0.0)", SOAK),
    m("subnormal inputs are never flushed", FORWARDS, "if not self.semantics.real:  # a ReLU", "if False:  # a ReLU", DEPLOYED),
    m("a sum of boxes rounds nothing", FORWARDS, "width = up(e + 2.0**-52 * magnitude)\n        boxes.lo[node.name], boxes.hi[node.name] = _sane(boxes", "width = up(e)\n        boxes.lo[node.name], boxes.hi[node.name] = _sane(boxes", SOAK),
    # folding
    m("merged products round nothing", FOLDS, 'slack = source.integer("slack") + n.integer("slack") + terms + 3', 'slack = source.integer("slack") + n.integer("slack")', FOLD),
    m("merged scales round nothing", FOLDS, 'source.integer("slack") + n.integer("slack") + 3, source', 'source.integer("slack") + n.integer("slack"), source', FOLD),
    m("merged operations are forgotten", FOLDS, "n.integer(\"ops\") + max(terms, n.integer(\"summands\")) + 2", "n.integer(\"ops\")", FOLD, DEPLOYED),
    m("merged products convert once", FOLDS, 'source.integer("products", 1) + n.integer("products", 1)', "1", FOLD, DEPLOYED),
    m("what cancelled in a merge is forgotten", FOLDS, '"wabs": _round_up(m2 @ m1)', '"wabs": _round_up(np.abs(w2 @ w1))', FOLD),
    m("constants that cancelled are forgotten", FOLDS, '"b": b + w @ c, "babs": _round_up(babs + wabs @ cabs)', '"b": b + w @ c, "babs": np.abs(b + w @ c)', FOLD, SOAK),
    m("a shift before a product is forgotten", FOLDS, "if np.any(cabs != 0):  # an", "if False:  # an", GAPS, FOLD),
    m("a chain of factors has no limit", FOLDS, "return total if total <= REACH else None", "return 0", FOLD, DEPLOYED),
    m("duplicate columns round nothing", LAYOUT, '"slack": reader.integer("slack") + repeats', '"slack": reader.integer("slack")', "tests/passes/test_layout.py"),
    # kernels, in Triton's interpreter
    m("kernels: relax swaps the slopes", "kernels/device/rows.py", "x = x * tl.where(x < 0, above, below)", "x = x * tl.where(x < 0, below, above)", RELAXED),
    m("kernels: the charge forgets signs", "kernels/device/rows.py", "charged += tl.abs(x.to(tl.float64)) *", "charged += x.to(tl.float64) *", RELAXED),
    m("kernels: scalars round nothing", "kernels/device/numerics.py", "(error + charge) * (1 + 8 * U64) + 4 * U64 * tl.abs(constant) + TINY", "error + charge", PAID),
    m("kernels: tables of the first image", "kernels/device/numerics.py", "return image * PLANE + START", "return 0 * image * PLANE + START", RELAXED),
    m("kernels: concretize swaps the ends", "kernels/device/concretize.py", "sums += x * tl.where(x < 0, hi, lo)", "sums += x * tl.where(x < 0, lo, hi)", LEAST),
    m("kernels: a candidate's sum rounds nothing", "kernels/device/concretize.py", "slack = c.REL * tl.sum(sizes, 1) +", "slack = 0 * tl.sum(sizes, 1) +", LEAST, PAID),
    m("kernels: an infinite bound stands", "kernels/device/numerics.py", "tl.where(tl.abs(x) < float(\"inf\"), x, float(\"-inf\"))", "x", BROKEN, RUNS),
    m("kernels: a join drops one branch", "kernels/device/join.py", "out = out + b\n", "out = out\n", JOIN),
    m("kernels: a join rounds nothing", "kernels/device/join.py", "c.OUT_REL * tl.sum(sizes, 1) + floor", "floor", JOIN),
    m("kernels: a sum of plain coefficients is free", "kernels/device/join.py", "    if c.SECOND and c.A_REL + c.B_REL + c.OUT_REL > 0:\n        constant", "    if c.SECOND and c.A_REL + c.B_REL > 0:\n        constant", JOIN),
    m("kernels: pending products cancel for nothing", "kernels/device/join.py", "c.A_REL * tl.sum(a_sizes, 1) + floor", "floor", PENDING, JOIN),
    m("kernels: the padding mask is skipped", "kernels/device/conv.py", "acc = tl.where(on[:, None], acc, 0.0)", "acc = tl.where(on[:, None], acc, acc)", CONV),
    m("kernels: taps one line off", "kernels/device/conv.py", "y0 = to_y + c.TOP - i0 * c.DH", "y0 = to_y + c.TOP - i0 * c.DH + 1", CONV),
    m("kernels: dense slopes swapped", "kernels/device/dense.py", "x = x * tl.where(x < 0, above, below)", "x = x * tl.where(x < 0, below, above)", DENSE),
    m("kernels: neurons pay nothing", "kernels/device/start.py", "pay(constant, error, more, charge)", "pay(constant, error, more, 0.0)", START),
    m("kernels: rows that leave are the wrong ones", "kernels/device/compact.py", "tl.load(done_ptr + group, mask=live, other=1) == 0)\n    to =", "tl.load(done_ptr + group, mask=live, other=1) != 0)\n    to =", COMPACT),
    m("kernels: the interval pass's spread is not enlarged", "kernels/device/forward.py", "spread * GROW, mask=inside)", "spread, mask=inside)", ENLARGED),
    m("kernels: radius to one end only", "kernels/device/forward.py", "(over > under) | (over != over), over, under)", "(over > under) | (over != over), under, over)", PARTS),
    m("kernels: a lane's error is lost", "kernels/device/join.py", "pay(constant, error, more, charge)", "pay(constant, error, more, 0.0)", MERGED),
    m("kernels: merging lanes rounds nothing", "kernels/device/join.py", "constant, error = pay(constant, error, more, charge)", "constant, error = constant + more, error + charge", MERGED),
    m("kernels: a lane's scalars count twice", "kernels/device/join.py", "tl.store(lane_constant_ptr + rows, 0.0, mask=live)", "tl.store(lane_constant_ptr + rows, more, mask=live)", MERGED),
    m("kernels: lanes share buffers", "kernels/arena.py", "or concurrent(touches[o], touches[b])", "or False", LANES),
    m("kernels: a lane reads what the other writes", "kernels/lanes.py", "self.written & other.touched or self.touched & other.written", "self.written & other.written", LANES),
    m("a lane that was broken off is not cleared", "runtime/gpu/binding.py", "self.starts[name].zero_ for", "self.starts[name].numel for", LANE_RUNS),
    m("a region is not joined", "runtime/gpu/binding.py", "                if region:\n                    yield streams.join\n", "", LANE_RUNS),
    m("kernels: a pool moves what may lose", "kernels/device/maxpool.py", "& ((m > 0) | (winner % 2 == 1))", "& (m == m)", f"{ROUTES}::test_constants_that_all_round_one_way_are_paid"),
    m("kernels: a broken row passes a pool", "kernels/device/maxpool.py", " * most + x * 0.0", " * most", f"{ROUTES}::test_a_pool_keeps_what_is_no_number"),
    m("kernels: windows that meet in a cell add up for nothing", "kernels/steps.py", "gamma(meets - 1, lower.numerics.u) + dot_error", "dot_error", CHARGED),
    m("kernels: a leaky ReLU passes through zero", "kernels/steps.py", 'node.number("slope") not in (0.0, 1.0)', "False", CHARGED, EVERY),
    m("kernels: what pends on a ReLU is forgotten", "kernels/device/elementwise.py", "c.PENDING * tl.sum(sizes, 1) + floor", "floor", f"{SLOPES}::test_pending_roundings_are_paid_before_they_are_forgotten"),
    m("kernels: a cell's last reader is left out", "kernels/device/route.py", "begin + k < end", "begin + k + 1 < end", f"{ROUTES}::test_a_gather_keeps_what_is_no_number"),
    m("kernels: a concatenation's charge is forgotten", "kernels/steps.py", 'node.name, "", True, None', 'node.name, "", False, None', CHARGED),
    m("kernels: a split product forgets a part", "kernels/device/dense.py", "for s in range(SK):", "for s in range(1, SK):", "tests/kernels/test_split.py"),
    m("kernels: parts take the same terms", "kernels/device/dense.py", "k += part * (", "k += 0 * (", "tests/kernels/test_split.py"),
    m("kernels: a dense layer's image has no margin", "kernels/launches.py", '"LINE": w * c, "C": k', '"LINE": k, "C": k', f"{EVERY}::test_a_dense_layer_whose_output_is_an_image"),
    m("kernels: a dense layer's image has a bias a channel", "kernels/launches.py", '{"BIAS": "image", **dict', '{"BIAS": "line", **dict', f"{EVERY}::test_a_dense_layer_whose_output_is_an_image"),
    m("kernels: a dense layer's ReLU alone pays no product", "kernels/launches.py", "self._row_pass(entry, source, node.name, charge=behind, out=out)", "self._row_pass(entry, source, node.name, charge=behind and self.nodes[source].op != 'linear', out=out)", f"{EVERY}::test_a_dense_layer_whose_output_is_an_image"),
    m("kernels: pending products at candidates", "kernels/launches.py", " + self.pending.get(name, 0.0)", "", GAPS, STEPS, RUNS),
    # boxes, tables and neurons by kernels
    m("boxes: a layer's width is without its error", "kernels/device/boxes.py", "        width = width + error\n", "", f"{BOXES}::test_affine_boxes_are_those_of_the_tensor_form"),
    m("boxes: a product's underflow is forgotten", "kernels/device/boxes.py", "* GROW + 1e-300  # a product", "* GROW  # a product", f"{BOXES}::test_what_a_relu_makes_of_a_point_lies_in_its_box"),
    m("boxes: overflow of an operand is not noticed", "kernels/device/boxes.py", "(x_max <= BIG) & ", "", f"{BOXES}::test_an_operand_that_may_overflow_leaves_no_bound"),
    m("boxes: what is no bound passes a ReLU", "kernels/device/boxes.py", "high = tl.where(bounded, finite_high(high), float(\"inf\"))", "high = finite_high(high)", f"{BOXES}::test_elementwise_boxes_are_those_of_the_tensor_form"),
    m("boxes: what somebody knows is not measured anew", PLAYER, "        self.backend.call(entry.launch, run.places.batch, run.places.tensor)()\n", "", f"{BOXES}::test_what_is_known_of_a_box_is_measured_anew"),
    m("tables: t is not enlarged", "kernels/device/charges.py", "    return t * GROW\n", "    return t\n", f"{TABLED}::test_tables_are_those_of_the_tensor_form"),
    m("tables: t is rounded to nearest", "kernels/device/tables.py", "rounded_up(t, c.T), mask=inside)", "t.to(c.T), mask=inside)", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("tables: two floors are one", "kernels/device/tables.py", "tl.store(other_floor_ptr + image, other)", "tl.store(other_floor_ptr + image, 0.0 * other)", f"{TABLED}::test_tables_are_those_of_the_tensor_form", f"{AT_ONCE}::test_floors_of_two_nodes"),
    m("relus: an operand's sizes are its ReLU's", RELUS, "note_sizes(y_low, y_high,", "note_sizes(low, high,", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: lines over the ReLU's own box", RELUS, "store_lines(y_low, y_high,", "store_lines(low, high,", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: a ReLU's error is not in its lines", RELUS, "store_lines(y_low, y_high, error,", "store_lines(y_low, y_high, error * 0,", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: what the ReLU reaches is charged for its operand", RELUS, "reach(y_low, y_high)", "reach(low, high)", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: t lies where the lines do", RELUS, "c.T_START, c.T_PLANE, c.T_PITCH), rounded_up", "c.START, c.PLANE, c.PITCH), rounded_up", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: t is rounded to nearest", RELUS, "rounded_up(t, c.T)", "t.to(c.T)", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("relus: the operand's box is taken for the ReLU's", RELUS, "store_ends(low, high,", "store_ends(y_low, y_high,", f"{AT_ONCE}::test_what_a_relu_makes_at_once"),
    m("boxes: neurons are charged without their layer's error", "kernels/device/boxes.py", "None, error, magnitude", "None, error * 0, magnitude", f"{AT_ONCE}::test_what_an_affine_layer_notes"),
    m("boxes: cells beyond an image are undecided", "kernels/device/boxes.py", "tl.sum((inside & is_undecided(low, high, c.TIGHT)).to(tl.int64), 0)", "tl.sum(is_undecided(low, high, c.TIGHT).to(tl.int64), 0)", f"{AT_ONCE}::test_what_an_affine_layer_notes"),
    m("boxes: what somebody knows is not counted anew", "kernels/script.py", 'if verb == "known" and name in self.noted else', 'if False else', f"{BOXES}::test_what_is_known_of_a_box_is_counted_anew"),
    m("kernels: counts of several blocks are left out", "ir/launches.py", "self.function in COUNTERS and self.grid(capacity) == (1, 1)", "self.function in COUNTERS", f"{COMPACT}::test_a_single_block_is_not_counted"),
    m("kernels: rows of earlier blocks do not count", "kernels/device/compact.py", "tl.store(to_count_ptr, before + ", "tl.store(to_count_ptr, ", COMPACT),
    m("tables: rounded to nearest", "kernels/device/tables.py", "tl.where(near.to(tl.float64) < x, after.to(tl.float32, bitcast=True), near)", "near", f"{TABLED}::test_rounding_upward_is_to_the_next_number"),
    m("tables: a slope is compared as float32", "kernels/device/tables.py", "((k == slope) & (y < 0))", "((k == SLOPE) & (y < 0))", f"{TABLED}::test_stored_lines_enclose_the_function"),
    m("tables: margins are written", "kernels/device/tables.py", "START + cell // LINE * PITCH + cell % LINE", "START + cell", f"{TABLED}::test_tables_are_those_of_the_tensor_form"),
    m("tables: products are charged no gamma", "runtime/gpu/kernel_arguments.py", "(most * (1 + f.nu) if product else 0.0)", "0.0", f"{TABLED}::test_tables_are_those_of_the_tensor_form"),
    m("tables: another batch's are taken", PLAYER, "places.serial == tables.serial and reads", "reads", f"{TABLED}::test_batches_that_are_asked_in_turn_keep_their_own_tables"),
    m("tables: another program's are taken", PLAYER, "places.serial == tables.serial and reads <= places.held", "places.serial == tables.serial", f"{TABLED}::test_rows_of_a_program_that_was_not_asked_yet"),
    m("tables: brought boxes keep another's magnitudes", PLAYER, "in by_kind(tables.boxes).items()", 'in {**by_kind(tables.boxes), "magnitude": {}}.items()', f"{TABLED}::test_batches_that_are_asked_in_turn_keep_their_own_tables"),
    m("neurons: the other sign is the same one", "kernels/device/neurons.py", "        sign = -sign\n", "", f"{NEURONS}::test_rows_are_those_of_their_neurons"),
    m("neurons: results are not reset", "kernels/device/neurons.py", "            tl.store(best_ptr + index + k, worst, mask=live)\n", "", f"{NEURONS}::test_rows_are_those_of_their_neurons"),
    m("neurons: later blocks do not count the earlier", "kernels/device/neurons.py", "at_ptr + before + tl.cumsum(found, 0) - 1", "at_ptr + tl.cumsum(found, 0) - 1", f"{NEURONS}::test_undecided_neurons_are_found_in_order"),
    m("neurons: rows are made where there is no room", "kernels/device/neurons.py", "tl.minimum(tl.load(found_ptr), tl.load(room_ptr))", "tl.load(found_ptr)", f"{NEURONS}::test_rows_are_those_of_their_neurons"),
    m("neurons: rows that are left stop at the wait", PLAYER, "        backend.play(bound, ahead.parts)\n", "", f"{NEURONS}::test_rows_that_are_left_go_all_the_way"),
    m("player: more neurons than room are let be", PLAYER, "            if n <= room:\n", "            if True:\n", f"{PLAYED}::test_a_number_beyond_the_room_is_known_then"),
    m("player: half written boxes stay somebody's", PLAYER, "        places.serial = NOBODY\n        run,", "        run,", f"{PLAYED}::test_broken_off_in_the_middle"),
    m("player: half brought tables stay somebody's", PLAYER, "        places.serial = NOBODY\n        with", "        with", f"{TABLED}::test_tables_that_were_broken_off_are_made_again"),
    m("player: a layer's bounds are not brought back", PLAYER, '                run.closing = bound, launches["close"]\n', "", f"{PLAYED}::test_later_batches_find_what_they_find_alone"),
    m("player: a stretch is taken for one that closes no layer", PLAYER, "None if closing is None else closing[0].key", "None", f"{PLAYED}::test_later_batches_find_what_they_find_alone"),
    m("player: what somebody knows is taken as it is", PLAYER, "torch.maximum(low, lo.to(low.device), out=low)", "low.copy_(lo)", f"{PLAYED}::test_bounds_that_somebody_brings"),
    m("player: what was never played is told", PLAYER, "[run.section][: run.played] for s", "[run.section] for s", f"{TOLD}::test_what_was_told_until_a_deadline"),
    m("leaps: rows that are left are let be", LEAPS, "return n <= self.stride.room and (self.stride.both or 0 in rows)", "return n <= self.stride.room", f"{LEAPT}::test_a_batch_unlike_those_before"),
    m("leaps: more neurons than room are let be", LEAPS, "return n <= self.stride.room and (self.stride.both or 0 in rows)", "return self.stride.both or 0 in rows", f"{LEAPT}::test_more_neurons_than_room"),
    m("leaps: a layer's bounds are not brought back", LEAPS, '            closing = bound, stop.launches["close"]\n', "", f"{LEAPT}::test_leaps_find_what_is_found_alone"),
    m("leaps: the other sign is the same one", LEAPS, '("second", len(bound.parts))', '("ahead", len(bound.parts))', f"{LEAPT}::test_leaps_find_what_is_found_alone"),
    m("leaps: the other sign is cut short", LEAPS, '("second", len(bound.parts))', '("second", 1)', f"{LEAPT}::test_leaps_find_what_is_found_alone"),
    m("leaps: a layer's counts are another's", LEAPS, "numbers[begin:end] for begin, end in landing.logs", "numbers[: end - begin] for begin, end in landing.logs", f"{LEAPT}::test_a_batch_unlike_those_before"),
    m("leaps: counts are not copied", LEAPS, "                calls.append(partial(log[begin:end].copy_, backend.counts()[: end - begin]))\n", "", f"{LEAPT}::test_a_batch_unlike_those_before"),
    m("leaps: a failed one stands", LEAPS, "                self._fail(landing, counts[0], run)\n                return False\n", "                self._fail(landing, counts[0], run)\n                return True\n", f"{LEAPT}::test_a_batch_unlike_those_before"),
    m("leaps: bounds that somebody brings are left out", PLAYER, "if trace is not None or known or not", "if trace is not None or not", f"{LEAPT}::test_who_asks_for_times_or_brings_bounds_waits"),
    m("leaps: what settles a row is another program's", LEAPS, "            backend.limit(landing.bound, BELOW_ZERO)\n", "            pass\n", f"{LEAPT}::test_rows_settle_as_they_do_from_wait_to_wait"),
    m("leaps: the arena moves under what is bound", LEAPS, "        backend.arena(max(backend.arena_bytes(stop.program, stride.room) for stop, stride in pairs))", "        pass", f"{LEAPT}::test_programs_of_one_leap_lie_in_one_arena"),
    m("player: an interval pass is taken for a refinement", PLAYER, 'self._find("interval", lo', 'self._find("refine", lo', f"{TOLD}::test_both_kinds_in_turn"),
    m("forms: what rounding took of a coefficient is not charged", "kernels/device/forms.py", "off = tl.abs(exact - start.to(tl.float64))", "off = tl.abs(exact - exact)", f"{FORMS}::test_rows_are_their_forms"),
    m("forms: a coefficient's own error is not charged", "kernels/device/forms.py", "            off += tl.load(gap_ptr + form[:, None] * SIZE + q[None, :], mask=inside, other=0.0)\n", "            off += 0.0\n", f"{FORMS}::test_rows_are_their_forms"),
    m("forms: an output that is flushed is not charged", "kernels/device/forms.py", " + flushed * tl.abs(exact)", "", f"{FORMS}::test_rows_are_their_forms"),
    m("forms: a constant is added", "kernels/device/forms.py", "0.0 - tl.load(minus_ptr", "0.0 + tl.load(minus_ptr", f"{FORMS}::test_rows_are_their_forms"),
    m("forms: earlier verdicts stay", "kernels/device/forms.py", "    tl.store(done_ptr + form, tl.full((BR,), 0, tl.int8), mask=live & (begin == 0))\n", "", f"{FORMS}::test_rows_are_their_forms"),
    m("forms: the verdicts of many groups stay", "runtime/gpu/queries.py", 'bound.starts["done"].zero_()', "pass", f"{FORMS}::test_groups_may_be_more_than_forms"),
    m("player: a stretch reaches over the host", PLAYER, 'elif entry.verb != "play" and', 'elif entry.verb not in ("play", "host") and', f"{TOLD}::test_an_interval_pass_with_max_pools"),
    m("neurons: signs are not told apart", "kernels/device/neurons.py", "found_low = tl.where(sign > 0, first, second)", "found_low = first", f"{NEURONS}::test_bounds_go_back_to_the_boxes"),
    # interval arithmetic
    m("interval: a join rounds to nearest", "kernels/device/interval_steps.py", "low = add_down_emulated(low, b_low)", "low = low + b_low", "tests/kernels/test_error_interval.py::test_a_join_is_the_two_nearest_numbers"),
    m("interval: a negated branch keeps its ends", "kernels/device/interval_steps.py", "return -1.0 * hi, -1.0 * lo", "return -1.0 * lo, -1.0 * hi", f"{INTERVALS}::test_a_join_holds_every_sum"),
    m("interval: a negative neuron takes the wrong end", "kernels/device/interval_steps.py", "low = tl.where(sign < 0, most, least) * sign", "low = least * sign", f"{INTERVALS}::test_single_neurons_take_their_own_constant"),
    m("interval: weights below zero have no spread", THREE_SUMS, "steps_up(below_zero(w), 0, INTERPRET)", "steps_up(0.0 * below_zero(w), 0, INTERPRET)", PRODUCED),
    m("interval: the spread is rounded to nearest", THREE_SUMS, "return fma_down_emulated(steps, mul_up_emulated(s, t), spread)", "return steps * mul_up_emulated(s, t) + spread", PRODUCT_BITS),
    m("interval: steps of a spread are rounded to nearest", THREE_SUMS, "mul_up_emulated(s, t), spread)", "s * t, spread)", f"{PRODUCED}::test_a_spread_too_small_for_a_number_is_the_least"),
    m("interval: whole numbers of steps are the nearest", THREE_SUMS, "whole = fma_up_emulated(x, scale, tl.full(x.shape, 2**BITS, x.dtype))", "whole = x * scale + tl.full(x.shape, 2**BITS, x.dtype)", PRODUCED),
    m("interval: more steps than eight bits hold", THREE_SUMS, "(most + (1 << (LEFT - 6))) >> LEFT", "most >> LEFT", f"{PRODUCED}::test_as_many_steps_as_eight_bits_hold"),
    m("interval: steps of what is no number are finite", THREE_SUMS, "tl.where(e == TOP, TOP, e - 6)", "e - 6", f"{PRODUCED}::test_what_is_no_number_bounds_nothing"),
    m("interval: a NaN whose bits are all ones has steps", THREE_SUMS, "tl.minimum(tl.max(leading_bits(x), AXIS, keep_dims=True), TOP << LEFT)", "tl.max(leading_bits(x), AXIS, keep_dims=True)", f"{PRODUCED}::test_what_is_no_number_bounds_nothing"),
    m("interval: a spread is of other columns' weights", PAPER, "column = weights_column(tl.arange(0, BN), tl.program_id(1) * BN, N, BN)", "column = weights_column(tl.arange(0, BN), 0, N, BN)", PRODUCED),
    m("interval: a spread is of other rows", PAPER, "        row_of_line = tl.load(slot_ptr + row_of_line).to(tl.int32)\n", "", PRODUCT_BITS),
    m("interval: a convolution's spread is of other rows", PAPER, "(row_of_pair.to(tl.int64) * (c.H * c.W * c.CO) + source)[:, None]", "(0 * row_of_pair.to(tl.int64) + source)[:, None]", PRODUCED),
    m("interval: a width is rounded to nearest", THREE_SUMS, "return add_up_emulated(hi, -1.0 * lo)", "return hi - lo", f"{PRODUCED}::test_a_width_just_above_whole_steps_is_a_step_more"),
    m("interval: ends are rounded to nearest", THREE_SUMS, "return add_down_emulated(low, spread), add_up_emulated(high, -1.0 * spread)", "return low + spread, high - spread", f"{PRODUCED}::test_the_sum_of_an_end_and_a_whole_spread_is_rounded_outward"),
    m("interval: a spread that is no number is none", THREE_SUMS, 'tl.where(spread == spread, spread, float("-inf"))', "tl.where(spread == spread, spread, 0.0)", f"{PRODUCED}::test_what_is_no_number_bounds_nothing"),
    m("interval: a tile that was moved back keeps its columns", PAPER, "return n, n, n >= first", "return n, first + lane, first + lane < N", PRODUCED),
    m("interval: what meets in a cell is added to nearest", ROUTE, "return add_down_emulated(low, a), add_up_emulated(high, b)", "return low + a, high + b", f"{ROUTED}::test_a_pool_moves_intervals_or_keeps_their_products", f"{ROUTED}::test_a_gather_adds_what_a_cell_was_read_for"),
    m("interval: a pool moves what may be below zero", ROUTE, "((a >= 0) | (winner % 2 == 1))", "((b >= 0) | (winner % 2 == 1))", f"{ROUTED}::test_a_pool_moves_intervals_or_keeps_their_products"),
    m("interval: a pool's constant forgets what is below zero", ROUTE, "goes = (a >= 0) | (winner % 2 == 1)", "goes = (b >= 0) | (winner % 2 == 1)", f"{ROUTED}::test_a_pool_moves_intervals_or_keeps_their_products"),
    m("interval: both lines of a ReLU are the upper one", "kernels/device/interval.py", "slope = tl.where(a >= 0, below, tl.where(b <= 0, above, 0.0))", "slope = tl.where(a >= 0, above, tl.where(b <= 0, above, 0.0))", "tests/kernels/test_interval_rows.py::test_relax_keeps_the_invariant"),
    m("interval: constants without the deployed error", "runtime/gpu/interval_backend.py", "error, layer = tables.first(name), self", "error, layer = 0 * tables.first(name), self", f"{WHOLE}::test_what_an_execution_rounds_joins_as_a_box"),
    m("interval: a form over the input is dropped", "kernels/interval_launches.py", "self.frontier[name] = self._join(name, own, FrontierEntry(window, entry.buffer, entry.slot, entry.sign), own.window)", "self.frontier[name] = FrontierEntry(window, entry.buffer, entry.slot, entry.sign)", f"{WHOLE}::test_forms_over_the_input_too"),
    *PAYMENTS,
    *TAPES,
    *RECIPES,
    *ENDS,
    *DEPLOYED_SUMS,
    *SEARCHES,
    *CERTIFICATES,
    *PIECES,
    *LAUNCHES,
    *INPUT_MAPS,
    *BALLS,
    *BOX_SUMS,
    *SEVERAL,
    *REACH,
    *PROPERTIES,
    *CURVES,
)  # fmt: skip
