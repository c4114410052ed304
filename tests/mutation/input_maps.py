# ruff: noqa: E501  one row a mutant
"""Faults in input maps: what is charged for them, and what they hold."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

MAPS, JOINED, SOUNDNESS = "frontend/input_maps.py", "frontend/onnx_mapped.py", "runtime/soundness.py"
SOUND, TESTS = "tests/soundness/test_input_maps.py", "tests/api/test_input_maps.py"
ENCLOSED, NOBODY = f"{SOUND}::test_what_float32_makes_of_the_map_is_enclosed", f"{SOUND}::test_the_map_is_executed_by_nobodys_tensor_cores"
DECIMALS, LIGHT = f"{SOUND}::test_decimals_that_float64_lacks_are_accounted_for", f"{TESTS}::test_light_moves_and_stretches_pixels"
FIELDS, PATCHES = f"{TESTS}::test_bias_fields_are_polynomials_over_the_image", f"{TESTS}::test_patches_leave_the_rest_alone"

INPUT_MAPS: tuple[Mutant, ...] = (
    m("maps: x is exact whatever is deployed", SOUNDNESS, "return replace(self, u_in=0.0,", "return replace(self, real=True, u_in=0.0,", ENCLOSED),
    m("maps: their operands are converted", SOUNDNESS, 'return node.op == "scale" or bool(node.integer("outside"))', 'return node.op == "scale"', NOBODY),
    m("maps: their operands are converted, by kernels", "runtime/forward.py", "sem = sem.plain if converts_nothing(node) else sem", "sem = sem", "tests/runtime/test_affine_cells.py::test_outputs_err_as_the_tensor_form_says", f"{SOUND}::test_kernels_charge_the_map_as_the_cpu_does"),
    m("maps: merged with the first layer", "passes/fold.py", ' and not source.integer("outside")', "", f"{SOUND}::test_the_network_converts_what_the_map_makes"),
    m("maps: decimals are float64", JOINED, "    if given.rounded:\n", "    if False:\n", DECIMALS),
    m("maps: every number is a float64", MAPS, "rounded = any(Fraction(a) != b for", "rounded = all(Fraction(a) != b for", DECIMALS, LIGHT),
    m("maps: files forget what was rounded", MAPS, 'made.rounded |= bool(np.any(held.get("rounded", False)))', "pass", f"{TESTS}::test_files_keep_a_map"),
    m("maps: a shift is not rounded", MAPS, "rounded or too", "rounded", DECIMALS, SOUND),
    m("maps: brightness is contrast", MAPS, "rows = [(1 / s, p / s)", "rows = [(p / s, 1 / s)", LIGHT),
    m("maps: the mean is left out", MAPS, "return _of_rows(rows, [(p - m) / s for p, m, s in zip(pixels, means, stds, strict=True)])", "return _of_rows(rows, [p / s for p, s in zip(pixels, stds, strict=True)])", LIGHT, FIELDS),
    m("maps: fields lie on their side", MAPS, "[u**i * v**j for i, j in powers]", "[v**i * u**j for i, j in powers]", FIELDS),
    m("maps: patches add to the image", MAPS, "1 / stds[cell], -means[cell] / stds[cell]", "1 / stds[cell], shift[cell]", PATCHES),
    m("maps: levels are pixels", MAPS, 'unit = BYTE if array.dtype.kind in "ui"', "unit = BYTE if not array.size", LIGHT),
    m("maps: any number of rows", JOINED, "if len(given.matrix) != size:", "if not size:", f"{TESTS}::test_mistakes_are_told"),
    m("maps: one behind another", JOINED, 'if any(n.integer("outside") for n in imported.net):', "if False:", f"{TESTS}::test_light_of_a_digit"),
)  # fmt: skip
