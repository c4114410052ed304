# ruff: noqa: E501  one row a mutant
"""Faults in the other end of rows: in what it pays, in how it is read off, in who has one."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

LOOP, RECORD, PLAYER = "runtime/cpu/tape_loop.py", "runtime/cpu/tape_record.py", "runtime/cpu/tape_player.py"
WALK, WALKER, RELAX, CELLS = "runtime/cpu/walk.py", "runtime/walker.py", "runtime/relax.py", "runtime/cpu/cells.py"
FUSED, TENSORS, BACKEND = "runtime/cpu/fused.py", "runtime/cpu/torch_backend.py", "tests/runtime/test_backend.py"
ROW_PASSES, ROW_CODE = "runtime/cpu/row_passes.py", "tests/runtime/test_row_code.py"
OTHER, PLAYED = "tests/soundness/test_other_ends.py", "tests/runtime/test_tapes.py"
ENDS: tuple[Mutant, ...] = (
    m("ends: gaps of positive coefficients are free", WALK, "self.backend.exceed(self.rows, beyond, scale * scale)", "pass", OTHER),
    m("ends: gaps of negative coefficients are free", WALK, "self.backend.exceed(self.rows, total, -scale * scale)", "pass", OTHER),
    m("ends: the error is on the other side", WALK, "self.rows.error + self.rows.excess, others", "self.rows.excess - self.rows.error, others", OTHER),
    m("ends: the error counts at one end only", WALK, "self.rows.error + self.rows.excess, others", "self.rows.excess, others", OTHER),
    m("ends: the constant keeps its sign", WALK, "self._settle(self.results.other, -self.rows.constant", "self._settle(self.results.other, self.rows.constant", OTHER),
    m("ends: the greatest value keeps its sign", WALK, "others.append((name, place, -most, weight))", "others.append((name, place, most, weight))", OTHER),
    m("ends: the least value once more", ROW_PASSES, 'cells.add("most", wide, code.where(negative, low, high, "double"))', 'cells.add("most", wide, code.where(negative, high, low, "double"))', ROW_CODE),
    m("ends: the least value once more, in the plain loop", FUSED, "top += x * (low if x < 0 else high)", "top += x * (high if x < 0 else low)", ROW_CODE),
    m("ends: the least value once more, without loops", TENSORS, "most = (x * torch.where(x < 0, low, high)).sum((1, 2))", "most = (x * torch.where(x < 0, high, low)).sum((1, 2))", BACKEND),
    m("ends: gaps of negative coefficients too, in machine code", ROW_PASSES, 'cells.add_where("beyond", code.compare("ogt", x)', 'cells.add_where("beyond", code.compare("one", x)', ROW_CODE),
    m("ends: gaps of negative coefficients too", FUSED, "over += np.float64(x) * np.float64(gg[q]) if x > 0 else 0.0", "over += np.float64(x) * np.float64(gg[q])", ROW_CODE),
    m("ends: gaps are those of coefficients behind them, without loops", TENSORS, "        beyond = None if gap is None else self.positive_dot(m, place, gap)\n        m, total = self.relax(m, place, below, above, None, upper_cut)\n", "        m, total = self.relax(m, place, below, above, None, upper_cut)\n        beyond = None if gap is None else self.positive_dot(m, place, gap)\n", BACKEND),
    m("ends: the nearer end of a gap", RELAX, "torch.where(below == 1, -lo, hi)", "torch.minimum(-lo, hi) * 0.5", OTHER),
    m("ends: the gap of the other line below", RELAX, "torch.where(below == 1, -lo, hi)", "torch.where(below == 1, hi, -lo).clamp(max=1e-9)", OTHER),
    m("ends: gaps are rounded to nearest", RELAX, "round_up(gap, dtype) if slope == 0.0 else None", "gap.to(dtype) if slope == 0.0 else None", OTHER),
    m("ends: the nearer end of a gap in the loop", CELLS, "widest = -low if high > -low else high", "widest = 0.5 * min(-low, high)", OTHER),
    m("ends: gaps are rounded to nearest in the loop", CELLS, "gap[i] = up_to(np.float64(gap[i]), widest)", "gap[i] = np.float64(gap[i])", OTHER),
    m("ends: a ball's rows have two", WALKER, "return tables.boxes.ball is None and self.goes_both_ways(program)", "return self.goes_both_ways(program)", OTHER),
    m("ends: any ReLU has the gap of slope 0", WALKER, 'node.number("slope") == 0.0 if op == "relu" else op in TWO_ENDED', 'op == "relu" or op in TWO_ENDED', OTHER),
    m("ends: max pools have no gap", WALKER, '("start", "linear", "conv",', '("start", "linear", "conv", "maxpool",', OTHER),
    m("ends: smooth functions have no gap", WALKER, '("start", "linear", "conv",', '("start", "linear", "conv", "tanh",', OTHER),
    m("ends: the other end bounds the same side", WALKER, "self.backend.keep(other.best, -sign, open_, best, True)", "self.backend.keep(other.best, sign, open_, best, True)", OTHER),
    m("ends: the other end takes the place of better bounds", WALKER, "self.backend.keep(other.best, -sign, open_, best, True)", "self.backend.keep(other.best, -sign, open_, best, False)", OTHER),
    m("ends: rows go on without what they exceed", PLAYER, "None if self.rows.excess is None else excess)", "None if self.rows.excess is None else 0 * excess)", PLAYED),
    m("ends: rows come without what they exceed", PLAYER, "(rows.constant, rows.error, rows.excess)]", "(rows.constant, rows.error, None)]", PLAYED),
    m("ends in tapes: rows have no gaps before an affine node", LOOP, "f[REST + 14] if ends else 0, notes", "0, notes", OTHER, PLAYED),
    m("ends in tapes: gaps of positive coefficients are free", LOOP, "if ends:\n                    exceed_rows(excess[:n], beyond, g[0] * g[0])\n                if point", "if point", OTHER, PLAYED),
    m("ends in tapes: gaps of positive coefficients alone are free", LOOP, "exceed_rows(excess[:n], beyond, g[0] * g[0])\n                relax(", "none\n                relax(", OTHER, PLAYED),
    m("ends in tapes: gaps are left out", RECORD, "(self.tables.lines(node) if narrow is None else narrow).gap", "None", OTHER, PLAYED),
    m("ends in tapes: gaps of cells that lie elsewhere", RECORD, "(self.tables.lines(node) if narrow is None else narrow).gap", "self.tables.lines(node).gap", PLAYED),
    m("ends in tapes: gaps of negative coefficients are free", LOOP, "exceed_rows(excess[:n], total, -g[0] * g[0])\n                pay_rows(", "none\n                pay_rows(", OTHER, PLAYED),
    m("ends in tapes: gaps of negative coefficients alone are free", LOOP, "exceed_rows(excess[:n], total, -g[0] * g[0])\n            elif", "none\n            elif", OTHER, PLAYED),
    m("ends in tapes: the error counts at one end only", LOOP, "-constant[r], error[r] + excess[r]", "-constant[r], excess[r]", OTHER, PLAYED),
    m("ends in tapes: the constant keeps its sign at the other end", LOOP, "-constant[r], error[r] + excess[r]", "constant[r], error[r] + excess[r]", OTHER, PLAYED),
    m("ends in tapes: the greatest value keeps its sign", LOOP, "most[r] = -most[r]", "most[r] = most[r]", OTHER, PLAYED),
    m("ends in tapes: rows that stay exceed by what others did", LOOP, "excess[r], channel[r], sign[r] = excess[s], channel[s], sign[s]", "channel[r], sign[r] = channel[s], sign[s]", PLAYED),
)  # fmt: skip
