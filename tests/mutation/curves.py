# ruff: noqa: E501  one row a mutant
"""Faults in the table of smooth functions, in their lines, in what is charged for them, and in how they are imported."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

TABLE, LINES, WALK, SEMANTICS = "ir/curves.py", "runtime/curves.py", "runtime/walk.py", "runtime/soundness.py"
IMPORT, MADE, PLANES = "frontend/onnx_curves.py", "frontend/onnx_products.py", "runtime/planes.py"
FLAT, MULTIPLIED = "tests/runtime/test_planes.py", "tests/soundness/test_products.py"
FACTS, HELD, NETS, CASES = "tests/ir/test_curves.py", "tests/runtime/test_curve_lines.py", "tests/soundness/test_curves.py", "tests/frontend/test_onnx.py"

CURVES: tuple[Mutant, ...] = (
    m("gelu: one bend is misplaced", TABLE, "GELU = _around(-sqrt(2), sqrt(2), width=1e-15)", "GELU = _around(-sqrt(2), 1.414, width=1e-15)", FACTS),
    m("silu: a bend is no enclosure", TABLE, "SILU = _around(-2.399357280515, 2.399357280515, width=1e-11)", "SILU = _around(-2.3993573, 2.3993573, width=1e-11)", FACTS),
    m("softplus is concave", TABLE, "Curve(_softplus, _sigmoid, (1,)", "Curve(_softplus, _sigmoid, (-1,)", FACTS, HELD),
    m("erf: another slope", TABLE, "return 2 / sqrt(pi) * np.exp(", "return 2.0000001 / sqrt(pi) * np.exp(", FACTS),
    m("hard swish: straight between", TABLE, "(0, 1, 0), HARDSWISH", "(0, 0, 0), HARDSWISH", HELD),
    m("tangents: the slope is exact", LINES, "eps = 2 * SLOPE * np.abs(slope) + 2 * self.curve.off * (1 + np.abs(p)) + 4 * U64 * np.abs(k) + 2 * TINY", "eps = 0.0 * p", HELD),
    m("tangents: none, the summit is trusted", LINES, "found = self._gap(side, k, p) + rise", "found = self._gap(side, k, p)", HELD),
    m("tangents: one side", LINES, "np.maximum(np.maximum((d + eps) * (b - p), (eps - d) * (p - a)), 0)", "np.maximum((d + eps) * (b - p), 0)", HELD),
    m("concave pieces have the ends alone", LINES, "if sign is not None and sign * side < 0:\n                p =", "if False:\n                p =", HELD),
    m("the other side's curvature", LINES, "if sign is not None and sign * side < 0:\n                p =", "if sign is not None and sign * side > 0:\n                p =", HELD),
    m("values are exact", LINES, "slack = VALUE * np.abs(f) + self.curve.off * (1 + np.abs(x)) + 2 * TINY + 8 * U64 * (np.abs(f) + np.abs(product))", "slack = 0.0", HELD),
    m("values are off inward", LINES, "return side * (f - product) + slack", "return side * (f - product) - slack", HELD),
    m("pieces begin at the end of the box", LINES, "start = np.clip(bend[1], self.lo, self.hi)", "start = self.hi", HELD),
    m("the slope is rounded after the cut", LINES, "cuts[k][part] = side * box.greatest(side, slopes[k][part].astype(np.float64))", "cuts[k][part] = side * box.greatest(side, chosen.astype(np.float64) if dtype == torch.float64 else np.nan_to_num(box.touch(side)))", HELD),
    m("cuts are rounded inward", LINES, "return Lines(below, above, round_down(lower, dtype), round_up(upper, dtype))", "return Lines(below, above, round_up(lower, dtype), round_down(upper, dtype))", HELD),
    m("below zero a logarithm has a bound", LINES, "found & (lo > curve.domain[0] + NORMAL) if", "found if", HELD),
    m("what may be flushed is in the domain", LINES, "(lo > curve.domain[0] + NORMAL)", "(lo > curve.domain[0])", HELD),
    m("lines without a box", LINES, "lower, upper = torch.where(there & ~torch.isnan(lower), lower, -inf), torch.where(there & ~torch.isnan(upper), upper, inf)", "pass", HELD),
    m("the error widens one line", LINES, "lower, upper = lower - error, upper + error", "lower = lower - error", HELD),
    m("the error narrows", LINES, "lower, upper = lower - error, upper + error", "lower, upper = lower + error, upper - error", HELD, NETS),
    m("lines ignore the stated error", "runtime/tables.py", "made = curve_lines(node, lo, hi, self.dtype, error)", "made = curve_lines(node, lo, hi, self.dtype, None)", NETS),
    m("boxes ignore the stated error", "runtime/forward.py", "_bounded(lo, hi, low - up(e), high + up(e))", "_bounded(lo, hi, low, high)", NETS),
    m("errors are of a small result's last place", SEMANTICS, "unit.clamp(min=1.0)", "unit", HELD, NETS),
    m("a product with a sigmoid errs as a sigmoid", SEMANTICS, "unit = torch.maximum(size, operand) if CURVES[node.op].made_of else size", "unit = size", HELD, NETS),
    m("parts' errors are forgotten", SEMANTICS, "max(STATED[name], *(self.ulps(part) + 2 for part in parts))", "STATED[name]", HELD),
    m("large results keep a bound", SEMANTICS, "return torch.where((size <= BIG) & (operand <= BIG), up(error)", "return torch.where((size <= math.inf) & (operand <= math.inf), up(error)", HELD),
    m("stated errors are not told", "api.py", "told = state_functions(options.semantics, compiled.net)", "told = options.semantics", NETS),
    m("cuts have one sign", WALK, "self.backend.pay(self.rows, total, 1.0, weight, 2 * dot_error(terms) * sum_error(terms))", "self.backend.pay(self.rows, total, sum_error(terms))", NETS, argued="a cut lies 2^-44 of f further out than need be, which is more than the sum of few terms rounds"),
    m("cuts are not added", WALK, "self.backend.pay(self.rows, total, 1.0, weight, 2 * dot_error(terms) * sum_error(terms))", "self.backend.pay(self.rows, None, 1.0, weight, 2 * dot_error(terms) * sum_error(terms))", NETS),
    m("gathers move through smooth functions", "passes/layout.py", 'ELEMENTWISE = ("relu", "scale")', 'ELEMENTWISE = ("relu", "scale", "sigmoid")', NETS),
    m("any product with a sigmoid is a swish", IMPORT, 'if made.op == "sigmoid" and made.inputs == (x.node,):', 'if made.op == "sigmoid":', CASES),
    m("any product is a square", IMPORT, "if a.node == b.node:", "if a.shape == b.shape:", CASES),
    m("products of other shapes are squares", IMPORT, "if a.shape != b.shape:", "if False:", CASES),
    m("selu: gamma is forgotten", IMPORT, 'np.asarray(gamma), ZERO, {})', "ONE, ZERO, {})", CASES),
    m("celu: alpha outside alone", IMPORT, "np.asarray(1.0 / alpha), ZERO", "ONE, ZERO", CASES),
    m("gelu: any form", IMPORT, 's.need(how in (b"none", "none"), ', "s.need(True, ", CASES),
    m("powers: a root is a square", IMPORT, '0.5: "sqrt"', '0.5: "square"', CASES),
    m("planes: the other factor's middle", PLANES, "for k in (1, 0))\n", "for k in (0, 1))\n", FLAT),
    m("planes: three corners", PLANES, "for x, y in _corners(lo, hi):\n        parts", "for x, y in _corners(lo, hi)[:3]:\n        parts", FLAT),
    m("planes: cuts before the slopes are rounded", PLANES, "a, b = first.double(), second.double()", "a, b = 0.5 * lo[1] + 0.5 * hi[1], 0.5 * lo[0] + 0.5 * hi[0]", FLAT),
    m("planes: values are exact", PLANES, "off = 8 * U64 * (parts[0].abs() + parts[1].abs() + parts[2].abs()) + TINY", "off = 0.0", FLAT),
    m("planes: cuts are rounded inward", PLANES, "return Planes(first, second, round_down(low, dtype), round_up(high, dtype))", "return Planes(first, second, round_up(low, dtype), round_down(high, dtype))", FLAT),
    m("planes: the error narrows", PLANES, "low, high = low - error, high + error", "low, high = low + error, high - error", FLAT),
    m("planes: NaN is a bound", PLANES, "torch.nan_to_num(low, nan=-inf, posinf=-inf, neginf=-inf), torch.nan_to_num(high, nan=inf, posinf=inf, neginf=inf)", "torch.nan_to_num(low, nan=0.0, posinf=-inf, neginf=-inf), torch.nan_to_num(high, nan=0.0, posinf=inf, neginf=inf)", FLAT),
    m("products: the range of two corners", PLANES, "values = [x * y for x, y in _corners(lo, hi)]", "values = [lo[0] * lo[1], hi[0] * hi[1]]", FLAT),
    m("products: no rounding deployed", "runtime/forward.py", "e = elementwise_error(self.semantics, 1, magnitude) + self._flushed(boxes.absmax(a), boxes.absmax(b))", "e = torch.zeros_like(magnitude)", MULTIPLIED),
    m("products: planes without the error", "runtime/tables.py", "error = None if self.kit.forward.semantics.real else boxes.error[node.name]", "error = None", MULTIPLIED),
    m("products: one value for all readers", "ir/addends.py", 'moved = not is_settled(n) or n.op == "mul"', "moved = not is_settled(n)", MULTIPLIED),
    m("products: the second factor is forgotten", WALK, "second = self.backend.table_product(m, place, planes.second)", "second = self.backend.table_product(m, place, planes.second) * 0", MULTIPLIED),
    m("products: converted operands are exact", "runtime/forward.py", 'if node.integer("converts") and self.semantics.u_in:', "if False:", MULTIPLIED),
    m("matrix products: rows of the wrong matrix", MADE, "left = np.broadcast_to(s.order(a).swapaxes(-1, -2)[..., None], size)", "left = np.broadcast_to(s.order(a).reshape(*a.shape[:-2], inner, rows)[..., None], size)", CASES),
    m("matrix products convert nothing", MADE, '{"converts": 1}, "terms"', '{}, "terms"', MULTIPLIED),
    m("softmax: its own term is missing", MADE, "add_channels(s, power, 1, n - 1, 1.0, ", "add_channels(s, power, 1, n - 1, 0.0, ", CASES),
    m("softmax: others by one more", MADE, "others = (np.arange(n)[None] + 1 + np.arange(n - 1)[:, None]) % n", "others = (np.arange(n)[None] + np.arange(n - 1)[:, None]) % n", CASES),
    m("softmax: the sign of differences", MADE, 'to), s.view(s.reorder(x, own, "own"), to)], tag="gap")', 'to), s.view(s.reorder(x, own, "own"), to)][::-1], tag="gap")', CASES),
    m("softmax: cells stay where they were", MADE, "return s.reorder(found, back)", "return s.result(found.node, x.shape, x.dtype)", CASES),
    m("softmax: nothing is stated", MADE, '{"stated": "softmax"}', '{"stated": "nothing"}', MULTIPLIED),
    m("kernels take smooth functions", "kernels/network.py", 'if node.op in (*CURVES, "mul"):', "if False:", NETS),
)
