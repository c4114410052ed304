"""The paper's networks by the model: rows, leaps, a script by hand, and what the host does beside launches."""

from __future__ import annotations

import pytest
import torch
from msgspec import structs

from bench.host_ops import host_ops, of_net, small
from bench.nets import grow
from bench.roofline import zoo as roofline_zoo
from bench.roofline.script import add_script
from bench.roofline.sums import GRAPH_LAUNCH, Sum
from polytriton.ir.script import RunScript
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.engine import Engine
from polytriton.runtime.gpu import leaps
from polytriton.runtime.settings import pin_settings
from tests.bench.test_roofline import H100, needs_triton


class Tiny(roofline_zoo.Problem):
    """The bench's own tiny network in place of one of the paper's."""

    def __init__(self, name: str, kind: str, count: int) -> None:
        super().__init__("tiny", kind, count)
        self.name = name


def test_rows_of_a_refinement_give_the_operations_that_it_counted() -> None:
    problem = Tiny("tiny", "normal", 2)
    engine = Engine(problem.compiled, semantics="real", dtype="float64")
    rows = roofline_zoo.count_rows(problem, engine, 60.0)
    assert rows.source == "refined"
    assert rows.rows
    programs, _, _ = roofline_zoo.lower(problem, "float64")
    total, ends = Sum(), 0.0
    for one in programs:
        for side in rows.rows.get(one.program.target, ()) if one.program.kind == "bound" else ():
            roofline_zoo.play(one, side, 1, "float64", H100, "cuda:90", {}, total)
            ends += one.program.steps[-1].ops * side[-1]  # of the bound at the input, which the CPU's walk does not count
    assert total.ops == engine.operations + ends
    assert total.launches > 0
    assert total.seconds >= total.launches * GRAPH_LAUNCH


def test_a_batch_that_leaps_waits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny network's launches are few; with one more layer's worth of operations than a leap may lose, it waits behind each."""
    problem = Tiny("tiny", "normal", 1)
    engine = Engine(problem.compiled, semantics="real", dtype="float64")
    rows = roofline_zoo.count_rows(problem, engine, 60.0)
    programs, _, _ = roofline_zoo.lower(problem, "float64")
    bounds = [one for one in programs if one.program.kind == "bound"]
    ended = {one.program.target: roofline_zoo.count_parts(one.launches, rows.rows[one.program.target][0]) for one in bounds}
    made, counted = 0, 0.0
    for one in bounds:
        (first, _), last = rows.rows[one.program.target], ended[one.program.target]
        assert (0 in first) == bool(last)
        _, end, states = one.launches.parts()[last - 1]
        made += end if last else 2 * len(one.launches.steps)
        counted += first[0] * sum(one.launches.ops.get(k, 0) for k in range(states)) * (1 if last else 2)
    assert counted > 0 and not all(ended.values())
    monkeypatch.setattr(leaps, "WORTH", counted / len(bounds))
    monkeypatch.setattr(leaps, "LAUNCHES", made / len(bounds))
    assert roofline_zoo.leaps(bounds, rows, 1)
    assert not roofline_zoo.leaps(bounds, rows, 2)
    monkeypatch.setattr(leaps, "LAUNCHES", (made - 1) / len(bounds))
    assert not roofline_zoo.leaps(bounds, rows, 1)
    monkeypatch.undo()
    monkeypatch.setattr(roofline_zoo, "ROWS_MEMORY", 1.0)
    assert not roofline_zoo.leaps(bounds, rows, 1)


def test_rows_of_the_interval_pass_are_means_over_images() -> None:
    problem = Tiny("tiny", "normal", roofline_zoo.IMAGES)
    engine = Engine(problem.compiled, semantics="real", dtype="float64")
    refined = roofline_zoo.count_rows(problem, engine, 60.0)
    bound = roofline_zoo.count_rows(problem, engine, 0.0)
    assert (bound.source, bound.images) == ("interval", roofline_zoo.IMAGES)
    with pin_settings():
        boxes = engine.interval(*problem.boxes(roofline_zoo.IMAGES))
    want = sum(float(((boxes.lo[n] < 0) & (boxes.hi[n] > 0)).sum()) for n in engine.programs) / roofline_zoo.IMAGES
    assert bound.undecided == pytest.approx(want)
    assert refined.undecided > 0
    assert all(side == [side[0]] for sides in bound.rows.values() for side in sides)  # nobody leaves


def test_a_launch_takes_a_launch_at_least() -> None:
    total = Sum()
    total.add(1e-9, "memory", times=3, ops=2.0)
    total.add(1e-3, "cache", moved=5.0)
    assert total.seconds == pytest.approx(3 * GRAPH_LAUNCH + 1e-3)
    assert (total.launches, total.ops, total.bytes) == (4, 6.0, 5.0)
    assert total.binds == "cache 99%"


def test_a_script_of_dense_layers_by_hand() -> None:
    """Every launch that is listed; products with their tiles; bytes of one layer's."""
    net = compile_net(grow.dense_net(6, 5)[0])
    problem = Tiny("tiny", "normal", 1)
    problem.compiled = net
    _, _, script = roofline_zoo.lower(problem, "float32")
    entries = [e for e in script.sections["refine"] if e.launch is not None]
    listed = [e for e in entries if e.verb in ("play", "ahead", "close")]
    targets = [e.target for e in script.sections["refine"] if e.verb == "wait"]
    assert targets and len(listed) + 2 * len(targets) + sum(e.verb == "known" for e in entries) == len(entries)  # `first` and `second`
    gpu = structs.replace(H100, launch=0.0)
    total, both = Sum(), Sum()
    add_script(script, net.net, 1, 4, gpu, total, ())
    add_script(script, net.net, 1, 4, gpu, both, targets[:1])
    assert (total.launches, both.launches) == (len(listed), len(listed) + 1)
    layers = [n for n in net.net if n.op == "linear"]
    assert total.ops == 6 * sum(n.size * net.net.node(n.inputs[0]).size for n in layers)
    assert total.tiles >= total.ops
    last, source = layers[-1], net.net.node(layers[-1].inputs[0]).size
    only = RunScript("one", {"refine": [e for e in entries if e.launch is not None and f"w:{last.name}" in e.launch.bind]})
    add_script(only, net.net, 3, 4, gpu, one := Sum(), ())
    assert one.launches == 1 and one.bytes == 8 * (source * last.size + 3 * (2 * source + 3 * last.size))


def test_host_operations_are_counted_outside_of_kernels_alone() -> None:
    x = torch.ones(4)
    found = host_ops(lambda: lambda: (x + 1).view(2, 2).sum())
    assert (found.tensor, found.kernels, found.single) == (2, 0, 0)


def test_a_small_network_has_the_layers_of_the_large_one() -> None:
    net = compile_net(grow.residual()).net
    made = small(net)
    assert [n.op for n in made] == [n.op for n in net]
    assert sum(n.size for n in made) < 10_000


@pytest.mark.slow
def test_host_operations_of_a_refinement() -> None:
    needs_triton()
    net = small(compile_net(grow.tiny()).net)
    found, leap = of_net(net), of_net(net, leap=True)
    assert found.kernels > 20 and 0 < found.single < found.kernels
    assert 0 < leap.tensor < found.tensor and leap.single < found.single  # counts are copied among the launches of one graph
