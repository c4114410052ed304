# ruff: noqa: E501  one row a mutant
"""Faults in reachable sets: pieces that do not cover the box, bounds that are not a piece's, membership that rounds."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, m

PROVE, RESULT, CUTS = "prove/reach.py", "results/reach.py", "prove/cuts.py"
TESTS = "tests/prove/test_reach.py"
IMAGES, RATIONAL, BEND = f"{TESTS}::test_exact_images_of_tiny_networks_stay_inside", f"{TESTS}::test_membership_is_decided_in_rationals", f"{TESTS}::test_one_cut_makes_a_bend_exact"

REACH: tuple[Mutant, ...] = (
    m("reach: a half is lost", PROVE, "parts = parts.drop(wanted).join(measure(low, high, np.tile(parts.least[wanted], (2, 1))))", "parts = parts.drop(wanted).join(measure(*(v[: len(wanted)] for v in (low, high)), parts.least[wanted]))", IMAGES),
    m("reach: others' bounds hold of halves", PROVE, "np.tile(parts.least[wanted], (2, 1))", "np.tile(np.roll(parts.least[wanted], 1, 1), (2, 1))", IMAGES),
    m("reach: a part's bounds are another's", PROVE, "_Parts(*(np.delete(v, parts, axis=0) for v in vars(self).values()))", "_Parts(*(np.delete(v, parts, axis=0) if v is not self.least else self.least[: len(v) - len(parts)] for v in vars(self).values()))", IMAGES),
    m("reach: a property's first box alone", PROVE, "np.stack(side) for side in zip(*ends.values(), strict=True)", "np.stack(side[:1]) for side in zip(*ends.values(), strict=True)", f"{TESTS}::test_a_property_gives_its_boxes"),
    m("reach: the box of one piece", RESULT, "return np.asarray(self.least[:, : self.outputs].min(0))", "return np.asarray(self.least[:, : self.outputs].max(0))", f"{TESTS}::test_pieces_close_in_on_the_exact_image"),
    m("reach: membership rounds", RESULT, "held[:, row] = [b == -math.inf or (b < math.inf and exact >= Fraction(b)) for b in self.least[:, row].tolist()]", "held[:, row] = True", RATIONAL),
    m("reach: pieces are taken together", RESULT, "return bool(held.all(1).any())", "return bool(held.any(0).all())", BEND),
    m("reach: all rows bound a plane", RESULT, "rows = np.flatnonzero(~self.directions[:, rest].any(1))", "rows = np.flatnonzero(self.directions[:, mine].any(1))", f"{TESTS}::test_a_plane_is_drawn_by_its_own_rows"),
)  # fmt: skip
