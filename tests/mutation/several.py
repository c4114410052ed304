# ruff: noqa: E501  one row a mutant
"""Faults where several networks become one: what their inputs are, what is judged, and which files run."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

TIES, JOINT, JOINED, ALL = "frontend/ties.py", "frontend/joint.py", "frontend/onnx_joined.py", "several.py"
SET, SOUND, API = "tests/frontend/test_ties.py", "tests/soundness/test_several.py", "tests/api/test_several.py"
WRITTEN, JUDGED, MISTAKES = (
    f"{SET}::test_the_set_is_the_written_one",
    f"{SET}::test_the_point_judged_is_what_the_networks_get",
    f"{API}::test_mistakes_are_told",
)
EXTREMES, TIED, JOINING = (
    f"{SOUND}::test_verdicts_on_both_sides_of_the_exact_extreme",
    f"{SOUND}::test_no_pair_of_tied_inputs_leaves_the_bounds",
    f"{API}::test_joining_is_refused_with_a_reason",
)

APART = f"{SET}::test_ties_that_no_input_meets_are_refused"
ONCE = f"{API}::test_networks_are_joined_once"

SEVERAL: tuple[Mutant, ...] = (
    m("ties: whatever has a bound of its difference is equal", TIES, "if lo == hi == 0]", "if lo == 0 or hi == 0]", WRITTEN),
    m("ties: differences of any one value are equalities", TIES, "if lo == hi == 0]", "if lo == hi and lo is not None]", WRITTEN),
    m("ties: a difference is bounded from the wrong side", TIES, "return (None, const / c) if c > 0 else (const / c, None)", "return (None, const / c) if c < 0 else (const / c, None)", WRITTEN),
    m("ties: differences keep their sign when their ends change places", TIES, "(None if hi is None else -hi, None if lo is None else -lo)", "(lo, hi)", WRITTEN, SET),
    m("ties: a difference is narrower than boxes allow", TIES, "None if a[1] is None or b[0] is None else a[1] - b[0],", "None if a[1] is None or b[1] is None else a[1] - b[1],", WRITTEN),
    m("ties: sums of sums", TIES, "if parent[a] < 0 and parent[b] < 0 and lo is not None", "if parent[b] < 0 and lo is not None", f"{SET}::test_a_sum_is_of_an_input_that_is_none"),
    m("ties: a variable is added to two others", TIES, "if parent[a] < 0 and parent[b] < 0 and lo is not None", "if parent[a] < 0 and lo is not None", WRITTEN, SET),
    m("ties: inputs of one network too", TIES, "if i < 0 or a != -b or network[i] == network[j]:", "if i < 0 or a != -b:", f"{SET}::test_inputs_of_one_network_are_not_tied"),
    m("ties: any two inputs are a difference", TIES, "if i < 0 or a != -b or", "if i < 0 or", WRITTEN),
    m("ties: a sum stands for its difference alone", TIES, "for code in (made, parents[made]) if k >= 0 and parents[made] >= 0 else (made,):", "for code in (made,):", WRITTEN),
    m("ties: coefficients of one variable do not add up", TIES, "terms[code] = terms.get(code, Fraction(0)) + c", "terms[code] = c", WRITTEN),
    m("ties: bounds of sums are dropped", TIES, "    return None not in ends and c * sum(v for v in ends if v is not None) <= leaf.const", "    return True", WRITTEN),
    m("ties: a tighter bound is dropped for a looser one", TIES, "c * tightest < leaf.const", "c * tightest <= leaf.const", WRITTEN, SET),
    m("ties: strict bounds follow", TIES, "if more or k < 0 or leaf.strict:", "if more or k < 0:", f"{SET}::test_a_strict_bound_of_a_sum_stays"),
    m("ties: disjunctions are conjunctions", TIES, 'lambda kids: Junction("or", kids), lambda', 'lambda kids: Junction("and", kids), lambda', WRITTEN),
    m("ties: inputs that none meets are asked about", TIES, "and (lo > hi or left_out):", "and left_out:", APART),
    m("ties: ends that are left out meet", TIES, "and (lo > hi or left_out):", "and lo > hi:", APART),
    m("ties: what boxes leave of a tie is not looked at", TIES, "        _require_some(*_meet(tie, _minus(stated[b], stated[a])),", "        _require_some(*tie,", APART),
    m("ties: whatever touches is left out", TIES, "            ends += [(i, j, interval)] if leaf.strict else []\n", "            ends.append((i, j, interval))\n", WRITTEN),
    m("ties: the networks get no sums", TIES, "np.asarray((base + z)[self.variable]", "np.asarray(z[self.variable]", JUDGED, EXTREMES),
    m("ties: what is judged is z", TIES, "tuple(v if p < 0 else v - own[p] for", "tuple(v for", WRITTEN, JUDGED),
    m("ties: the map adds nothing", TIES, "    made[child, self.parent[child]] = 1.0\n", "", TIED, EXTREMES),
    m("joint: judged before rounding", JOINT, "given = self.ties.values(z, self.dtype)", 'given = self.ties.values(z, "float64")', JUDGED, SET),
    m("joint: printed before rounding", JOINT, 'dtype = self.dtype if self.violated(z, outputs) is not None else "float64"', 'dtype = "float64"', API),
    m("joint: every network's outputs are the first's", JOINT, "to + prod(n.output.shape)\n        return made", "to\n        return made", JUDGED, API),
    m("joint: networks that are equal are given too", JOINT, "if n.like[0] != EQUAL]", "]", f"{SET}::test_an_equal_network_is_not_given"),
    m("joint: isomorphic is anything", JOINT, "if kind == ISOMORPHIC and structure(n.name) != structure(other):", "if False:", MISTAKES),
    m("joint: any shape fits", JOINT, "if prod(declared) != prod(own) or", "if False or", f"{SET}::test_networks_that_do_not_fit"),
    m("joint: any type fits", JOINT, 'if tensor.dtype.lower() not in ("real", source.input_dtype):', "if False:", f"{SET}::test_networks_that_do_not_fit"),
    m("joint: types are mixed", JOINT, "if len(dtypes) > 1:", "if False:", f"{SET}::test_types_differ"),
    m("parser: elements of all networks are numbered from 0", "frontend/vnnlib_parse.py", "d.first = doc.n_in if d.role == \"input\" else doc.n_out", "d.first = 0", WRITTEN),
    m("parser: what is alike is declared anyhow", "frontend/vnnlib_parse.py", "        self.check_like(made)\n", "", f"{SET}::test_refusals_name_the_trouble"),
    m("parser: one network of several is enough", "frontend/vnnlib.py", "if len(doc.networks) > 1:", "if False:", f"{SET}::test_one_network_is_not_enough"),
    m("joined: tensors keep their names", JOINED, "        node.output[:] = [prefix + t if t else \"\" for t in node.output]\n", "", SOUND, API),
    m("joined: every network reads the first inputs", JOINED, '_constant(f"part{k}", part)', '_constant(f"part{k}", np.arange(len(part)))', TIED, EXTREMES),
    m("joined: opsets may differ", JOINED, "if len({value for _, value in found}) > 1:", "if False:", JOINING),
    m("several: a counterexample is run on the first file alone", ALL, "run(x) for run, x in zip(replays, given, strict=True)", "replays[0](x) for x in given", f"{API}::test_two_files", SOUND),
    m("several: networks behind maps are joined as if they were not", ALL, 'if verifier.joint is not None or any(n.integer("outside") for n in verifier.net):', "if False:", JOINING),
    m("several: any semantics will do", ALL, "if any(name.split(\",\")[0] != base for name in names) or", "if", JOINING),
    m("several: one function's errors are the last network's", ALL, "or any(errors[function] != ulps for function, ulps in stated)", "", f"{API}::test_smooth_functions_state_their_errors"),
    m("several: maps are exact", ALL, "given.rounded = any(m.rounded for m in maps)", "pass", f"{API}::test_maps_that_round_are_known_to"),
    m("several: joined networks are found whatever is added to their inputs", ALL, "        if self.given is None:\n            return sha256", "        if True:\n            return sha256", ONCE),
    m("several: what adds to inputs has a shape alone", ALL, ".encode() + a.tobytes() + b.tobytes()", ".encode()", ONCE),
    m("several: joined networks are kept under the first file's name", ALL, "cached_joined(joined.sha256(), ", "cached_joined(models[0].source.sha256, ", ONCE),
    m("verify: certificates of several networks", "commands/verify.py", "        if several:\n            raise UnsupportedProperty(", "        if False:\n            raise UnsupportedProperty(", MISTAKES),
)  # fmt: skip
