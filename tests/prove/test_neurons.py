"""The search by signs of neurons, held against exact minima of small networks, and against executions that take the assumed signs.

The networks are read and minimised by `piecewise.py`, which knows nothing of the verifier.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from polytriton.ir.net import Net, Node
from polytriton.prove import neurons
from polytriton.prove.attempt import Answers
from polytriton.prove.forest import Forest
from polytriton.prove.neurons import NeuronSearch
from polytriton.prove.parts import Parts
from polytriton.prove.questions import Questions, questions
from polytriton.results import SearchStats
from polytriton.runtime import settings
from polytriton.runtime.ascent import Ascent, AscentRows
from polytriton.runtime.ascent_lines import Found
from polytriton.runtime.chain import ChainAscent
from polytriton.runtime.chosen import Chosen
from polytriton.runtime.forward import Boxes
from polytriton.runtime.results import Stopped
from tests.oracle.exact import attack_points, exact, exact_forms, float32_points, float32_runs
from tests.oracle.nets import random_box, random_net
from tests.oracle.small import dense
from tests.prove.audited import cube, lowered, over, spread
from tests.prove.piecewise import Small, drawn, uneven
from tests.prove.test_tight import asked as tight_of
from tests.prove.test_tight import hostile
from tests.prove.watched import asked, compiled


def fresh(q: Questions) -> Answers:
    return Answers(np.full(len(q.image), -np.inf), np.full(len(q.image), -np.inf), np.zeros(int(q.group.max()) + 1, dtype=bool))


def searched(
    net: Small, forms: tuple[object, ...], box: tuple[object, object], seconds: float, semantics: str = "real"
) -> tuple[SearchStats, Answers]:
    verifier = compiled(net, semantics)
    q = questions(asked([box], [(0, forms)], net.outputs))  # type: ignore[list-item]
    assert q is not None
    answers = fresh(q)
    return Forest(verifier._decider, q, answers, time.monotonic() + seconds, lambda *_: None).run(), answers


def ends_after(rounds: int) -> Callable[[str, int, int], None]:
    """Ends a search as the clock would, but by its rounds: a busy machine makes no less of them."""
    left = [rounds]

    def progress(stage: str, done: int, total: int) -> None:
        left[0] -= stage.startswith("search")
        if left[0] < 0:
            raise Stopped

    return progress


@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 2 else pytest.mark.slow) for s in range(10)])
def test_thresholds_at_the_exact_minimum_and_next_to_it(seed: int) -> None:
    """Never proved where the minimum is reached; proved well below it, which needs neurons divided for some."""
    rng = np.random.default_rng(seed)
    inputs = 1 + seed % 3
    net = (drawn if seed % 2 else uneven)(rng, inputs, [[6, 5], [4, 3], [3]][inputs - 1])
    box, forms = cube(inputs), [over(net, 1.0)]
    for gap in (Fraction(0), Fraction(-1, 10**9), -spread(net, forms, box) / 8):
        group, _ = lowered(net, forms, box, gap)
        said, answers = searched(net, group, box, 1.0)
        assert not answers.settled.any()
        assert said.open >= 1 and said.share < 1
    group, _ = lowered(net, forms, box, max(spread(net, forms, box) / 4, Fraction(1, 100)))
    said, answers = searched(net, group, box, 10.0)
    if answers.settled.all():
        assert said.open == 0 and said.ended == "" and answers.best[0] > 0
    else:
        assert said.ended == "steps", "every neuron has a sign, and the box alone is too wide"


def test_dividing_proves_what_tight_bounds_leave_open() -> None:
    divided = 0
    for seed in range(20):
        net = drawn(np.random.default_rng(100 + seed), 2, [4, 3])
        forms, box = [over(net, 1.0)], cube(2)
        group, _ = lowered(net, forms, box, spread(net, forms, box) / 3)
        said, answers = searched(net, group, box, 5.0)
        divided += bool(answers.settled.all()) and said.domains > 1
        if divided == 2:
            break
    assert divided == 2


def test_several_groups_and_conjunctions() -> None:
    """Each group over its own nearest form; a group that is unsafe stays open beside one that is safe."""
    for seed in range(2):
        net = drawn(np.random.default_rng(200 + seed), 2, [5], outputs=2)
        box = cube(2)
        safe, _ = lowered(net, [over(net, 1.0, 0.0)], box, spread(net, [over(net, 1.0, 0.0)], box) / 2 + 1)
        reached, _ = lowered(net, [over(net, 0.0, 1.0)], box, Fraction(0))
        verifier = compiled(net)
        q = questions(asked([box], [(0, safe), (0, reached), (0, (*reached, *safe))], net.outputs))
        assert q is not None
        answers = fresh(q)
        Forest(verifier._decider, q, answers, None, ends_after(30)).run()
        assert answers.settled.tolist() == [True, False, True]


def test_a_refuted_tree_proves_its_own_group() -> None:
    """Beside a group that an input reaches, and whose tree is never done."""
    for seed in range(100, 140):
        net = drawn(np.random.default_rng(seed), 2, [4, 3])
        forms, box = [over(net, 1.0)], cube(2)
        safe, _ = lowered(net, forms, box, spread(net, forms, box) / 3)
        said, answers = searched(net, safe, box, 5.0)
        if not answers.settled.all() or said.domains < 2:
            continue
        reached, _ = lowered(net, forms, box, Fraction(0))
        q = questions(asked([box], [(0, reached), (0, safe)], net.outputs))
        assert q is not None
        both = fresh(q)
        said = Forest(compiled(net)._decider, q, both, None, ends_after(60)).run()
        assert both.settled.tolist() == [False, True] and said.open >= 1
        return
    raise AssertionError("no network needed its neurons divided")


def test_both_signs_of_a_neuron_are_the_whole_part() -> None:
    rng = np.random.default_rng(3)
    net = dense(*((rng.standard_normal((4, 4)), rng.standard_normal(4).tolist()) for _ in range(3)))
    tight, forms = tight_of(net, np.full((1, 4), -1.0), np.full((1, 4), 1.0), rng.standard_normal((6, 4)))
    with settings.pin_settings(tight.engine.device):
        box = torch.full((1, 4), -1.0, dtype=torch.float64), torch.full((1, 4), 1.0, dtype=torch.float64)
        search = NeuronSearch(tight, tight.engine.refine(*box), forms, box, None)
    whole, neuron = search.waiting.pick(torch.zeros(6, dtype=torch.int64)), torch.from_numpy(rng.integers(0, len(search.neurons), 6))
    both = whole.divide(torch.arange(6), neuron, search.layer[neuron], torch.zeros(6))
    on, off = both.pick(torch.arange(6)), both.pick(torch.arange(6, 12))
    assert torch.equal(on.behind, search.layer[neuron]) and torch.equal(off.behind, on.behind)
    cut = on.signs != 0
    assert (cut.sum(1) == 1).all() and torch.equal(cut, off.signs != 0)
    assert (on.signs[cut] == 1).all() and (off.signs[cut] == -1).all()
    assert torch.equal(on.hi, whole.hi) and torch.equal(off.lo, whole.lo)
    assert (on.lo[cut] == 0).all() and (off.hi[cut] == 0).all()
    assert torch.equal(on.lo[~cut], whole.lo[~cut]) and torch.equal(off.hi[~cut], whole.hi[~cut])
    assert both.forms.tolist() == [[*range(6)]] * 12 and both.open.all() and (both.depth == 1).all()


def test_what_a_batch_does_not_take_goes_on_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neurons, "MOST", 2)
    rng = np.random.default_rng(4)
    net = dense(*((rng.standard_normal((6, 6)), rng.standard_normal(6).tolist()) for _ in range(3)))
    tight, forms = tight_of(net, np.full((1, 6), -1.0), np.full((1, 6), 1.0), rng.standard_normal((7, 6)))
    tight.chain = None  # a tree for each form, so that a lost part is a lost form
    with settings.pin_settings(tight.engine.device):
        box = torch.full((1, 6), -1.0, dtype=torch.float64), torch.full((1, 6), 1.0, dtype=torch.float64)
        search = NeuronSearch(tight, tight.engine.refine(*box), forms, box, None)
        search.begin()
        for _ in range(4):
            search._round()
            waits = set(search.waiting.forms[search.waiting.open].tolist())
            assert waits | set(torch.nonzero(search.refuted.isfinite()).flatten().tolist()) == set(range(7))


# ---- parts, with anything proposed ----------------------------------------------------------------------------------


def proposals(rng: np.random.Generator, ascent: Ascent, rows: AscentRows) -> dict[str, Found]:
    made = {}
    for name in ascent.divided_before(rows.target):
        lo, _ = rows.operands[ascent.net.node(name).inputs[0]]
        size = torch.from_numpy(10.0 ** rng.uniform(-3, 3, lo.shape) * rng.choice([-1, 0, 1], lo.shape)).float()
        made[name] = Found(hostile(lo.shape, rng), torch.where(hostile(lo.shape, rng).isfinite(), size, torch.nan), torch.zeros_like(size))
    return made


def proposals_of_chain(
    rng: np.random.Generator, chain: ChainAscent, target: Node, boxes: Boxes, image: int, start: Tensor, signs: dict[str, Tensor]
) -> Chosen:
    made = Chosen({}, {})
    for layer in chain.layers[: chain.depth[target.name]]:
        relu, shape = chain.relus[layer.name].name, torch.Size([len(start), *boxes.lo[layer.name].shape[1:]])
        size = 10.0 ** rng.uniform(-3, 3, shape) * rng.choice([-1, 0, 1], shape)
        made.slopes[relu], made.multipliers[relu] = hostile(shape, rng), torch.from_numpy(size).float()
        assert signs[relu].shape[1:] == shape[1:]
    return made


def a_part(search: NeuronSearch, rng: np.random.Generator, values: Tensor, count: int) -> Parts:
    """Parts whose signs some execution takes, and some at random; `values` [executions, undecided neurons] in the runtime's order."""
    parts = search.waiting.pick(torch.from_numpy(rng.integers(0, len(search.waiting), count)))
    signs = torch.where(values[torch.from_numpy(rng.integers(0, len(values), count))] >= 0, 1, -1).to(torch.int8)
    signs[torch.from_numpy(rng.random(signs.shape) < 0.5)] = 0
    parts.signs = signs
    parts.lo = torch.where(signs > 0, 0.0, parts.lo)
    parts.hi = torch.where(signs < 0, 0.0, parts.hi)
    parts.behind = torch.from_numpy(rng.integers(-1, len(search.operators), count))
    return parts


