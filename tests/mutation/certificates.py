# ruff: noqa: E501  one row a mutant
"""Faults of the checker of certificates: what it charges, which lines it draws, how it walks a tree, what it believes of a file."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

SOUND, TAMPERING, READING = (f"tests/certificate/test_{n}.py" for n in ("soundness", "tampering", "reading"))
LINE = f"{SOUND}::test_no_line_cuts_a_relu"
POINTS, EXECUTIONS = f"{SOUND}::test_no_point_lies_below_a_bound", f"{SOUND}::test_no_float32_execution_lies_below_a_bound"
LINES, TREES, FILES = (f"{TAMPERING}::test_{n}" for n in ("no_mutant_proves_what_is_false", "what_no_tree_says_is_refused", "other_headers"))
LOSSES, SHAPES = f"{SOUND}::test_what_underflows_in_layers_is_paid", f"{READING}::test_what_is_not_understood_is_refused_by_name"
COST = f"{READING}::test_few_bytes_do_not_cost_gigabytes"
ADDENDS, TIGHT = "tests/certificate/test_addends.py", "tests/certificate/test_tight.py"
APART, STORED = f"{ADDENDS}::test_what_each_of_two_convolutions_rounds_is_paid", f"{ADDENDS}::test_which_values_are_stored"
SHARES, CONVERSIONS = "tests/certificate/test_shares.py", "tests/certificate/test_conversions.py"
CONVERTED = f"{CONVERSIONS}::test_conversions_are_charged_what_they_do"
OWN = "tests/certificate/test_leaves.py::test_each_trees_leaves_are_of_its_own_box_and_pieces"
GUIDE, WRITTEN = "tests/certificate/test_guide.py", "tests/certificate/test_trees.py"
CUT = f"{GUIDE}::test_a_cut_keeps_what_reaches_any_piece"
NOTES = "tests/prove/test_notes.py"
EXACT = "tests/certificate/test_exact.py"
EXACTLY = f"{EXACT}::test_bounds_hold_at_every_corner_of_the_regions", f"{EXACT}::test_no_false_property_is_confirmed"
_C, _B, _F, _S, _E = "checker.py", "checker_boxes.py", "checker_files.py", "commands/shares.py", "checker_exact.py"

CERTIFICATES: tuple[Mutant, ...] = (
    # rounding of the checker's own arithmetic
    m("checker: products are exact", _B, "self.G, self.empty = 4 * (net.terms + 64) * U,", "self.G, self.empty = 0.0,", POINTS),
    m("checker: affine steps pay nothing", _B, "c = down(down(c + op.b @ a) - dot(self.T[k], np.abs(a), at))", "c = down(c + op.b @ a)", f"{SOUND}::test_cancellations_are_not_lost"),
    m("checker: sums of coefficients are exact", _B, "return down(c - dot(4 * U * self.mag[k] + FLOOR, np.abs(frontier[k]), at))", "return c", f"{SOUND}::test_sums_of_coefficients_cost_what_they_round"),
    m("checker: bounds over boxes pay nothing", _B, "self.R[k] = self.rad[k] + self.G * (np.abs(self.mid[k]) + self.rad[k]) + FLOOR", "self.R[k] = self.rad[k]", f"{SOUND}::test_a_bound_over_a_box_pays_for_its_sum", POINTS),
    m("checker: upper ends rounded to nearest", _B, "np.where(below, up(hi), hi)", "hi", f"{SOUND}::test_box_bounds_are_rounded_outward"),
    # lines and multipliers
    m("checker: a slope below may exceed 1", _B, "np.clip(np.fmax(own, 0.0), 0.0, 1.0)", "np.fmax(own, 0.0)", LINE, POINTS),
    m("checker: a slope below may be negative", _B, "np.clip(np.fmax(own, 0.0), 0.0, 1.0)", "np.minimum(own, 1.0)", LINE, POINTS),
    m("checker: a multiplier may be negative", _B, "np.fmax(b, 0.0), 0.0)", "b, 0.0)", LINE, POINTS),
    m("checker: multipliers without a sign", _B, "b = sigma * np.where(((sigma > 0) & (low >= 0)) | ((sigma < 0) & (high <= 0)), np.fmax(b, 0.0), 0.0)", "b = np.fmax(b, 0.0)", LINE, POINTS),
    m("checker: multipliers of the other sign", _B, "b = sigma * np.where(((sigma > 0)", "b = -sigma * np.where(((sigma > 0)", LINE, POINTS),
    m("checker: the line above without its intercept", _B, "np.maximum(up(t * -l), up(h * up(1 - t)))", "0 * l", POINTS),
    m("checker: the line above cuts the upper end", _B, "np.maximum(up(t * -l), up(h * up(1 - t)))", "up(t * -l) * (1 - 2.0**-40)", POINTS),
    m("checker: undecided neurons count as on", _B, "(l < 0) & (h > 0), (l >= 0)", "(l < 0) & (h > 0) & (h < -l), (h > -l)", LINE, POINTS),
    m("checker: lines change sides", _B, "a = np.maximum(a, 0) * s + below * t - b", "a = np.maximum(a, 0) * t + below * s - b", POINTS),
    m("checker: both sides of a difference keep their sign", _B, "self._give(frontier, i, sign * a, c, at)", "self._give(frontier, i, a, c, at)", f"{SOUND}::test_both_sides_of_a_difference_go_back"),
    m("checker: undecided neurons count as off", _B, "np.where(mixed, (h > -l).astype(np.float64), on), t, m", "np.where(mixed, 0.0, on), 0 * t, 0 * m", LINE),
    m("checker: both children have the neuron on", _C, "for sign in (1, -1))\n", "for sign in (1, 1))\n", LINE),
    # signs
    m("checker: bounds that cross in a whole box are no alarm", _B, "need(not (crossed & ~self.signed).any(), f\"{message} cross\", Refused)", "self.signed |= crossed", f"{SOUND}::test_bounds_of_a_whole_box_that_cross_are_refused"),
    # float32 executions
    m("checker: float32 executions round nothing", _B, "self.M[k], self.E[k] = size * ROOM, (e + c + terms / (1 - terms) * (size + c) + lost) * ROOM", "self.M[k], self.E[k] = size * ROOM, 0 * size", EXECUTIONS),
    m("checker: float32 rounds once a sum", _B, "np.ones_like) + 1 + op.ops) * how.v", "np.zeros_like) + 1) * how.v", EXECUTIONS),
    m("checker: lines over the operand before rounding", _B, "(down(self.lo[i] - e), up(self.hi[i] + e)) if self.how", "(self.lo[i], self.hi[i]) if self.how", EXECUTIONS),
    m("checker: rows over a ReLU's operand pay no rounding", _B, "+ FLOOR + e * (1 + 8 * U)) * (1 + self.G)", "+ FLOOR) * (1 + self.G)", EXECUTIONS),
    m("checker: rows over the output pay no rounding", _B, "(self.execution_error(k) * (1 + 8 * U) if k == output else 0.0)", "0.0", EXECUTIONS),
    m("checker: float32 semantics are taken for real", _C, "Prover(net.data, meta[\"semantics\"])", "Prover(net.data, \"real\")", f"{TAMPERING}::test_exact_arithmetic_does_not_certify_what_rounding_breaks"),
    m("checker: underflow of merged layers has no factor", _B, "LOST * np.power(1 + how.unit, 2 * len(self.net.ops)) if op.ops or any(op.passed) else 2 * ETA", "2 * ETA", LOSSES),
    m("checker: weights of a first layer are not flushed", _B, "+ 16) * (1 + x.max(0))", "+ 16) * (1 + 0 * x.max(0))", LOSSES),
    m("checker: what is on is never bounded again", _C, "(((low < 0) | bool(whole)) & (high > 0)", "((low < 0) & (high > 0)", f"{TIGHT}::test_what_is_on_is_bounded_from_above"),
    m("checker: upper ends are what lower ones are", _C, "(first, 1 - first, first | 1)", "(first, 1 - first, 0 * first)", f"{TIGHT}::test_what_is_on_is_bounded_from_above"),
    m("checker: steps without end", _C, "max(self.inner.max() - TIGHT, self.query.max()) <= STEPS", "self.query.max() <= STEPS", f"{TIGHT}::test_steps_have_an_end"),
    m("certificates: rounding is never in the way", "certificate/guide.py", "found[np.array(some)[which[margin + WIDENS * charge > 0]]] = True", "pass", f"{TIGHT}::test_where_rounding_stands_in_the_way_it_is_asked_for"),
    m("certificates: every bounded node counts as the first", "certificate/trees.py", "found.append(busy[here] & ~begun)", "found.append(busy[here])", f"{TIGHT}::test_the_writer_asks_for_it_where_the_search_did"),
    m("certificates: what others met is forgotten", "prove/trail.py", "self.tight |= other.tight", "pass", f"{TIGHT}::test_a_shared_search_tells_it_too"),
    m("checker: rows over stored values pay no rounding", _B, "self.T[k] = self.T[k] + (e := self.execution_error(k)) * (1 + self.G)", "e = self.execution_error(k)", APART),
    m("checker: boxes of stored values are those before rounding", _B, "self.put(k, down(self.lo[k] - e), up(self.hi[k] + e))", "pass", APART),
    m("checker: stored values have no magnitude", _B, "self.M[k], self.E[k] = self.mag[k], zero\n", "self.M[k], self.E[k] = 0 * self.mag[k], zero\n", APART),
    m("checker: stored between dense layers", _F, "rank[i] * rank[k] > 1", "rank[i] * rank[k] > 0", f"{ADDENDS}::test_dense_layers_may_be_one"),
    m("checker: stored before scales and sums", _F, "int(o.fan > 1) for o", "1 for o", STORED),
    m("checker: stored for some readers", _F, "if apart} - {i for i, apart in reads if not apart}", "if apart}", STORED),
    # conversions of operands, and tensor cores
    m("checker: operands are converted without loss", _B, "c = op.push(by := shift(x + ETA, how), np.abs) +", "c = 0 * op.push(by := shift(x + ETA, how), np.abs) +", CONVERTED),
    m("checker: weights are converted without loss", _B, "op.push(x + ETA + by, functools.partial(shift, how=how))", "0 * op.push(x + ETA + by, functools.partial(shift, how=how))", CONVERTED),
    m("checker: converted weights meet operands as they were", _B, "op.push(x + ETA + by, functools.partial", "op.push(x + ETA, functools.partial", CONVERTED),
    m("checker: dense layers convert nothing", _B, "op.kind in (\"conv\", \"dense\")", 'op.kind in ("conv",)', CONVERTED),
    m("checker: convolutions convert nothing", _B, "op.kind in (\"conv\", \"dense\")", 'op.kind in ("dense",)', CONVERTED),
    m("checker: bf16 has a bit more", _B, '"bf16": Deployed(2.0**-22, 2.0**-7,', '"bf16": Deployed(2.0**-22, 2.0**-8,', CONVERTED),
    m("checker: tensor cores add as others do", _B, '"tf32": Deployed(2.0**-22, 2.0**-10,', '"tf32": Deployed(2.0**-23, 2.0**-10,', f"{CONVERSIONS}::test_tensor_cores_round_more_often_than_plain_sums"),
    m("checker: float16 flushes nothing", _B, "how.unit * size + np.minimum(size, how.tiny) + how.step", "how.unit * size + how.step", f"{CONVERSIONS}::test_what_float16_flushes_or_rounds_up_is_paid"),
    m("checker: float16 rounds nothing up", _B, "2.0**-14, 2.0**-24, 65504.0)", "2.0**-14, 2.0**-40, 65504.0)", f"{CONVERSIONS}::test_what_float16_flushes_or_rounds_up_is_paid"),
    m("checker: float16 has float32's range", _B, "2.0**-14, 2.0**-24, 65504.0)", "2.0**-14, 2.0**-24, MOST)", f"{CONVERSIONS}::test_what_float16_cannot_hold_has_no_bound"),
    m("checker: float16 merges weights without loss", _B, " + net.merged * bool(how and how.tiny)", "", f"{CONVERSIONS}::test_what_may_be_merged_under_float16_is_refused"),
    m("checker: float64 numbers are converted as they are", _B, " + net.wide * bool(how and how.unit)", "", f"{CONVERSIONS}::test_float64_numbers_are_not_what_layers_convert"),
    m("checker: float64 numbers are float32", _F, "* (11 in {given.elem_type, *types})", "* (11 in types - {11})", f"{CONVERSIONS}::test_float64_numbers_are_not_what_layers_convert"),
    m("checker: addends pass three additions fewer", _F, "made.passed or (self.chain[made.inputs[0]][0],)", "made.passed or (max(0, self.chain[made.inputs[0]][0] - 3),)", f"{ADDENDS}::test_wherever_addends_are_put_they_pass_no_more_than_is_charged"),
    m("checker: roundings begin anew with every operator", _F, "(met + (2 if op.kind", "((2 if op.kind", f"{ADDENDS}::test_addends_in_layers_before_them"),
    m("checker: any semantics is float32", _C, "Prover(net.data, meta[\"semantics\"])", "Prover(net.data, \"float32\")", f"{CONVERSIONS}::test_one_of_weaker_semantics_proves_nothing_of_stronger"),
    m("checker: of each box the first's bounds", _B, "at[:1] if (at == at[:1]).all() else at", "at[:1]", f"{SOUND}::test_rows_over_several_boxes_are_bounded_over_their_own"),
    m("checker: cells with a few coefficients are left out", _B, "np.flatnonzero(a.any(1))", "np.flatnonzero(a.all(1))", POINTS),
    m("checker: cells of multipliers are left out", _B, "slice(None) if n in chosen else live(a)", "live(a)", LINE, POINTS),
    m("checker: whole numbers wrap", _F, "(np.abs(a / 1) < 2**31).all()", "True", SHAPES),
    m("checker: constants may be rounded", _F, "a.dtype == np.int64 and", "True and", SHAPES),
    m("checker: a slice with steps is one without", _F, "([], [[0]], [[0], [1]])", "([], [[0]], [[0], [1]], [[0], [2]])", SHAPES),
    m("checker: constants without end", _F, "self.made <= MAX_CELLS", "True", SHAPES),
    m("checker: a row goes on because others do", _B, "np.where(best[open_] < goal[open_], np.maximum(best[open_], found), best[open_])", "np.maximum(best[open_], found)", f"{SOUND}::test_a_row_is_bounded_as_it_is_alone"),
    # cuts by rows
    m("checker: cuts from the other end", _B, "np.where(slope < 0, np.fmax(lo, down(hi - reach)), lo), np.where(slope > 0,", "np.where(slope > 0, np.fmax(lo, down(hi - reach)), lo), np.where(slope < 0,", POINTS),
    m("checker: cuts by the best of all frontiers", _B, "np.inf) - last) /", "np.inf) - least) /", POINTS),
    m("checker: cuts twice as deep", _B, "/ np.abs(slope)), 0)", "/ np.abs(2 * slope)), 0)", POINTS, EXECUTIONS),
    m("checker: cuts by a limit beyond floats", _B, "np.where(goal < HUGE, up(goal), np.inf)", "up(goal)", f"{SOUND}::test_a_row_with_a_limit_beyond_floats_cuts_nothing"),
    m("checker: what overflowed is the largest number", _B, "np.nextafter(x, np.where(np.isinf(x), x, end))", "np.nextafter(x, end)", f"{GUIDE}::test_a_sum_that_overflows_cuts_nothing"),
    m("checker: a bound of infinity cuts", _B, "found = np.where(np.isfinite(found), found, -np.inf)", "found = np.where(np.isnan(found), -np.inf, found)", f"{GUIDE}::test_a_sum_that_overflows_cuts_nothing"),
    m("checker: a cut keeps what reaches every piece", _C, "(lows.min(0), highs.max(0))", "(lows.max(0), highs.min(0))", CUT),
    m("checker: a piece without a row is not reached", _C, "[c for *_, c in met.get((j, p), ())] for p in part.open]", "[c for *_, c in met[j, p]] for p in part.open if (j, p) in met]", f"{GUIDE}::test_a_piece_without_rows_is_reached_everywhere"),
    m("checker: ReLUs are one whatever they read", _F, 'o[:2] == ("relu", (k,))', 'o[0] == "relu"', f"{GUIDE}::test_relus_of_one_value_are_one"),
    # trees
    m("checker: a row refutes without a bound", _C, "if margin > 0 and not boxes.empty[j]:", "if not boxes.empty[j]:", LINES),
    m("checker: a bound of zero refutes", _C, "if margin > 0 and not boxes.empty[j]:", "if margin >= 0 and not boxes.empty[j]:", f"{GUIDE}::test_a_bound_of_zero_refutes_nothing"),
    m("checker: pieces left open are forgotten", _C, "elif part.open:", "elif False:", LINES, f"{GUIDE}::test_it_ends_where_it_must"),
    m("checker: the second child is not walked", _C, "int(tree.child[w.node])) if wanted[n]]", "int(tree.child[w.node])) if wanted[n]][:1]", LINES),
    m("checker: the second half below an end is not walked", _C, "for half in prover.divide(parts[j], split, cut))", "for half in prover.divide(parts[j], split, cut)[:1])", f"{GUIDE}::test_whatever_it_says_proves_nothing_false"),
    m("checker: what is left open is forgotten where somebody divides", _C, "_replace(open=p.open - c)", "_replace(open=frozenset() if c else p.open)", f"{GUIDE}::test_a_piece_that_is_reached_is_not_refuted_beside_one_that_is_not"),
    m("checker: a piece may have no tree", _C, "need(every == {", "need(every >= {", f"{GUIDE}::test_of_several_pieces_none_is_forgotten"),
    m("checker: nodes that nobody bounds are ends", _C, "push(_children(prover, tree, work[0], work[0].part, wanted))\n", "pass\n", f"{GUIDE}::test_a_piece_that_is_reached_is_not_refuted_beside_one_that_is_not"),
    m("checker: cuts may lie anywhere", _C, "need(part.lo[split] < cut < part.hi[split],", "need(True,", f"{TAMPERING}::test_cuts_outside_the_box_are_refused"),
    m("checker: a sign may be assumed twice", _C, "need(not known,", "need(True,", f"{TAMPERING}::test_a_sign_assumed_twice_is_refused"),
    m("checker: negative rows count from the end", _C, "0 <= r < len(pieces[p])", "r < len(pieces[p])", TREES),
    # files
    m("checker: combinations add up without end", _F, "spent[0] += ", "spent[0] = ", COST),
    m("checker: values without end", _F, "sum(self.sizes) <= MAX_CELLS", "True", COST),
    m("checker: products without end", _F, "<= MAX_WORK,", "<= 1 << 62,", COST),
    m("checker: any property", _C, "need(meta | hashes == meta,", "need(True,", f"{TAMPERING}::test_the_files_themselves"),
    m("checker: of a name said twice the last is read", _C, "if len(dict(p)) == len(p) else {}", "if True else {}", f"{TAMPERING}::test_a_name_said_twice_is_refused"),
    m("checker: numbers may be named twice", _C, "sum(b - a for a, b in spans) == len(body)", "True", f"{TAMPERING}::test_numbers_that_are_named_twice_or_never"),
    m("checker: any version", _C, "need(FORMAT.items() <= meta.items(),", "need(True,", FILES),
    m("certificates: trees are exported over boxes by position", "certificate/leaves.py", "b, (root, group) = tree.box, held[tree.box]", "b, (root, group) = tree.box, held[k % len(held)]", OWN),
    m("certificates: all pieces are exported for each tree", "certificate/leaves.py", "[group[p] for p in tree.own]", "group", OWN),
    # who writes it
    m("certificates: neurons in the runtime's order", "prove/neurons.py", "torch.from_numpy(order(e.nodes[r].shape)) +", "torch.arange(e.nodes[r].size) +", f"{WRITTEN}::test_the_searchs_tree_is_the_certificates"),
    m("certificates: both neurons' children change places", "prove/neurons.py", "both = torch.cat([best, best + len(part)])", "both = torch.cat([best + len(part), best])", f"{WRITTEN}::test_the_searchs_tree_is_the_certificates"),
    m("certificates: rows by another's number", "certificate/trees.py", "self.rows[form + k].append((p, rows[key]))", "self.rows[form + k].append((p, (rows[key] + 1) % len(rows)))", f"{WRITTEN}::test_pieces_and_rows_are_found_by_what_they_say"),
    m("certificates: a branch's forms by its own numbers", "prove/trail.py", "self.trail.close(node, self.forms[form])", "self.trail.close(node, form)", f"{WRITTEN}::test_numbers_of_branches_and_of_others_fit_together"),
    m("certificates: notes are filed over those before", "prove/notes.py", "self._filed + self._held, 0, []", "self._held, 0, []", f"{NOTES}::test_records_come_back_as_they_came"),
    m("certificates: notes stay in memory", "prove/notes.py", "if self.folder is not None and self._held * self.kind.itemsize >= BLOCK:", "if False:", f"{NOTES}::test_memory_holds_a_block"),
    m("certificates: notes that found no room are no loss", "certificate/write.py", "need(not trail.lost, trail.lost, Refused)", "pass", "tests/cli/test_full_disk.py::test_notes_that_find_no_room"),
    m("certificates: one that is not written is no failure", "commands/run.py", "max(asked.exit_code(), writer.exit_code())", "asked.exit_code()", "tests/cli/test_full_disk.py::test_notes_that_find_no_room"),
    # processes that share a tree
    m("shares: leaves that nobody looked at", _S, "if any(some.any() for some in open_):", "if False:", f"{SHARES}::test_a_share_that_nobody_answers_for_is_no_proof"),
    m("shares: whatever a process looked at", _S, "if {b: v.tolist() for b, v in work.shares[event.job].items()} != leaves:", "if False:", f"{SHARES}::test_a_process_that_looks_elsewhere_is_an_error"),
    # in whole numbers
    m("exact: bounds to the nearest inner multiple", _E, "return w.n >> (w.e - GRID) if", "return -(-w.n >> (w.e - GRID)) if", *EXACTLY),
    m("exact: lines change sides", _E, "above * s + below * t", "above * t + below * s", *EXACTLY),
    m("exact: float32 certificates are read", _E, "need(semantics == \"real\",", "need(True,", f"{EXACT}::test_the_command"),
    m("exact: weights that were computed", _E, "need(op.ops == 0,", "need(True,", f"{EXACT}::test_what_is_not_exactly_in_the_file_is_refused"),
)
