"""Every rule's graphs make the passes fire the rewriting that the rule is about; every rewriting is fired by some graph."""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from polytriton.errors import PolytritonError
from polytriton.frontend.onnx import load_onnx
from polytriton.passes import fold, layout
from polytriton.passes.pipeline import fold_net
from polytriton.passes.rewrite import trace_rules
from tests.oracle.graphs.draw import RULES, draw
from tests.oracle.graphs.smooth_rules import SMOOTH_STAGES

GRAPHS = 16
# what half of a rule's graphs fire at the least; the others are about the import, or about leaving networks alone
FIRES = {
    "scale_after_conv": ("scale after conv",),
    "scale_after_linear": ("scale after linear",),
    "scale_before_linear": ("scale before linear",),
    "scale_before_conv": ("scale before conv",),
    "scale_after_scale": ("scale after scale",),
    "linear_after_linear": ("linear after linear",),
    "gather_permute": ("gather into reader",),
    "gather_padded": ("gather into reader",),
    "gather_repeats": ("gather into reader",),
    "gather_dead": ("gather into reader",),
    "gather_into_linear": ("gather into linear",),
    "gather_into_input": ("gather into input",),
    "gather_through_relu": ("gather behind relu",),
    "gather_through_scale": ("gather into reader", "scale before linear"),
    "gather_behind_scale": ("gather behind scale",),
    "gather_below_sum": ("gather behind a sum",),
    "pad_into_conv": ("pad into conv",),
    "slice_to_conv": ("slice to conv",),
    "pad_add_matmul": ("scale before linear", "gather into reader"),
    "pad_add_conv": ("scale before conv",),
    "pad_batchnorm_conv": ("scale before conv",),
    "constants_before": ("scale before linear",),
    "constants_after": ("scale before linear",),
    "constants_both": ("scale before linear",),
    "concat_add_matmul": ("scale before linear",),
    "expand_mul_matmul": ("gather into reader", "scale before linear"),
    "tile_mul_matmul": ("gather into reader", "scale before linear"),
}


@cache
def fired(rule: str) -> tuple[int, Counter[str]]:
    """How many graphs were accepted, and how many of them fired each rewriting."""
    count, found = 0, Counter[str]()
    for seed in range(GRAPHS):
        try:
            with trace_rules() as heard:
                fold_net(load_onnx(draw(rule, seed).proto).net)
        except PolytritonError:
            continue
        count += 1
        found.update(set(heard))
    return count, found


@pytest.mark.thinned(3)
@pytest.mark.parametrize("rule", FIRES)
def test_a_rules_graphs_fire_its_rewriting(rule: str) -> None:
    assert rule in RULES
    count, found = fired(rule)
    assert count >= 0.9 * GRAPHS, "few are refused"
    for name in FIRES[rule]:
        assert found[name] >= count / 2 - 1, f"{name}: {found[name]} of {count}"


def test_every_rewriting_is_fired_by_some_graph() -> None:
    source = "".join(Path(m.__file__).read_text() for m in (fold, layout))
    names = set(re.findall(r'return f?"([a-z .{}]+)", ', source)) | set(re.findall(r'rewrite\("([a-z ]+)"', source))
    names -= {"idle gather"}  # what two other rewritings left, seldom; it moves and counts nothing
    patterns = [re.compile(re.sub(r"\{[^}]*\}", r"\\w+", n)) for n in names]
    assert len(patterns) >= 13, "the names are read from the passes"
    silent = {p.pattern for p in patterns}
    for rule in sorted(set(RULES) - set(SMOOTH_STAGES), key=lambda r: (r not in FIRES, r)):  # first those that the tests above draw anyway
        heard = fired(rule)[1] if silent else ()
        silent -= {p.pattern for p in patterns if any(p.fullmatch(h) for h in heard)}
    assert not silent, f"no graph fires {silent}"