def chains(seed: int) -> Net:
    """Layers of several widths; a last ReLU follows some."""
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.integers(3, 9, 3 + seed % 3)]
    layers = ((rng.standard_normal((m, n)), rng.standard_normal(m).tolist()) for n, m in pairwise(sizes))
    return dense(*layers)


SMALL = partial(random_net, limit=50)


def held(seeds: range, semantics: str, monkeypatch: pytest.MonkeyPatch, draw: Callable[[int], Net] = SMALL) -> tuple[int, int, int]:
    """Comparisons of executions that lie in their part with the part's bound, wrong ones, and parts wrongly called empty."""
    rng = np.random.default_rng(7)
    if monkeypatch is not None:
        monkeypatch.setattr(Ascent, "improve", lambda self, rows, steps, rate: proposals(rng, self, rows))
        monkeypatch.setattr(ChainAscent, "improve", lambda self, node, *given: proposals_of_chain(rng, self, node, *given[:4]))
    compared = wrong = lost = 0
    for seed in seeds:
        net = draw(seed)
        if not Ascent.serves(net) or "relu" not in {n.op for n in Ascent(net, torch.device("cpu"))._find_sources(net.output)}:
            continue
        if "take" in net.input.attrs:  # the oracle tells of the user's inputs, the search of the cells that the network reads
            continue
        lo, hi = (v.astype(np.float32).astype(np.float64).reshape(1, -1) for v in random_box(rng, net, "ordinary"))
        C = rng.standard_normal((2, net.node(net.output).size))
        tight, forms = tight_of(net, lo, hi, C, "float32", semantics)
        with settings.pin_settings(tight.engine.device):
            box = torch.from_numpy(lo), torch.from_numpy(hi)
            search = NeuronSearch(tight, tight.engine.refine(*box), forms, box, None)
            names = {n.name: n.shape for n in net}
            if any(names.get(i) != search.engine.nodes[i].shape for i in (*search.operand.values(), *search.operators)):
                continue  # a pass has moved the cells: the oracle knows the network as it was
            points = attack_points(net, lo, hi, C, rng)
            seen = executions(net, points, C, semantics, lo, hi, rng)
            cells = torch.from_numpy(np.concatenate([in_order(search, r, seen[0][search.operand[r]]) for r in search.operators], 1))
            cells = cells[:, search.neurons]
            parts = a_part(search, rng, cells, 12)
            bounds, empty = bounded(search, parts)
        for k in range(len(parts)):
            inside = ((parts.signs[k] == 0) | (parts.signs[k] * cells >= 0)).all(1).numpy()
            if not inside.any():
                continue
            taken, room = cells[inside].double(), 1e-9 * (1 + cells[inside].double().abs())
            if not empty[k]:
                wrong += int(((taken < parts.lo[k] - room) | (taken > parts.hi[k] + room)).sum())
            for form, bound in zip(parts.forms[k].tolist(), bounds[k], strict=True):
                compared += int(inside.sum()) * bool(np.isfinite(bound))
                wrong += int((seen[1][inside][:, form] < bound).sum())
            lost += bool(empty[k])
    return compared, wrong, lost


