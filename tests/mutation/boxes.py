# ruff: noqa: E501  one row a mutant
"""Faults in sums over boxes: convolutions by one loop, and who takes it."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

CONVS, CENTRES, PRODUCTS = "runtime/cpu/box_convs.py", "runtime/centres.py", "runtime/layer_products.py"
VECTORS, HELD = "runtime/cpu/vectors.py", "tests/runtime/test_weights.py"
SUMS = "tests/runtime/test_box_convs.py"

BOX_SUMS: tuple[Mutant, ...] = (
    m("box sums: half widths by signed weights", CONVS, "{'s' if k else 'w'}", "{'w' if k else 'w'}", SUMS),
    m("box sums: centres by magnitudes of weights", CONVS, "{'s' if k else 'w'}", "{'s' if k else 's'}", SUMS),
    m("box sums: a cell around zero is left out", CONVS, "if one[first + q] != 0 or other[first + q] != 0 else 0", "if one[first + q] != 0 else 0", SUMS),
    m("box sums: a point is left out", CONVS, "if one[first + q] != 0 or other[first + q] != 0 else 0", "if other[first + q] != 0 else 0", SUMS),
    m("box sums: what is no number is left out", CONVS, "if one[first + q] != 0 or other[first + q] != 0 else 0", "if abs(one[first + q]) > 0 or abs(other[first + q]) > 0 else 0", SUMS),
    m("box sums: the last column of an image is left out", CONVS, "min(across + together, width)", "min(across + together, width - 1)", SUMS),
    m("box sums: windows over an edge begin with the kernel's first column", CONVS, "weights - 4 * PANEL * channels * across", "weights - 4 * PANEL * channels * a", SUMS),
    m("box sums: the last line of an image is left out", CONVS, "if down < 0 or down >= height:", "if down < 0 or down >= height - 1:", SUMS),
    m("box sums: dilated columns are neighbours", CONVS, "together = f[KW] if f[DW] == 1 else 1", "together = f[KW]", SUMS),
    m("box sums: taps of a dilated kernel are the first", CONVS, "((panel * f[KH] + i) * f[KW] + j)", "((panel * f[KH] + i) * f[KW])", SUMS),
    m("box sums: operands of the first panel's outputs are not counted", CONVS, "if panel == 0:", "if panel == 1:", SUMS),
    m("box sums: a thread's last line is nobody's", CONVS, "_sum(asked, cuts[k], cuts[k + 1])", "_sum(asked, cuts[k], cuts[k + 1] - (threads > 1))", SUMS),
    m("box sums: lines of the first image for all", CONVS, "own = line // f[HO] * height + down", "own = down", SUMS),
    m("box sums: layers whose weights cancelled have the loop", CONVS, " and not layer.cancelled", "", f"{SUMS}::test_which_layers_have_the_loop"),
    m("box sums: weights are rounded to float32", CONVS, " and layer.exact32", "", f"{SUMS}::test_which_layers_have_the_loop"),
    m("box sums: groups are one", CONVS, ' and layer.node.integer("g", 1) == 1', "", f"{SUMS}::test_which_layers_have_the_loop"),
    m("box sums: a dense layer's half widths by signed weights", VECTORS, "t1 += abs(v) * y[k]\n                    t2", "t1 += v * y[k]\n                    t2", HELD),
    m("box sums: a dense layer's magnitudes by signed weights", VECTORS, "t2 += abs(v) * z[k]", "t2 += v * z[k]", HELD),
    m("box sums: a dense layer's reach by signed weights", VECTORS, "t1 += abs(v) * y[k]\n            signed", "t1 += v * y[k]\n            signed", HELD),
    m("box sums: dense layers whose weights cancelled have the loop", PRODUCTS, "if layer.short is None or layer.cancelled:", "if layer.short is None:", HELD),
    m("centres: a layer's bias is left out", CENTRES, "image + layer.b", "image", "tests/soundness/test_centres.py"),
    m("centres: a box reaches no further than its half width times signed weights", PRODUCTS, "(self.layer_product(layer, point), self.sizes_product(layer, reach))", "(self.layer_product(layer, point), self.layer_product(layer, reach).abs())", "tests/soundness/test_centres.py", "tests/soundness/test_terms.py"),
)  # fmt: skip
