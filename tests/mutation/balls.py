# ruff: noqa: E501  one row a mutant
"""Faults in l2 and l1 balls: at the input, in the stored ball, in searches, in counterexamples."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

INPUT, EXACT, CUTS = "runtime/input_balls.py", "frontend/norm_balls.py", "prove/cuts.py"
SOUND, USED = "tests/soundness/test_balls.py", "tests/api/test_norm_balls.py"
ROWS, PAID = f"{SOUND}::test_rows_are_bounded_below_and_nearly_as_well_as_can_be", f"{SOUND}::test_rounding_is_paid_where_all_of_it_goes_one_way"
STORED, PARTS = f"{SOUND}::test_the_stored_ball_holds_the_exact_one_and_what_a_flush_makes_of_it", f"{SOUND}::test_parts_of_boxes_keep_all_of_their_ball"
FINITE, SEARCHES = f"{SOUND}::test_nothing_finite_comes_of_what_is_not", f"{SOUND}::test_searches_keep_the_ball"
FOUND, AFFINE = f"{SOUND}::test_counterexamples_lie_in_the_ball_exactly", f"{SOUND}::test_an_affine_network_is_bounded_exactly_but_for_rounding"
TWICE, PIXELS = f"{SOUND}::test_an_input_read_twice_is_moved_once", f"{USED}::test_pixels_are_measured_before_they_are_normalised"

BALLS: tuple[Mutant, ...] = (
    m("balls: dual norms are swapped", INPUT, "return v.abs().amax(1) if norm == L1", "return v.abs().amax(1) if norm != L1", ROWS),
    m("balls: l1 is its own dual", INPUT, "v.abs().amax(1) if norm == L1", "v.abs().sum(1) if norm == L1", ROWS),
    m("balls: the scale is left out of the dual", INPUT, "_dual(balls.norm, g * balls.scale)", "_dual(balls.norm, g)", ROWS),
    m("balls: the radius is halved", INPUT, "loss = balls.radius * norm", "loss = 0.5 * balls.radius * norm", ROWS),
    m("balls: both parts have the whole row", INPUT, "    b = a - g\n", "    b = a\n", ROWS),
    m("balls: the box's other end", INPUT, "torch.where(b < 0, b * hi, b * lo)", "torch.where(b < 0, b * lo, b * hi)", ROWS),
    m("balls: rounding is free", INPUT, "value = value - (4 * (2 * a.shape[1] + 16) * U * size + balls.radius * ROOT + TINY)", "value = value - TINY", PAID),
    m("balls: only the box's part is weighed", INPUT, " + centre.abs().sum(1) + loss", "", PAID),
    m("balls: what is not finite stands", INPUT, "return torch.where(torch.isfinite(value), value, -torch.inf)", "return torch.nan_to_num(value)", FINITE),
    m("balls: the multiplier is the ball's alone", INPUT, "    for _ in range(STEPS):\n", "    for _ in range(0):\n", ROWS),
    m("balls: a knapsack filled from the wrong end", INPUT, "descending=True", "descending=False", ROWS),
    m("balls: inputs that are one count as two", "runtime/forward.py", "return ball.move_cells(self.arrange) if len(set(used)) == len(used) else None", "return ball.move_cells(self.arrange)", TWICE, f"{SOUND}::test_a_ball_over_cells_that_are_one_input_is_left_out"),
    m("balls: the walk knows boxes alone", "runtime/cpu/walk.py", "            if ball is not None:\n", "            if False:\n", AFFINE),
    m("balls: rows of another image", "runtime/cpu/torch_backend.py", "b.radius[images]", "b.radius[images * 0]", f"{SOUND}::test_rows_of_a_batch_have_their_own_balls"),
    m("balls: the radius is rounded down", EXACT, "radius = float_bounds(self.radius + Fraction(beside))[1]", "radius = float_bounds(self.radius)[0]", STORED),
    m("balls: the rounded centre costs nothing", EXACT, "hi - lo + FLUSHED", "hi * 0 + FLUSHED", STORED),
    m("balls: a flush costs nothing", EXACT, "hi - lo + FLUSHED", "hi - lo", STORED),
    m("balls: half axes are rounded down", EXACT, "ends = {w: (float_bounds(1 / w)[1],", "ends = {w: (float_bounds(1 / w)[0],", STORED),
    m("balls: weights are half axes", EXACT, "moved = [abs(v - c) * w for", "moved = [abs(v - c) / w for", STORED, PIXELS),
    m("balls: exact l1 points are judged by l2", EXACT, "return sum(moved) <= self.radius if self.norm == L1 else", "return", FOUND),
    m("balls: the box around is too small", EXACT, "reach = {w: self.radius / w for w in", "reach = {w: self.radius / w / 2 for w in", f"{USED}::test_properties_in_python"),
    m("balls: pixels are measured as inputs", "frontend/balls.py", "weights = [s for s in stds", "weights = [Fraction(1) for s in stds", PIXELS),
    m("balls: points beside them are counterexamples", "frontend/query.py", "and (self.ball is None or self.ball.holds(point))", "", FOUND),
    m("balls: disjuncts share boxes and so balls", "frontend/query.py", "id(self.open_lo), id(self.open_hi), id(self.ball)", "id(self.open_lo), id(self.open_hi)", f"{SOUND}::test_pieces_of_one_box_have_their_own_balls"),
    m("balls: questions forget which box has which", "prove/questions.py", "boxes.setdefault((id(d.lo), id(d.hi), id(d.ball)), len(boxes))", "boxes.setdefault((id(d.lo), id(d.hi), 0), len(boxes))", f"{SOUND}::test_pieces_of_one_box_have_their_own_balls"),
    m("balls: division ignores them", "prove/refute.py", "ball=self.decider.balls(self.q, batch.root)", "ball=None", SEARCHES),
    m("balls: parts get the first box's", "prove/refute.py", "balls.pick(batch.root)", "balls.pick(batch.root * 0)", f"{SOUND}::test_pieces_of_one_box_have_their_own_balls"),
    m("balls: parts by signs ignore them", "prove/neurons.py", "lambda *_: None, known, ball)", "lambda *_: None, known)", SEARCHES),
    m("balls: a part is cut too near", CUTS, "reach = left[:, None] + apart\n", "reach = left[:, None] + 0 * apart\n", PARTS),
    m("balls: l2 parts are cut as l1 parts", CUTS, "root = balls.norm == L2", "root = balls.norm != L2", PARTS),
    m("balls: a part at the edge is missed", CUTS, "left[:, None] < 0, np.inf", "left[:, None] < given[:, None] / 8, np.inf", PARTS),
    m("balls: descents leave them", "runtime/attack/ball.py", "points = centre + moved * share[..., None]", "points = centre + moved", f"{SOUND}::test_points_are_drawn_into_the_ball_exactly"),
    m("balls: another norm is the same question", "runs/queries.py", '("" if self.norm == LINF else f" {self.norm}")', '""', f"{USED}::test_a_record_is_of_its_norm", f"{USED}::test_on_the_command_line"),
    m("balls: those that miss their box are asked about", "frontend/stated.py", "if not ball.meets(lows, highs):", "if False:", f"{USED}::test_a_ball_that_misses_its_box_where_no_coordinate_tells"),
    m("balls: pieces that touch them are dropped", EXACT, "return self.holds(tuple(min(max(c, lo), hi) for", "return self.holds(tuple(min(max(c, lo), hi) + Fraction(1, 10**9) for", f"{USED}::test_a_ball_that_misses_its_box_where_no_coordinate_tells"),
    m("balls: an l1 row is multiplied on one side", EXACT, "const * times)", "const)", f"{USED}::test_l1_is_written_and_l2_is_refused"),
    m("balls: l1 rows of half the signs", EXACT, "for signs in product((-1, 1), repeat=len(free)):", "for signs in product((1,), repeat=len(free)):", f"{USED}::test_l1_is_written_and_l2_is_refused"),
    m("balls: fixed inputs cost nothing of a written ball", EXACT, "abs(fixed[i] - self.centre[i]) * self.weights[i] for i in kept", "0 * self.weights[i] for i in kept", f"{USED}::test_l1_is_written_and_l2_is_refused"),
)  # fmt: skip
