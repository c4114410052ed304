# ruff: noqa: E501  one row a mutant
"""Faults in properties written in Python, and in how properties are written as VNN-LIB."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

EXPRESSIONS, STATED, WRITE, NUMBERS = (f"frontend/{name}.py" for name in ("expressions", "stated", "vnnlib_write", "numbers"))
TESTS = "tests/frontend/test_expressions.py"
MEANING = f"{TESTS}::test_properties_mean_their_conditions"
EXACT, TOLD = f"{TESTS}::test_numbers_keep_their_exact_value", f"{TESTS}::test_mistakes_are_told"
WRITTEN = "tests/frontend/test_vnnlib_write.py"
READ_BACK, FORMS = f"{WRITTEN}::test_texts_are_read_back", f"{WRITTEN}::test_shapes_of_properties_are_read_back"
NET = "tests/api/test_properties.py"

PROPERTIES: tuple[Mutant, ...] = (
    m("python: > is <", EXPRESSIONS, 'if op in (">=", ">"):', 'if op == ">=":', MEANING),
    m("python: a sum grows in place", EXPRESSIONS, "made = Linear(dict(a.terms), a.const)", "made = a", MEANING, TESTS),
    m("python: what is taken away is added", EXPRESSIONS, "_operand(self.shapes, other), False)", "_operand(self.shapes, other), True)", MEANING),
    m("python: from a number an expression is not taken away", EXPRESSIONS, "return -self + other", "return self + other", MEANING),
    m("python: division multiplies", EXPRESSIONS, "1 / by.const", "by.const", MEANING),
    m("python: | is &", EXPRESSIONS, 'self._join("or", other)', 'self._join("and", other)', MEANING),
    m("python: ~ changes nothing", EXPRESSIONS, 'Condition(self.shapes, Junction("not", (self.formula,)))', "self", MEANING),
    m("python: outputs are inputs", EXPRESSIONS, 'return flat if self.letter == "x" else ~flat', "return flat", MEANING),
    m("python: axes change places", EXPRESSIONS, "flat = flat * size + self._position(given, size)", "flat = flat + size * self._position(given, size)", MEANING),
    m("python: indices below zero count from one", EXPRESSIONS, "return k % size", "return abs(k) % size", TESTS),
    m("python: weights of any shape", EXPRESSIONS, "if shape not in (self.shape, (self.size,)):", "if len(values) != self.size:", TOLD),
    m("python: variables of other networks", EXPRESSIONS, "    if a != b:\n", "    if False:\n", TOLD),
    m("python: conditions are equal or not", EXPRESSIONS, "    __eq__ = __ne__ = _no_number", "    __ge__ = _no_number", TOLD),
    m("python: all variables at once are no mistake", EXPRESSIONS, "    __eq__ = __ne__ = _whole", "    __ge__ = _whole", TOLD),
    m("python: a condition is true", EXPRESSIONS, '    def __bool__(self) -> bool:\n        raise UsageError(\n            "a condition', '    def _truth(self) -> bool:\n        raise UsageError(\n            "a condition', TOLD),
    m("python: what is safe is unsafe", STATED, 'Junction("not", (c.formula,)) for c in good', "c.formula for c in good", MEANING),
    m("python: only all together are unsafe", STATED, 'Junction("or", violations)', 'Junction("and", violations)', MEANING),
    m("python: the first safe condition only", STATED, "for c in good]", "for c in good[:1]]", MEANING),
    m("python: lower ends are upper ends", STATED, "Leaf({i: -ONE}, -lo, False)", "Leaf({i: -ONE}, lo, False)", MEANING),
    m("python: boxes of any shape", STATED, "if shape != (size,) and [", "if len(found) != size and [", TOLD),
    m("python: properties have no shapes", STATED, 'Tensor("X", shape=shapes.inputs), Tensor("Y", shape=shapes.outputs)', 'Tensor("X"), Tensor("Y")', NET),
    m("python: the batch is an axis", "api.py", "(s[1:] if source.has_batch and len(s) > 1 else s for s in", "(s for s in", NET),
    m("python: floats are the decimals they print", NUMBERS, "    if isinstance(value, str):\n        return as_fraction(value, what)", "    if isinstance(value, str | float):\n        return as_fraction(value, what)", EXACT, MEANING),
    m("python: text is rounded", NUMBERS, "        return as_fraction(value, what)\n    if hasattr", "        return Fraction(float(as_fraction(value, what)))\n    if hasattr", EXACT),
    m("python: truth values are numbers", NUMBERS, "    if isinstance(value, bool | np.bool_):", "    if False:", TOLD),
    m("written: strict bounds are closed", WRITE, '("" if is_open else "=")', '"="', READ_BACK),
    m("written: strict rows are closed", WRITE, '("<", ">") if row.strict else ("<=", ">=")', '("<=", ">=")', READ_BACK),
    m("written: every box is the first", WRITE, "all(b == bounds[0] for b in bounds)", "True", READ_BACK),
    m("written: numbers are rounded", WRITE, "places = max(two, five)", "places = min(max(two, five), 17)", READ_BACK),
    m("written: exponents count from the point", WRITE, "exponent = len(digits) - 1 - places", "exponent = len(digits) - places", f"{WRITTEN}::test_every_number_is_read_back"),
    m("written: thirds are whole", WRITE, "(* {_number(Fraction(value.denominator))} {name})", "(* 1.0 {name})", READ_BACK),
    m("written: one variable loses its sign", WRITE, "_number(c * row.const)", "_number(row.const)", READ_BACK),
    m("written: the larger is the smaller", WRITE, "(_, more), (_, less) = sorted(terms)", "(_, less), (_, more) = sorted(terms)", READ_BACK),
    m("written: a whole box is left out", WRITE, "        parts = parts or [next(_bounds(prop, first, shared, True))]", "        if not parts:\n            continue\n        parts = parts", FORMS),
    m("written: nothing unsafe is everything", WRITE, 'yield "false"', 'yield "true"', FORMS, READ_BACK),
    m("written: a constant row's sides change", WRITE, "else _number(Fraction(0))", "else _number(Fraction(1))", WRITTEN),
)  # fmt: skip