def in_order(search: NeuronSearch, relu: str, values: np.ndarray) -> np.ndarray:
    """[points, *shape] as the runtime lays cells out."""
    channels_last = values.transpose(0, 2, 3, 1) if values.ndim == 4 else values
    return channels_last.reshape(len(values), -1)


def executions(
    net: object, points: np.ndarray, C: np.ndarray, semantics: str, lo: np.ndarray, hi: np.ndarray, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Every node's values [executions, *shape], and the forms' [executions, forms], never above the true ones."""
    if semantics == "real":
        values = exact(net, points)  # type: ignore[arg-type]
        return {k: v.nearest() for k, v in values.items()}, exact_forms(values[net.output], C).down()  # type: ignore[attr-defined]
    shape = points.shape[1:]
    runs = float32_runs(net, float32_points(points, lo.reshape(shape), hi.reshape(shape)), rng, 5)  # type: ignore[arg-type]
    merged = {k: np.concatenate([r[k] for r in runs]) for k in runs[0]}
    y = merged[net.output].reshape(len(points) * len(runs), -1)  # type: ignore[attr-defined]
    return merged, y @ C.T + 1e-9 * (1 + np.abs(y) @ np.abs(C.T))


def bounded(search: NeuronSearch, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """The bounds of each part's forms, and the emptiness, that a search finds."""
    noted: list[Tensor] = []
    walk, bound = search.engine.walker.bound_forms, search.tight.bound

    def note(*given: object) -> object:
        made = walk(*given)  # type: ignore[arg-type]
        noted.append(made.best.clone())
        return made

    def empties(*given: object) -> object:
        boxes, empty = bound(*given)  # type: ignore[arg-type]
        assert boxes.batch == len(parts)
        noted.append(empty)
        return boxes, empty

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search.engine.walker, "bound_forms", note)
        patch.setattr(search.tight, "bound", empties)
        search._bound(parts, 5, False)
    return noted[1].view(len(parts), -1).numpy(), noted[0].numpy()


