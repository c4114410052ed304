# ruff: noqa: E501  one row a mutant
"""Faults in recipes: in the lines, in the loops that they name, in where tables lie; and in sides that a tape plays."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

LOOP, RECORD, RECIPE = "runtime/cpu/recipe_loop.py", "runtime/cpu/recipe_record.py", "runtime/cpu/recipe.py"
PLAY, SIDES, SCALARS, CELLS, AFFINE, VECTORS = "runtime/cpu/play_loop.py", "runtime/cpu/sides.py", "runtime/cpu/scalars.py", "runtime/cpu/cells.py", "runtime/cpu/affine_cells.py", "runtime/cpu/vectors.py"
MADE, PLAYED, ALIKE = "tests/runtime/test_recipe.py", "tests/runtime/test_tapes.py", "tests/runtime/test_affine_cells.py"
BEGUN = "tests/runtime/test_scalars.py::test_forms_begin_as_the_tensor_form_says"
KEPT = "tests/runtime/test_sides.py"
SAME = "tests/runtime/test_relaxations.py::test_compiled_sizes_and_centres_are_the_tensor_forms"

RECIPES: tuple[Mutant, ...] = (
    m("recipes: products are not rounded up", LOOP, "out[j] = out[j] * GROW", "pass", MADE),
    m("recipes: products without a bias", LOOP, "oo[j] = oo[j] + bias[j]", "pass", MADE),
    m("recipes: a layer's underflow is its own values'", LOOP, "g[0] * (own[b] + g[1] * below[b] if f[3] != 0 else own[b]) * GROW", "g[0] * own[b] * GROW", MADE),
    m("recipes: floors are not rounded up", LOOP, "if f[3] != 0 else own[b]) * GROW", "if f[3] != 0 else own[b])", MADE),
    m("recipes: the deployed error is none", LOOP, "if f[5] == 0:  # exact arithmetic", "if True:", MADE),
    m("recipes: outputs that no row reads are left out", LOOP, "                    live[j] = True\n", "                    live[j] = False\n", MADE, argued="a product passes the most roundings where nothing is left out, or where what is live has moved up: with no live output only the first counts, and with all live both are the same"),
    m("recipes: boxes of the first image alone", RECORD, "self.put([loop.BOUND, Each(n), centre", "self.put([loop.BOUND, n, centre", MADE),
    m("recipes: the first t pays for a ReLU's product", RECORD, 'pending = 0.0 if first else self.kit.pending.get(name, 0.0)', "pending = self.kit.pending.get(name, 0.0)", MADE),
    m("recipes: no t pays for a ReLU's product", RECORD, 'pending = 0.0 if first else self.kit.pending.get(name, 0.0)', "pending = 0.0", MADE),
    m("recipes: centres reach as far as magnitudes", RECORD, 'entries, below = self.table("entries", name), self.table("reaches", name, 1)', 'below = self.table("reaches", name, 1)', MADE),
    m("recipes: subnormal weights meet the operand's sum around a centre", RECORD, 'self.put([loop.SIZES, Each(k), reach, reach, self.table("mid", source), below, Each(1)])', "pass", MADE),
    m("recipes: a centre's reach is that of its outputs", RECORD, 'if what in ("point", "reach") else node)', 'if what in ("point",) else node)', MADE),
    m("recipes: lines of a ReLU over its own box", RECORD, 'self.put([loop.LINES, Each(n), self.table("lo", source), self.table("hi", source), *out])', 'self.put([loop.LINES, Each(n), lo, hi, *out])', MADE),
    m("recipes: halves share a memory that both need", RECORD, 'PASSING = ("mid",', 'PASSING = ("lo", "mid",', MADE),
    m("recipes: what comes before a node is bounded as the interval pass left it", RECORD, "made = self.finish(before) | self.transfer(node)", "made = self.transfer(node) | self.finish(before)", MADE),
    m("recipes: tables of a batch's programs lie where the first batch's lay", RECIPE, "code=self._code[first:last], places", "code=tape.code, places", MADE),
    m("recipes: the input's box is the last one's", RECIPE, 'self.maker.table(name, "lo").copy_(start.lo[name])', 'self.maker.table(name, "lo")', MADE),
    m("recipes: tables are there before they are made", RECIPE, "return (what, name) in self.made", "return (what, name) in self.recipe.places", MADE),
    m("recipes: layers that leave cells out have them too", RECORD, "and not kit.is_large(name)", "", MADE),
    m("recipes: layers that flush operands have them too", RECORD, " and not lost\n", "\n", MADE),
    m("recipes: tapes that read what no line makes", RECORD, "        if not read <= known.keys():\n            return None\n        keys = {known[place] for place in read}", "        keys = {known[place] for place in read & known.keys()}", MADE),
    m("recipes: bounds that are known are a copy's", "runtime/engine.py", "torch.maximum(boxes.lo[name], lo, out=boxes.lo[name])", "boxes.lo[name] = torch.maximum(boxes.lo[name], lo)", MADE),
    m("recipes: memory is lent again while others read it", RECIPE, "weakref.finalize(lent, self._free.append, whole).atexit = False", "self._free.append(whole)", MADE),
    m("recipes: memory is lent that is too small", RECIPE, "not count <= len(whole) <= 2 * count", "not len(whole) <= 2 * count", MADE),
    m("small products: the last terms are left out", VECTORS, "for k in range(whole, terms):", "for k in range(whole, whole):", MADE),
    m("small products: two rows are the first", VECTORS, "x[s * terms : (s + 1) * terms]", "x[r * terms : (r + 1) * terms]", MADE),
    m("deployed errors: summands that are zero round", AFFINE, "if operand[i] > 0:\n", "if operand[i] >= 0:\n", ALIKE),
    m("deployed errors: summands of the first image", AFFINE, "for i in range(b * each, (b + 1) * each):\n            if", "for i in range(each):\n            if", ALIKE),
    m("deployed errors: a given count is not heeded", AFFINE, "(present if summands < 0 else summands)", "present", ALIKE),
    m("deployed errors: NaN is no operand", AFFINE, " or operand[i] != operand[i]:", ":", ALIKE),
    m("deployed errors: flushed operands cost nothing", AFFINE, "+ 2 * lost + converted", "+ converted", ALIKE),
    m("deployed errors: conversions flush nothing", AFFINE, "+ 2 * lost + converted", "+ 2 * lost", ALIKE),
    m("deployed errors: merged biases are exact", AFFINE, "behind = factor if c[MERGED] > 0 else g", "behind = g", ALIKE),
    m("deployed errors: conversions hold any number", AFFINE, "largest <= BIG and largest <= c[LIMIT]", "largest <= BIG", ALIKE),
    m("deployed errors: sums may overflow", AFFINE, "if tame and mm[j] + babs[j] <= BIG else np.inf", "if tame else np.inf", ALIKE),
    m("deployed errors: a sum may be of any length", AFFINE, "g = x / (1 - x) * GROW if x < 0.5 else np.inf", "g = x / (1 - x) * GROW", ALIKE, argued="a layer has fewer than half a million terms (WIDEST), which roundings of 2^-22 at most do not bring to one half; the condition keeps the formula's domain"),
    m("sizes: the lower end's", CELLS, "sizes[i] = low if low >= high or low != low else high", "sizes[i] = low", SAME),
    m("sizes: NaN is a number", CELLS, "sizes[i] = low if low >= high or low != low else high", "sizes[i] = low if low >= high else high", SAME),
    m("sizes: sums of all images", CELLS, "        total = 0.0\n        for i in range(b * each", "        for i in range(b * each", SAME, MADE),
    m("centres in the loop: subnormal points", CELLS, "if not least <= abs(middle) < np.inf:", "if not abs(middle) < np.inf:", SAME),
    m("centres in the loop: no point at all", CELLS, "if not least <= abs(middle) < np.inf:", "if not least <= abs(middle):", SAME),
    m("forms: what their coefficients are off costs nothing", CELLS, "total += (apart * biggest[j] if apart > 0 else 0.0) + abs(exact) * flush", "total += abs(exact) * flush", BEGUN),
    m("forms: a flushed output costs nothing", CELLS, "total += (apart * biggest[j] if apart > 0 else 0.0) + abs(exact) * flush", "total += apart * biggest[j] if apart > 0 else 0.0", BEGUN),
    m("forms: outputs of the first image", CELLS, "largest[image[row] * n : (image[row] + 1) * n]", "largest[:n]", BEGUN),
    m("forms: constants are added", CELLS, "constant[r] = 0.0 - subtracted[row]", "constant[r] = subtracted[row]", BEGUN),
    m("recipes: a table is read before it is made", "runtime/cpu/recipe_record.py", "places[name] >= places[target]", "False and places[name]", "tests/runtime/test_recipe.py::test_a_node_that_reads_its_own_tables_has_no_recipe"),
    m("sides: rows of both ends bound the wrong side", PLAY, "known[1 - own, k] = other[r]", "known[own, k] = other[r]", KEPT, PLAYED),
    m("sides: the other end takes the place of better bounds", PLAY, "is_kept(other[r], known[1 - own, k], True)", "is_kept(other[r], known[1 - own, k], False)", KEPT, PLAYED),
    m("sides: bounds at the end take the place of no others", SCALARS, "not (best and found <= known)", "not found <= known", KEPT, PLAYED),
    m("sides: infinite bounds count", SCALARS, "abs(found) < np.inf and", "", KEPT, PLAYED),
    m("sides: neurons that are off get no row though their other side is read", SIDES, "rest = OPEN if asked.leaves or asked.ends else RUNNING if asked.hides else ALL", "rest = OPEN", KEPT, PLAYED),
    m("sides: parts are of the first neurons", SIDES, "np.array([part.first, ", "np.array([0, ", KEPT),
    m("sides: nobody looks at the clock between parts", SIDES, "if pieces > len(cuts):", "if False:", KEPT),
    m("sides: rows of the other side begin with the bounds of this one", PLAY, "            best[:n], raw_best[:n], other[:n], raw_other[:n] = -np.inf, -np.inf, -np.inf, -np.inf\n", "            if side == 0:\n                best[:n], raw_best[:n], other[:n], raw_other[:n] = -np.inf, -np.inf, -np.inf, -np.inf\n", KEPT),
    m("sides: neurons that left have no row of the other side", PLAY, "            done[:] = False\n", "            if side == 0:\n                done[:] = False\n", KEPT),
    m("sides: rows of the other side are read from both ends", PLAY, "if side == 1 or asked[ENDS] == 0:", "if asked[ENDS] == 0:", KEPT, argued="what such a row's other end says of its neuron holds too; it is only dearer"),
    m("sides: neurons of one column", PLAY, "places[2, k], places[3, k]", "places[2, k], places[2, k]", KEPT, PLAYED),
    m("sides: the likelier side goes last", PLAY, "1 if known[0, k] >= known[1, k] or not by_sign else -1", "1", KEPT, PLAYED),
    m("sides: rows stay though they are settled", SIDES, "if asked.leaves else (NONE, NOBODY)", "if False else (NONE, NOBODY)", PLAYED),
    m("sides: what is above is written below", CELLS, "lo[at[k]], hi[at[k]] = bounds[0, k], -bounds[1, k]", "lo[at[k]], hi[at[k]] = bounds[0, k], bounds[1, k]", PLAYED),
    m("sides: rows of every image leave out what is off in the first", SIDES, "only = image if image == self.places[1, b - 1] else None", "only = 0", KEPT),
    m("sides: rows of several images leave out what is off in one", SIDES, "only = image if image == self.places[1, b - 1] else None", "only = image", KEPT),
    m("sides: images are cut where none has many rows", SIDES, "between_images(torch.from_numpy(self.places[1])) if self.tables", "[] if self.tables", KEPT),
)  # fmt: skip
