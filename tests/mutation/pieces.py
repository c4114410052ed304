# ruff: noqa: E501  one row a mutant
"""Faults in how operators are taken apart at import, in names, and in what holds the folded network against the imported one."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

FILE, CASES, DRAWN, SOUND = "frontend/onnx_pieces.py", "tests/frontend/test_onnx.py", "tests/frontend/test_onnx_drawn.py", "tests/soundness/test_pieces.py"
AGREE = "tests/ir/test_agree.py"

PIECES: tuple[Mutant, ...] = (
    m("clip: the upper bound is the span", FILE, "difference(s, hi.value, lo.value)", "difference(s, hi.value, 0 * lo.value)", CASES),
    m("clip: large bounds are held", FILE, "abs(float(bound.value)) > LARGE", "abs(float(bound.value)) > math.inf", SOUND),
    m("merges: products may underflow", "passes/fold.py", "if least * low < FEWEST or not most * high * terms < MOST:", "if not most * high * terms < MOST:", AGREE),
    m("merges: products may overflow", "passes/fold.py", "if least * low < FEWEST or not most * high * terms < MOST:", "if least * low < FEWEST:", AGREE),
    m("properties of other outputs are taken", "prove/prover.py", "asked != chosen and asked in source.outputs", "False", AGREE),
    m("properties of other shapes are taken", "prove/prover.py", "if min(len(declared), len(own)) > 1 and declared != own:", "if False:", AGREE),
    m("slices: as Python has them", "frontend/onnx_layout.py", "at = _cells(start, end, step, v.shape[axis])", "at = range(*slice(start, end, step).indices(v.shape[axis]))", AGREE),
    m("squeeze: no axes are all", "frontend/onnx_layout.py", "axes is None or len(axes) > 0", "True", AGREE),
    m("clip: a rounded span is exact", FILE, "rounding(lo, hi, slack=0 if exact else 1)", "rounding(lo, hi)", SOUND),
    m("clip: computed bounds are exact", FILE, "s.scale(below, -ONE, hi.value, rounding(hi), tag=tag)", "s.scale(below, -ONE, hi.value, {}, tag=tag)", SOUND),
    m("a difference is exact", FILE, "        lost = (wide - (out - part)) + (less - part)\n", "        lost = out - out\n", SOUND),
    m("hard sigmoid: up to two", FILE, "Const(np.ones(()), x.dtype)", "Const(np.full((), 2.0), x.dtype)", CASES),
    m("prelu: some slopes alike", FILE, "bool((slope.value == first).all())", "bool((slope.value == first).any())", CASES),
    m("prelu: a rounded slope is exact", FILE, "rest, ZERO, rounding(slope, slack=0 if exact else 1)", "rest, ZERO, rounding(slope)", SOUND),
    m("abs: of positive numbers", FILE, "positive_part(s, s.act(0), slope=-1.0)", "positive_part(s, s.act(0), slope=1.0)", CASES),
    m("max of two is min", FILE, '[s.view(y, to), x.node] if s.op == "Max" else', '[s.view(y, to), x.node] if s.op == "Min" else', CASES),
    m("min by a constant from above", FILE, 'clamp(s, found, v, None, tag) if s.op == "Max"', 'clamp(s, found, v, None, tag) if s.op', CASES),
    m("reduced: minus is kept", FILE, 'return found if s.op == "ReduceMax" else flip(s, found)', "return found", CASES),
    m("where: both operands", FILE, "np.where(here, 0, c.value)", "c.value + np.zeros(shape, c.value.dtype)", CASES),
    m("where: the other one", FILE, "np.where(chosen, 0, n)", "np.where(chosen, n, 0)", CASES),
    m("gathered points: batches count from zero", FILE, "sparse=True)[:batch] if batch else ()", "sparse=True)[:batch] if batch > 1 else (slice(None),) * batch", CASES),
    m("depth to space: one mode", FILE, 'if mode == b"DCR" else', 'if mode in (b"DCR", b"CRD") else', CASES),
    m("resize: ties go up", FILE, 'math.ceil(at - half) if near == "round_prefer_floor"', 'math.floor(at + half) if near == "round_prefer_floor"', DRAWN),
    m("resize: half a cell is nothing", FILE, "at = Fraction(2 * i + 1, 2 * factor) - Fraction(1, 2)\n", "at = Fraction(i, factor)\n", DRAWN),
    m("resize: runtimes agree", FILE, "if factor == 1 and moved != list(range(size)):", "if False:", SOUND),
    m("resize: factors are cut off", FILE, "f.denominator == 1 and f >= 1", "f >= 1", DRAWN, SOUND),
    m("transposed conv: the kernel as it is", FILE, "np.flip(w, axis=tuple(range(2, 2 + rank)))", "np.flip(w, axis=())", CASES),
    m("transposed conv: more at the start", FILE, "hi = [r - p + m for", "hi = [r - p for", CASES),
    m("transposed conv: pads change sides", FILE, "zip(reach, pads[:rank], strict=True)", "zip(reach, pads[rank:], strict=True)", CASES),
    m("transposed conv: groups mix", FILE, "reshape(groups, per, weight.shape[1], *kernel).swapaxes(1, 2)", "reshape(groups, weight.shape[1], per, *kernel)", CASES),
    m("a new weight takes any name", "ir/net.py", "if weights[name] is not self.weights[name]:", "if False:", AGREE),
    m("tables of cells take any name", "passes/layout.py", "name = _fresh(net, name, weights) if name in net.weights or name in weights else name", "pass", AGREE),
    m("steps take tensors' names", "ir/net.py", "(name in self.reserved and not (own and name == hint))", "False", AGREE, CASES),
    m("agree: nobody looks", "passes/pipeline.py", "problem = disagreement(given, net)", "problem = None", AGREE),
    m("agree: sizes of any kind", "ir/agree.py", "ROOM = 2.0**-40", "ROOM = 1.0", AGREE),
    m("agree: outputs are the same", "ir/agree.py", "ends = {before.output} if before.output != after.output else set[str]()", "ends = set[str]()", AGREE),
    m("agree: other attributes are alike", "ir/agree.py", "plain = all(v == b.attrs[k] for k, v in a.attrs.items() if not isinstance(v, Ref))", "plain = True", AGREE),
    m("agree: other weights are alike", "ir/agree.py", "isinstance(w, Ref) and before.weights[v.name] is after.weights[w.name]", "isinstance(w, Ref)", AGREE),
    m("agree: other operators are alike", "ir/agree.py", "(a.op, a.inputs, a.attrs.keys()) != (b.op, b.inputs, b.attrs.keys())", "a.inputs != b.inputs", AGREE),
    m("steps are called like results", FILE, 'rounding(slope), tag="line")', "rounding(slope))", CASES),
)