def test_any_slopes_and_multipliers_bound_the_executions_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, wrong, lost = held(range(60), "real", monkeypatch)
    assert compared > 300 and wrong == lost == 0


def test_float32_executions_of_a_part_too(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, wrong, lost = held(range(15), "float32", monkeypatch)
    assert compared > 300 and wrong == lost == 0


@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_parts_of_chains_bounded_again_behind_their_signs(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, wrong, lost = held(range(12), semantics, monkeypatch, chains)
    assert compared > 300 and wrong == lost == 0


def test_neurons_of_parts_are_bounded_over_their_own_part() -> None:
    """With slopes that the ascent chooses: bounds tight enough that another part's would leave executions out."""
    compared, wrong, lost = held(range(20, 28), "real", None, chains)
    assert compared > 300 and wrong == lost == 0


@pytest.mark.slow
@pytest.mark.parametrize("semantics", ["real", "float32"])
def test_parts_at_length(semantics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared, wrong, lost = held(range(100, 220), semantics, monkeypatch)
    assert compared > 600 and wrong == lost == 0
    compared, wrong, lost = held(range(100, 220), semantics, monkeypatch, chains)
    assert compared > 1800 and wrong == lost == 0


def test_multipliers_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them more parts are needed: a test that holds multipliers at zero must notice."""

    def parts(seed: int) -> int:
        net = drawn(np.random.default_rng(300 + seed), 2, [4, 3])
        group, _ = lowered(net, [over(net, 1.0)], cube(2), spread(net, [over(net, 1.0)], cube(2)) / 3)
        said, answers = searched(net, group, cube(2), 5.0)
        return said.domains + 1000 * (not answers.settled.all())

    with_them = sum(map(parts, range(4, 8)))
    improve = Ascent.improve

    def without(self: Ascent, rows: AscentRows, steps: int, rate: float) -> dict[str, Found]:
        found = improve(self, rows, steps, rate)
        return {k: Found(f.slopes, torch.zeros_like(f.slopes), f.loss) for k, f in found.items()}

    monkeypatch.setattr(Ascent, "improve", without)
    assert with_them < sum(map(parts, range(4, 8)))


# ---- ends -----------------------------------------------------------------------------------------------------------


def test_time_ends_a_search_and_proves_nothing() -> None:
    net = drawn(np.random.default_rng(5), 2, [4, 3])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), Fraction(0))
    said, answers = searched(net, group, cube(2), 0.0)
    assert (said.ended, said.open) == ("time", 1) and not answers.settled.any()


def test_a_batch_that_the_clock_breaks_off_waits_again() -> None:
    rng = np.random.default_rng(0)
    net = dense(*((rng.standard_normal((6, 6)), rng.standard_normal(6).tolist()) for _ in range(3)))
    lo, hi = np.full((1, 6), -1.0), np.full((1, 6), 1.0)
    tight, forms = tight_of(net, lo, hi, rng.standard_normal((3, 6)))
    with settings.pin_settings(tight.engine.device):
        box = torch.from_numpy(lo), torch.from_numpy(hi)
        search = NeuronSearch(tight, tight.engine.refine(*box), forms, box, time.monotonic() - 1)
        with pytest.raises(Stopped):
            search.begin()
        assert search.waiting.forms[search.waiting.open].tolist() == [0, 1, 2] and torch.isinf(search.refuted).all()
        search.deadline = None
        search.begin()
        waits, search.deadline = search.waiting.forms[search.waiting.open].tolist(), time.monotonic() - 1
        with pytest.raises(Stopped):
            search._round()
    assert waits and search.waiting.forms[search.waiting.open].tolist() == waits


def test_a_search_repeats_itself() -> None:
    net = drawn(np.random.default_rng(9), 2, [4, 3])
    group, _ = lowered(net, [over(net, 1.0)], cube(2), spread(net, [over(net, 1.0)], cube(2)) / 4)
    first, second = (searched(net, group, cube(2), 10.0) for _ in range(2))
    assert (first[0].domains, first[0].depth, first[0].share) == (second[0].domains, second[0].depth, second[0].share)
    assert np.array_equal(first[1].best, second[1].best)
