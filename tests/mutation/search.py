# ruff: noqa: E501  one row a mutant
"""Faults of a search: what refutes a part, what is cut off one, and how parts are kept."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

SEARCH, CUTS, DOMAINS, LINES, TIGHT, NEURONS = (f"tests/prove/test_{n}.py" for n in ("search", "cuts", "domains", "lines", "tight", "neurons"))
BOXES, DEPLOYED, ENDS = (f"tests/prove/test_search_{n}.py" for n in ("boxes", "deployed", "ends"))
_CLIMB, CLIMB = "kernels/device/ascent.py", "tests/kernels/test_ascent.py"
_REFUTE = "prove/refute.py"
_SEARCH, _CUTS, _DOMAINS, _LINES = "prove/search.py", "prove/cuts.py", "prove/domains.py", "runtime/lines.py"
_TIGHT, _NEURONS, _PARTS, _CHOSEN = "prove/tight.py", "prove/neurons.py", "prove/parts.py", "runtime/chosen.py"
_FOREST, _CREW, CREW = "prove/forest.py", "prove/crew.py", "tests/prove/test_crew.py"
METHODS = "tests/prove/test_methods.py"
FUSED, TORCH = "runtime/cpu/fused.py", "runtime/cpu/torch_backend.py"
CHOSEN_LINES = "tests/runtime/test_backend.py::test_lines_that_rows_choose_are_taken_alike_with_and_without_loops"
SWEEPS = "tests/runs/test_sweep.py"
_EFFORT, EFFORT = "prove/effort.py", "tests/prove/test_effort.py"

SEARCHES: tuple[Mutant, ...] = (
    # how hard bounds are worked for
    m("effort: upper bounds keep their sign", _EFFORT, "return Bounds(low, -high, _join", "return Bounds(low, high, _join", EFFORT),
    m("effort: forms are asked in a batch's first box", _EFFORT, "q.image[mine] - part.start)", "0 * q.image[mine])", EFFORT),
    m("effort: bounds count for another form", _EFFORT, "best[mine] = found\n    return best", "best[mine] = found[::-1]\n    return best", EFFORT),
    m("effort: batches are joined the wrong way round", _EFFORT, "[p.lo for p in parts]", "[p.lo for p in parts[::-1]]", EFFORT),
    m("effort: a layer's upper bounds meet lower ones", _EFFORT, "np.minimum(side.hi, b.layers[name].hi)", "np.minimum(side.hi, b.layers[name].lo)", EFFORT),
    m("effort: one pass for all efforts", _EFFORT, 'if c != mine and effort != "quick"', "if c != mine and not effort", EFFORT),
    # what refutes a part
    m("a bound of zero refutes", _REFUTE, "closed = batch.open & (best > 0)", "closed = batch.open & (best >= 0)", f"{SEARCH}::test_a_bound_of_zero_refutes_nothing", SEARCH),
    m("a bound of nearly zero refutes", _REFUTE, "closed = batch.open & (best > 0)", "closed = batch.open & (best > -1e-9)", SEARCH),
    m("a group closed in one part is closed in all", _REFUTE, "batch.open &= ~closed\n", "batch.open &= ~closed.any(0)\n", SEARCH),
    m("one group closes a part", _REFUTE, "batch.open &= ~closed\n", "batch.open &= ~closed.any(1, keepdims=True)\n", SEARCH),
    m("bounds count for another group", _REFUTE, "np.maximum.at(best, (found.at, found.local), found.best)", "np.maximum.at(best, (found.at, found.local[::-1]), found.best)", SEARCH),
    m("bounds count for another part", _REFUTE, "np.maximum.at(best, (found.at, found.local), found.best)", "np.maximum.at(best, (np.roll(found.at, 1), found.local), found.best)", SEARCH),
    m("forms of another box are asked", _REFUTE, "forms = self.decider.forms(self.q, form, at)", "forms = self.decider.forms(self.q, np.roll(form, 1), at)", SEARCH),
    m("forms are asked in the part beside", _REFUTE, "forms = self.decider.forms(self.q, form, at)", "forms = self.decider.forms(self.q, form, np.roll(at, 1))", SEARCH),
    m("forms are asked in the first part", _REFUTE, "forms = self.decider.forms(self.q, form, at)", "forms = self.decider.forms(self.q, form, 0 * at)", SEARCH),
    m("float64 refutes other parts than it bounded", _REFUTE, "batch.open[hopeful] = some.open", "batch.open[hopeful] = some.open[::-1]", SEARCH),
    # what a part takes over
    m("bounds of nodes are those of another part", _REFUTE, "v.reshape(len(batch), *extent", "v.roll(1, 0).reshape(len(batch), *extent", SEARCH),
    m("bounds of nodes are learnt from other parts", _REFUTE, "left.layers = self._learnt(found.boxes, which)", "left.layers = self._learnt(found.boxes, which[::-1].copy())", SEARCH),
    m("bounds of nodes are learnt from the first parts", _REFUTE, "boxes.hi[n][index].flatten(1)", "boxes.hi[n][: len(index)].flatten(1)", SEARCH),
    m("lower bounds handed down are rounded up", _REFUTE, "*(low for low, _ in ends)", "*(torch.nextafter(low, high) for low, high in ends)", SEARCH),
    m("upper bounds handed down are rounded down", _REFUTE, "*(high for _, high in ends)", "*(torch.nextafter(high, low) for low, high in ends)", SEARCH),
    m("a node takes over the wider of its ends", "runtime/engine.py", "torch.minimum(boxes.hi[name], hi, out", "torch.minimum(boxes.hi[name], 0.9 * hi, out", SEARCH),
    # how parts are kept
    m("the last half is dropped", _REFUTE, "> few:\n                return left\n", "> few:\n                return left.pick(np.arange(len(left) - 1))\n", SEARCH),
    m("upper halves are dropped", _REFUTE, "> few:\n                return left\n", "> few:\n                return left.pick(np.arange(len(left) // 2))\n", SEARCH),
    m("a batch is lost when the time is up", _SEARCH, "            self._put_back()\n            raise\n", "            self.flow.drop()\n            raise\n", f"{ENDS}::test_time_that_ends_anywhere", ENDS),
    m("a broken-off batch keeps what it closed", _REFUTE, "replace(batch, open=batch.open.copy(), bound=batch.bound.copy())", "batch", f"{ENDS}::test_bounding_a_batch_changes_neither_it_nor_the_search"),
    m("batches on their way are lost at the end", _SEARCH, "                self._put_back()\n                self.crew.close()", "                self.flow.drop()\n                self.crew.close()", CREW),
    m("what waits is replaced by what is left of a batch", _SEARCH, "self.waiting.add(t.left)", "self.waiting = Waiting(t.left)", SEARCH),
    m("a part is lost when a batch is taken", _SEARCH, "return w.take(order[:count])", "return w.take(order[: count + 1]).pick(np.arange(min(count, len(order))))", f"{ENDS}::test_little_memory_takes_the_deepest_first", ENDS),
    m("a part that waits keeps another's bounds", _DOMAINS, "block[at[mine] % self._rows] = more.layers[mine]", "block[at[mine] % self._rows] = more.layers[mine][::-1]", DOMAINS),
    m("room is given away before it is empty", _DOMAINS, "self._free = np.concatenate([self._free, at])\n        return", "self._free = np.concatenate([self._free, at + 1])\n        return", DOMAINS),
    m("boxes that were not tried are not searched", _SEARCH, "begun = w.take(np.flatnonzero(~unknown))", "begun = w.take(np.arange(len(w))).pick(np.flatnonzero(~unknown))", f"{SEARCH}::test_boxes_of_which_some_have_been_tried", SEARCH),
    m("parts with one closed group are done", _REFUTE, "which = np.flatnonzero(batch.open.any(1))", "which = np.flatnonzero(batch.open.all(1))", SEARCH),
    # what a search claims
    m("time that is up proves", _SEARCH, "        self._settle()\n        return", '        if self.ended == "time":\n            self.waiting.open[:] = False\n        self._settle()\n        return', ENDS),
    m("a part that cannot be divided is proved", _SEARCH, "        self._settle()\n        return", '        if self.ended == "rounding":\n            self.waiting.open[:] = False\n        self._settle()\n        return', SEARCH),
    m("a counterexample proves", _SEARCH, "        self._settle()\n        return", '        if self.ended == "sat":\n            self.waiting.open[:] = False\n        self._settle()\n        return', ENDS),
    m("the first part that waits is forgotten", _SEARCH, "still[self.pieces.groups[w.root][w.open]] = True", "still[self.pieces.groups[w.root][w.open][1:]] = True", SEARCH),
    m("groups are told by their place in the box", _SEARCH, "still[self.pieces.groups[w.root][w.open]] = True", "still[np.nonzero(w.open)[1]] = True", SEARCH),
    m("a margin is the largest bound of its parts", _REFUTE, "np.minimum.at(self.least,", "np.maximum.at(self.least,", SEARCH),
    m("open groups get margins", _SEARCH, "mine = (~still & ~a.settled)[self.q.group]", "mine = (~a.settled)[self.q.group]", SEARCH),
    # clipping, as a search does it
    m("flushed inputs are clipped as if kept", _REFUTE, "0.0 if sem.real else sem.eta)", "0.0)", f"{DEPLOYED}::test_clips_know_what_may_be_flushed", DEPLOYED),
    m("parts are clipped without slack", _REFUTE, "lines.slack.cpu().numpy()", "0 * lines.slack.cpu().numpy()", SEARCH),
    m("a line's constant changes its sign", _REFUTE, "constant, slack = lines.constant.cpu()", "constant, slack = -lines.constant.cpu()", SEARCH),
    m("a part is clipped by the line beside", _REFUTE, "input_lines(engine, found.boxes, found.forms.pick(torch.from_numpy(rows))", "input_lines(engine, found.boxes, found.forms.pick(torch.from_numpy(np.roll(rows, 1)))", SEARCH),
    m("a part is clipped by all its groups", _REFUTE, "self._clip(left, at, found.local[rows],", "self._clip(left, at, 0 * found.local[rows],", f"{SEARCH}::test_unsafe_inputs_of_several_groups_at_both_ends", SEARCH),
    m("lines cut the part beside", _REFUTE, "at, left = place[found.at[rows]], batch.pick(which)", "at, left = np.roll(place[found.at[rows]], 1), batch.pick(which)", SEARCH),
    m("cuts that meet in a point refute", _REFUTE, "refuted = (lo > hi).any(1)", "refuted = (lo >= hi).any(1)", SEARCH),
    m("cuts that do not meet refute a part's other groups", _REFUTE, "left.open[domain[refuted], group[refuted]] = False", "left.open[domain[refuted]] = False", SEARCH),
    m("a margin forgets what was clipped", _REFUTE, "np.minimum.at(self.least, mine, np.maximum(self.level[mine], LEAST))", "np.minimum.at(self.least, mine, np.inf)", ENDS),
    m("lines are over the network's cells", _REFUTE, "self.decider.user_columns(lines.slopes).cpu()", "lines.slopes.cpu()", f"{BOXES}::test_networks_that_move_their_inputs", BOXES),
    m("cells go back to the first inputs", "prove/decider.py", "made[:, index[index >= 0]] = values[:, index >= 0]", "made[:, : int((index >= 0).sum())] = values[:, index >= 0]", f"{LINES}::test_lines_are_over_the_users_inputs", LINES),
    # cuts
    m("a clip's sum rounds nothing", _CUTS, "4 * (slopes.shape[1] + 8) * U * size + ", "", CUTS),
    m("a clip's sum rounds once", _CUTS, "4 * (slopes.shape[1] + 8) * U * size", "U * size", CUTS),
    m("a clip rounds by its sum, not its terms", _CUTS, "np.maximum(np.abs(ends[0]), np.abs(ends[1])).sum(1)", "np.abs(least.sum(1))", CUTS),
    m("a clip is rounded inward", _CUTS, "total[:, None] + error)", "total[:, None] - error)", CUTS),
    m("a clip's products never underflow", _CUTS, " + TINY)[:, None]", ")[:, None]", CUTS),
    m("flushes of other inputs move no line", _CUTS, "2 * flush * np.abs(slopes).sum(1) + ", "", CUTS),
    m("a clip gives no slack", _CUTS, "total = constant - slack + least", "total = constant + least", CUTS),
    m("a clip takes slack", _CUTS, "total = constant - slack + least", "total = constant + slack + least", CUTS),
    m("a clip leaves the constant out", _CUTS, "total = constant - slack + least", "total = least", CUTS),
    m("a clip takes lower ends for the least", _CUTS, "least = np.minimum(*ends)", "least = ends[0]", CUTS),
    m("a clip counts an input's own term against it", _CUTS, "reach = (least - total[:, None]", "reach = (0 * least - total[:, None]", CUTS),
    m("falling lines cut the wrong end", _CUTS, "np.isfinite(reach) & (slopes < 0), -reach, -np.inf)", "np.isfinite(reach) & (slopes < 0), reach, -np.inf)", CUTS),
    m("broken lines cut", _CUTS, "np.isfinite(reach) & (slopes", "(slopes", CUTS),
    m("a hull is an intersection", _CUTS, "low, high = np.full((count, lo.shape[1]), np.inf), np.full((count, lo.shape[1]), -np.inf)\n    np.minimum.at(low, at, lo)\n    np.maximum.at(high, at, hi)", "low, high = np.full((count, lo.shape[1]), -np.inf), np.full((count, lo.shape[1]), np.inf)\n    np.maximum.at(low, at, lo)\n    np.minimum.at(high, at, hi)", CUTS),
    m("halves do not share their cut", _CUTS, "low[at, axis], high[at, axis] = cut, cut", "low[at, axis], high[at, axis] = np.nextafter(cut, np.inf), cut", CUTS),
    m("halves have a gap between them", _CUTS, "low[at, axis], high[at, axis] = cut, cut", "low[at, axis], high[at, axis] = cut, 0.5 * (lo[at, axis] + cut)", CUTS),
    m("a middle may lie outside", _CUTS, "np.clip(0.5 * lo + 0.5 * hi, lo, hi)", "0.5 * (lo + hi)", CUTS),
    m("an input without a number between is cut", _CUTS, "np.where(divisible.any(1), np.where(divisible, score, -1.0).argmax(1), -1)", "score.argmax(1)", CUTS),
    # domains
    m("boxes with a settled group are not searched", _DOMAINS, "boxes = np.flatnonzero(held.any(1))", "boxes = np.flatnonzero(held.all(1))", DOMAINS),
    m("settled groups are searched, open ones are not", _DOMAINS, "held = (self.groups >= 0) & ~settled[self.groups]", "held = (self.groups >= 0) & settled[self.groups]", DOMAINS),
    m("a box's last group is forgotten", _DOMAINS, "groups[b, : len(mine)] = mine", "groups[b, : len(mine[1:])] = mine[1:]", DOMAINS),
    m("groups are those of the first box", _DOMAINS, "group = self.groups[domains.root[at], local]", "group = self.groups[0 * at, local]", DOMAINS),
    m("the last form of a group is not asked", _DOMAINS, "sizes = self.first[group + 1] - self.first[group]", "sizes = np.maximum(1, self.first[group + 1] - self.first[group] - 1)", DOMAINS),
    m("forms begin a place late", _DOMAINS, "self.forms[begin + np.arange(int(sizes.sum()))]", "self.forms[np.minimum(begin + 1 + np.arange(int(sizes.sum())), len(self.forms) - 1)]", DOMAINS),
    m("a group's box is that of another form", _DOMAINS, "box = q.image[forms[first[:-1]]]", "box = q.image[:count]", DOMAINS),
    # lines
    m("a line leaves its row's error out", _LINES, "self.rows.error + weight * charged", "weight * charged", LINES),
    m("a line's pending rounding is not paid", _LINES, "self.kit.candidate_error(name, place.height * place.line)", "2.0**-49", LINES),
    m("a line's products never underflow", _LINES, " + self.tables.floor(name)[self.rows.image])", ")", LINES),
    m("a line's coefficients are not weighed", _LINES, "weight * charged", "0 * weight", LINES),
    m("a line is given without its constant", _LINES, "self.rows.constant, slack)", "0 * self.rows.constant, slack)", LINES),
    # slopes and multipliers, and the division by signs
    m("chosen slopes are taken as they are", FUSED, "k = np.float32(0) if k <= 0 else k if k < 1 else np.float32(1)", "k = k", TIGHT),
    m("chosen slopes may exceed one", FUSED, "k = np.float32(0) if k <= 0 else k if k < 1 else np.float32(1)", "k = np.float32(0) if k <= 0 else k", TIGHT),
    m("a decided operator takes a chosen slope", FUSED, "k if (low < 0) & (high > 0) else bb[q]", "k", TIGHT),
    m("chosen slopes leave the chord's cut out", FUSED, "                acc += np.float64(x) * np.float64(cc[q]) if x < 0 else 0.0\n                n = x * (aa[q] if x < 0 else k", "                n = x * (aa[q] if x < 0 else k", TIGHT),
    m("torch's chosen slopes are taken as they are", TORCH, ".nan_to_num(1.0).clamp(own.least, 1.0)", "", CHOSEN_LINES),
    m("torch's chosen slopes may exceed one", TORCH, ".clamp(own.least, 1.0)", ".clamp(min=own.least)", CHOSEN_LINES),
    m("chosen slopes may lie below the operator's own", _CHOSEN, "least = float(round_up(torch.tensor(slope, dtype=torch.float64), m.dtype))", "least = -9.0", TIGHT),
    m("torch's decided operator takes a chosen slope", TORCH, "torch.where((low < 0) & (high > 0), slopes, gather(lines.below, place))", "slopes", CHOSEN_LINES),
    m("chosen slopes leave the operator's error out", TORCH, "            total = total + (x.clamp(min=0).double() * gather(lines.lower_cut, place).double()).sum((1, 2))\n", "            pass\n", TIGHT),
    m("torch's chosen slopes leave the chord's cut out", TORCH, "total = (x.clamp(max=0).double() * gather(lines.upper_cut, place).double()).sum((1, 2))", "total = (0 * x.double()).sum((1, 2))", CHOSEN_LINES),
    m("rows of inner neurons take another part's tables", _TIGHT, "where = image, h, w, channel\n", "where = image * 0, h, w, channel\n", NEURONS),
    m("an upper bound with chosen slopes keeps a tenth", _TIGHT, "high.view(-1)[some], -down)", "high.view(-1)[some], -0.9 * down)", TIGHT),
    m("a lower bound with chosen slopes is the upper one's", _TIGHT, "low.view(-1)[some], up)", "low.view(-1)[some], down)", TIGHT),
    m("a tight bound below zero proves", _TIGHT, "answers.settle(q, rows[best > 0], chosen=True)", "answers.settled[q.group[rows[best > -2000]]] = True", TIGHT),
    m("a multiplier needs no sign", FUSED, "shown = ((v > 0) & (low >= 0)) | ((v < 0) & (high <= 0))", "shown = v == v", TIGHT, NEURONS),
    m("a multiplier takes the other sign", FUSED, "((v > 0) & (low >= 0)) | ((v < 0) & (high <= 0))", "((v > 0) & (high <= 0)) | ((v < 0) & (low >= 0))", TIGHT, NEURONS),
    m("a multiplier is added", FUSED, "n = n - v if shown", "n = n + v if shown", TIGHT, NEURONS),
    m("torch's multiplier needs no sign", TORCH, "shown = ((b > 0) & (low >= 0)) | ((b < 0) & (high <= 0))", "shown = b == b", CHOSEN_LINES),
    m("torch's multiplier is added", TORCH, "out = out - torch.where(shown", "out = out + torch.where(shown", CHOSEN_LINES),
    m("a leaky operator takes multipliers", _CHOSEN, " and slope == 0.0:", ":", TIGHT),
    m("multipliers come where nobody counts them", FUSED, "shown & (yy[q] != 0) & ", "shown & ", TIGHT, CHOSEN_LINES),
    m("torch's multipliers come where nobody counts them", TORCH, "shown & (gather(own.may, place) != 0)", "shown", CHOSEN_LINES),
    m("a cell that only multipliers reach does not count", "runtime/tables.py", "found.append(boxes.signed[user] != 0)", "pass", TIGHT),
    m("parts below zero are dropped", _PARTS, "both = Parts.join(on, off)", "both = Parts.join(on, on)", NEURONS),
    m("parts above zero are dropped", _PARTS, "both = Parts.join(on, off)", "both = Parts.join(off, off)", NEURONS),
    m("an operand below zero is below it by half", _PARTS, "torch.minimum(off.hi[at, neuron], cut)", "torch.minimum(off.hi[at, neuron], cut - 0.5)", NEURONS),
    m("ends that meet leave no execution", _TIGHT, "empty = (low > high)", "empty = (low >= high)", NEURONS),
    m("a refuted form closes its part", _NEURONS, "parts.open[at[closed], column[closed]] = False", "parts.open[at[closed]] = False", NEURONS),
    m("one sign of a neuron is kept twice", _NEURONS, "torch.cat([best, best + len(part)])", "torch.cat([best, best])", NEURONS),
    m("forms are bounded over the first part", _NEURONS, "self.forms.pick(form), image=at.to(e.device))", "self.forms.pick(form), image=at.to(e.device) * 0)", NEURONS),
    m("forms change places within a part", _NEURONS, "form = parts.forms[at, column]", "form = parts.forms[at, column - 1]", NEURONS),
    m("a part's bound just below zero refutes it", _NEURONS, "closed = (best > 0) | empty", "closed = (best > -1e-2) | empty", NEURONS),
    m("a broken-off batch of parts is lost", _NEURONS, "        self.waiting = Parts.join(self.waiting, *(sent.batch for sent in self.sent))\n", "", NEURONS),
    m("parts on their way are lost at the end", _NEURONS, "        finally:\n            self._put_back()\n", "        finally:\n            self.sent.clear()\n", CREW),
    m("parts that wait prove", _FOREST, "proved = np.setdiff1d(np.arange(len(rows)), still)", "proved = np.arange(len(rows))", NEURONS),
    m("a refuted tree proves the first groups", _FOREST, "answers.settled[self.q.group[rows[proved]]] = True", "answers.settled[self.q.group[rows[: len(proved)]]] = True", NEURONS),
    m("the best parts are lost when a batch is taken", _NEURONS, "whole.pick(order[count:])", "whole.pick(order[count + 1 :])", NEURONS),
    # methods to compare with
    m("ibp asks for what is substituted back", "prove/attempt.py", 'if method == "ibp":', 'if method == "none":', METHODS),
    m("DeepPoly bounds no neuron", "prove/methods.py", '("ibp", "crown-ibp")', '("ibp", "crown-ibp", "deeppoly")', METHODS),
    m("other methods take bounds on the way", "prove/decider.py", 'Try(first, "input", tight=deep', 'Try(first, "all", tight=deep', METHODS),
    # sweeps over radii
    m("a proof proves larger balls", "runs/sweep.py", 'verdict == "unsat" and self._height[j] < height', 'verdict == "unsat" and self._height[j] > height', SWEEPS),
    m("a counterexample lies in smaller balls", "runs/sweep.py", 'verdict == "sat" and self._height[j] > height', 'verdict == "sat" and self._height[j] < height', SWEEPS),
    m("an open radius tells of others", "runs/sweep.py", 'verdict == "unsat" and', 'verdict != "sat" and', SWEEPS),
    m("images tell of each other", "runs/sweep.py", 'msgspec.structs.replace(ball, epsilon="")', "ball.label", SWEEPS),
    m("networks tell of each other", "runs/sweep.py", "(query.network, msgspec.structs.replace(ball", '("", msgspec.structs.replace(ball', SWEEPS),
    m("radii are ordered as texts", "runs/sweep.py", "Fraction(queries[k].epsilon or 0)", "str(queries[k].epsilon)", SWEEPS),
    m("a falsified ball keeps a smaller one's margin", "runs/sweep.py", "if proved else (None, [])", "if True else (None, [])", SWEEPS),
    # shared among processes
    m("what a lost helper was at is done", _CREW, "pool.submit(event.job)", "event.job.batch.made[event.job.k] = next(iter(event.job.batch.made.values()), None)", CREW),
    m("a helper's results change places", _CREW, "event.job.batch.made.setdefault(event.job.k, event.answer)", "event.job.batch.made.setdefault(event.job.k, event.job.batch.made.get(event.job.k - 1, event.answer))", CREW),
    m("what is done here counts for the list that is awaited", _CREW, "part.batch.made.setdefault(part.k, self._mine", "batch.made.setdefault(part.k, self._mine", CREW),
    m("a dropped list is received", _CREW, "        self._lists.clear()\n", "", f"{CREW}::test_lists_are_received_as_they_were_sent_and_dropped_ones_never"),
    m("a helper does what another search sent", _CREW, "if self._opened is not part.batch.work:", "if not self._opened:", f"{CREW}::test_a_helper_opens_each_work"),
    m("a new process is believed to be as the old one", _CREW, "self._starts, self._opened = self._starts - 1, b\"\"", "self._starts = self._starts - 1", f"{CREW}::test_items_are_shared_and_a_killed_helper_loses_nothing"),
    m("the last item of a list is left out", _CREW, "for k in range(len(batch.items))]", "for k in range(len(batch.items) - 1)]", CREW),
    m("what a helper refuted has no bound", _NEURONS, "self.refuted = torch.minimum(self.refuted, refuted)", "pass", CREW),
    m("what a helper leaves is proved", _SEARCH, "        for t in told:", "        for t in told[:1]:", CREW),
    # by kernels, whose faults cost bounds and no truth
    m("kernels: multipliers fall below zero", _CLIMB, "tl.where(undecided, slope, tl.maximum(moved, 0.0))", "tl.where(undecided, slope, moved)", f"{CLIMB}::test_free_numbers_stay_where_they_mean_something"),
    m("kernels: slopes leave their range", _CLIMB, "tl.where(undecided, slope, tl.maximum", "tl.where(undecided, moved, tl.maximum", f"{CLIMB}::test_free_numbers_stay_where_they_mean_something"),
    m("kernels: the last numbers are kept, not the best", _CLIMB, "tl.store(kept_ptr + at, free, mask=moves & better)", "tl.store(kept_ptr + at, free, mask=moves)", f"{CLIMB}::test_no_number_is_never_better"),
    m("kernels: rows climb past their goals", _CLIMB, "tl.where(tl.sum(left, 0) > 0, count, 0)", "count", f"{CLIMB}::test_once_every_row_has_reached_its_goal_nothing_moves"),
    m("kernels: the corner is where a row is greatest", _CLIMB, "x = tl.where(m >= 0, lo, hi)", "x = tl.where(m >= 0, hi, lo)", f"{CLIMB}::test_proposals_are_those_of_torch"),
)
