# ruff: noqa: E501  one row a mutant
"""Faults in tapes: in what is written down of a program's steps, in the loop that plays it, in what is kept of the rows."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

RECORD, CODE, LOOP, PLAY = "runtime/cpu/tape_record.py", "runtime/cpu/tape_code.py", "runtime/cpu/tape_loop.py", "runtime/cpu/play_loop.py"
PLAYER, PLAYED = "runtime/cpu/tape_player.py", "tests/runtime/test_tapes.py"
JOINED = f"{PLAYED}::test_windows_join_where_each_rows_lie"

TAPES: tuple[Mutant, ...] = (
    m("tapes: a candidate is charged for nothing", RECORD, "charges.append(self.kit.candidate_error(name, terms))", "charges.append(0.0)", PLAYED),
    m("tapes: candidates add without rounding", RECORD, "[addition_error(len(entries))]", "[0.0]", PLAYED),
    m("tapes: products are not paid for", RECORD, 'if held.narrow is None and step.pays("product"):', "if False:", PLAYED),
    m("tapes: a convolution's product is not paid for", RECORD, 'held = self._take(node.name)\n        if step.pays("product"):', "held = self._take(node.name)\n        if False:", PLAYED),
    m("tapes: a neuron is charged for nothing", RECORD, "self._charge_neuron(name, held.factor)\n            return", "return", PLAYED),
    m("tapes: pending products of a ReLU", RECORD, 'if step.pays("relu"):\n            self._weigh(node.name', "if False:\n            self._weigh(node.name", PLAYED),
    m("tapes: pending products at merges", RECORD, 'if step.pays("relu"):\n                self._weigh(name, part', "if False:\n                self._weigh(name, part", PLAYED),
    m("tapes: merges add for nothing", RECORD, 'if step.pays("sum"):', "if False:", PLAYED),
    m("tapes: the value at the centre is not owed", RECORD, "held = TapeEntry(held.slot, held.window, held.narrow, owes)", "pass", PLAYED),
    m("tapes: what waits owes its centre later", RECORD, "if found is not None and waits:", "if False:", PLAYED),
    m("tapes: a candidate pays and the ReLU pays again", RECORD, "            self.frontier[name] = TapeEntry(held.slot, held.window, held.narrow, factor=held.factor)\n", "", PLAYED),
    m("windows may reach past those that hold them", "passes/windows.py", "return found if min(found) >= 0 else None", "return found", PLAYED),
    m("tapes: cells off an image are left", RECORD, "if step.mask:", "if False:", PLAYED),
    m("tapes: both sides of a difference keep their sign", RECORD, "self._add(step, -1.0)", "self._add(step, 1.0)", PLAYED),
    m("tapes: a slot that two entries share is written over", RECORD, "and self.code.uses[part.slot] == 1", "", PLAYED),
    m("tapes: a slot is free while another entry has it", CODE, "        if self.uses[slot]:\n            return\n", "", PLAYED),
    m("tapes: rows that stay are read where they lay", LOOP, "(stay[r] if moved else r) * size", "r * size", PLAYED),
    m("tapes: rows that stay keep the places of others", LOOP, "image[r], h[r], w[r], index[r], constant[r], error[r] = image[s], h[s], w[s], index[s], constant[s], error[s]", "index[r], constant[r], error[r] = index[s], constant[s], error[s]", PLAYED),
    m("tapes: rows later on stand where the first ones do", PLAY, "b - a, whole[k], scalars[k],", "b - a, whole[0], scalars[k],", PLAYED),
    m("tapes: rows later on gather what the first ones did", PLAY, "b - a, whole[k], scalars[k],", "b - a, whole[k], scalars[0],", PLAYED),
    m("tapes: the last rows are not played", PLAY, "for k in range(len(whole)):", "for k in range(max(1, len(whole) - 1)):", PLAYED),
    m("tapes: single neurons are written out with the sign they came with", LOOP, "to[channel[r]] = np.float32(sign[r] * factor)", "to[channel[r]] = np.float32(sign[r])", PLAYED),
    m("tapes: rows that leave are other neurons", LOOP, "excess[r], channel[r], sign[r] = excess[s], channel[s], sign[s]", "excess[r] = excess[s]", PLAYED),
    m("tapes: a candidate takes a neuron's place", RECORD, "            if held.slot == NEURON:\n                self.code.drop(m)\n            self.frontier[name] = TapeEntry(held.slot,", "            self.frontier[name] = TapeEntry(m,", PLAYED),
    m("tapes: a neuron that is taken away is added behind a check", RECORD, "held.narrow, factor=held.factor)\n", "held.narrow)\n", PLAYED),
    m("tapes: windows join where the first row's do", LOOP, "t, a = top + h[r] * down, left + w[r] * across", "t, a = top, left", JOINED, PLAYED),
    m("tapes: windows move as far across as down", RECORD, "down, across * channels\n", "across, down * channels\n", PLAYED),
    m("tapes: cells off the image come back on the next line", LOOP, "count = max(0, min(line, width - a) - first)", "count = line - first", JOINED),
    m("tapes: lines off the image come back on another", LOOP, "range(max(0, -t), min(height, outer - t))", "range(0, min(height, outer - t))", JOINED),
    m("tapes: rows whose coefficients are read later give their place", PLAYER, "some = count_played(tape, rows) if last else rows", "some = count_played(tape, rows)", PLAYED),
    m("tapes: rows later on begin with the first ones' coefficients", PLAY, "source[a * sizes[s] + q]", "source[q]", PLAYED),
    m("tapes: an entry that waits keeps rows that left", LOOP, "if (f[REST + 2] >> s) & 1:", "if False:", PLAYED),
    m("tapes: the other entries' weights are not charged", LOOP, "slack[r] = slack[r] + weight[r] * g[j] + floor[image[r]]", "slack[r] = slack[r] + floor[image[r]]", PLAYED),
    m("tapes: the ReLU's intercepts are not paid", LOOP, "pay_rows(constant[:n], error[:n], total, none, none, g[0], 1.0, image[:n])\n                if ends:\n                    exceed_rows(excess[:n], total, -g[0] * g[0])\n                pay_rows(", "pay_rows(", PLAYED),
    m("tapes: an affine node's error is not paid", LOOP, "pay_rows(constant[:n], error[:n], con, err, doubles(f[REST + 6], FAR), 1.0, g[0], image[:n])", "pay_rows(constant[:n], error[:n], con, none, doubles(f[REST + 6], FAR), 1.0, g[0], image[:n])", PLAYED),
    m("tapes: underflow of an affine node is not paid", LOOP, "con, err, doubles(f[REST + 2], FAR)", "con, err, none", PLAYED),
    m("tapes: columns that are left out keep old numbers", LOOP, "        out[r * size : (r + 1) * size] = 0\n", "", PLAYED),
    m("tapes: rows of slopes of their own are played", PLAYER, "or self.chosen is not None or self.extra is not None", "or self.extra is not None", "tests/prove/test_tight.py", "tests/prove/test_neurons.py"),
    m("tapes: relations over the input are forgotten", PLAYER, "or self.chosen is not None or self.extra is not None", "or self.chosen is not None", "tests/soundness/test_gaps.py", "tests/prove/test_search.py"),
    m("tapes that go on as another: entries lie where they lay there", CODE, "slots[loop.TAPS], slots[rest.slot] = loop.TAPS, slot", "slots[loop.TAPS] = loop.TAPS", PLAYED),
    m("tapes that go on as another: the memory is not moved", CODE, "mine, others = max(0, -apart), max(0, apart)", "mine, others = 0, 0", PLAYED),
    m("tapes that go on as another: slots keep their numbers", CODE, "code[:, field] = slots[code[:, field]]", "pass", PLAYED),
    m("tapes that go on as another: slots for columns keep their numbers", CODE, "code[some, field] = slots[code[some, field]]", "pass", PLAYED),
    m("tapes that go on as another: other slots' rows stay", CODE, "sum(1 << int(to) for s, to in enumerate(slots) if live >> s & 1)", "live", PLAYED),
    m("tapes that go on as another: rows are told of another check", CODE, "+= tape.checks - rest.checks", "+= 0", PLAYED),
    m("tapes that go on as another: whatever is owed", RECORD, "held.narrow is not None, owes\n", "held.narrow is not None, 0\n", PLAYED),
    m("tapes that go on as another: whatever cells there are", RECORD, "held.narrow is not None, owes\n", "False, owes\n", PLAYED),
    m("tapes that go on as another: whatever the image", RECORD, "self.kit.endings(self.program)[k], self.image,", "self.kit.endings(self.program)[k], 0,", PLAYED),
    m("tapes that go on as another: full ones, behind which nothing is", RECORD, "if ending.steps < tape.steps and not early:", "if not early:", PLAYED),
    m("tapes that go on as another: whatever steps are behind the next", "runtime/kit.py", "setdefault((step, found[-1])", "setdefault((step, 0)", PLAYED),
    m("tapes: balls of inputs are forgotten", PLAYER, "self.tables.boxes.ball is not None or", "", "tests/soundness/test_balls.py"),
)  # fmt: skip
