"""Lanes: launches of two lanes never touch the same memory where one writes; and a checker of that which sees planted faults."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from polytriton.arithmetic import ARITHMETICS
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Launch, Launches
from polytriton.ir.net import Net
from polytriton.kernels import lanes
from polytriton.kernels.arena import lay_out
from polytriton.kernels.choose import GPU, INTERPRETER, Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.launches import Frames, Lowering
from polytriton.passes.pipeline import compile_net
from tests.kernels.accesses import READ, WRITTEN, accesses
from tests.kernels.branches import dense_branches, faults, places, projections, regions, twins
from tests.kernels.test_launches import check_arena, check_order
from tests.oracle.nets import random_net, toy_residual

EXAMPLES = Path(__file__).parents[2] / "examples"
NETS: dict[str, Callable[[], Net]] = {"projections": projections, "dense": dense_branches, "twins": twins}
SMALL_ZOO = ("mnist-6x500", "mnist-convbig", "resnettiny")


@cache
def programs(name: str, candidates: str = "all", numerics: str = "float64") -> list[tuple[Launches, Launches]]:
    """Every program of a network, without and with lanes."""
    return lowered(NETS[name](), candidates, numerics)


def lowered(net: Net, candidates: str = "all", numerics: str = "float64", sizes: Sizes = INTERPRETER) -> list[tuple[Launches, Launches]]:
    compiled, emitter, arithmetic = compile_net(net, candidates=candidates), Emitter(), ARITHMETICS[numerics]
    frames = Frames(compiled.net, compiled.plan)
    plain = [Lowering(emitter, frames, arithmetic, p, sizes).run() for p in compiled.plan]
    return [(p, lanes.add_lanes(p, emitter, arithmetic)) for p in plain]


def check(plain: Launches, branched: Launches) -> int:
    """That the lanes are sound, and the program the same but for them; how many regions there are."""
    arena = lay_out(branched)
    check_arena(branched, arena)
    assert faults(branched, places(branched, arena)) == []
    back = {own: row for row, own in lanes.OWN.items()}
    kept = [s for s in branched.steps if not (isinstance(s, Launch) and s.function == "merge_scalars")]
    assert len(kept) == len(plain.steps) and branched.buffers == plain.buffers and branched.slots == plain.slots
    for a, b in zip(plain.steps, kept, strict=True):
        if isinstance(a, Launch) and isinstance(b, Launch):
            rows = {s.partition(":")[0]: s for s in a.bind}
            bind = tuple(rows[back[s]] if s in back else s for s in b.bind)
            assert replace(b, lane=0, region=0, bind=bind) == a
        else:
            assert a is b
    return sum(1 for _ in regions(branched))


@pytest.mark.parametrize("numerics", ["float64", "float32"])
@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("name", NETS)
def test_lanes_of_networks_with_branches(name: str, candidates: str, numerics: str) -> None:
    assert sum(check(*both) for both in programs(name, candidates, numerics)) > 0


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("name", NETS)
def test_what_is_read_was_written_before(name: str, candidates: str) -> None:
    for _, branched in programs(name, candidates):
        check_order(branched, {"lane_constant", "lane_error"})


@pytest.mark.thinned(3)
@pytest.mark.parametrize("seed", [pytest.param(s, marks=() if s < 16 else pytest.mark.slow) for s in range(40)])
def test_random_networks(seed: int) -> None:
    for both in lowered(random_net(seed), ("all", "input")[seed % 2]):
        check(*both)
        check_order(both[1], {"lane_constant", "lane_error"})


def test_random_networks_have_regions() -> None:
    found = (region for seed in range(40) for _, b in lowered(random_net(seed), ("all", "input")[seed % 2]) for region in regions(b))
    assert len(list(islice(found, 11))) == 11  # the others are not looked for


@pytest.mark.parametrize("candidates", ["all", "input"])
@pytest.mark.parametrize("model", sorted(p.name for p in EXAMPLES.glob("*.onnx")))
def test_examples(model: str, candidates: str) -> None:
    found = sum(check(*both) for both in lowered(load_onnx(EXAMPLES / model).net, candidates, sizes=GPU))
    assert (found > 0) == ("resnet" in model)


@pytest.mark.slow
def test_networks_of_the_data(data: Path) -> None:
    found = {}
    for file in sorted((data / "nets").glob("*/*.onnx")):
        for candidates in ("all", "input"):
            found[file.stem, candidates] = sum(check(*both) for both in lowered(load_onnx(file).net, candidates, sizes=GPU))
    assert {name for name, regions in found.items() if regions} == {(n, c) for n, c in found if n.startswith("resnet")}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_ZOO)
def test_networks_of_the_paper(name: str) -> None:
    zoo = pytest.importorskip("bench.zoo")  # not in a copy of the package alone
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "net.onnx")
        path.write_bytes(zoo.build(name, "normal").SerializeToString())
        net = load_onnx(path).net
    for candidates in ("all", "input"):
        found = sum(check(*both) for both in lowered(net, candidates, sizes=GPU))
        assert (found > 0) == (name == "resnettiny")


# ---- where lanes are made -------------------------------------------------------------------------------------------


def test_an_identity_shortcut_stays_on_one_lane() -> None:
    """Its branch is bookkeeping: no lane, no kernel more, the same program."""
    for candidates in ("all", "input"):
        for plain, branched in lowered(toy_residual(), candidates):
            assert branched == plain


def test_a_projection_gets_a_lane_of_its_own() -> None:
    """Query of one block: both products behind the sum are concurrent, and one merge follows them."""
    (_, query) = programs("projections", "input")[-1]
    found = [[(s.function, s.lane) for s in together] for _, together in regions(query)]
    assert len(found) == 2
    for together in found:
        products = [lane for function, lane in together if function == "conv_step"]
        assert sorted(set(products)) == [0, 1] and products.count(1) == 1  # the shortcut beside the longer branch
    merges = [k for k, s in enumerate(query.steps) if isinstance(s, Launch) and s.function == "merge_scalars"]
    assert merges == [first + len(together) for first, together in regions(query)]


def test_branches_of_equal_length_are_lanes_of_equal_length() -> None:
    (_, query) = programs("twins", "input")[-1]
    ((_, together),) = regions(query)
    counts = [sum(s.lane == lane and s.function == "conv_step" for s in together) for lane in (0, 1)]
    assert counts == [2, 2]


def test_a_branch_that_pays_nothing_needs_no_merge() -> None:
    """Scalars that the ReLU's pass has paid already leave nothing to add."""
    for plain, branched in programs("projections"):
        merges = sum(isinstance(s, Launch) and s.function == "merge_scalars" for s in branched.steps)
        paying = sum(any(s.lane and "lane_constant" in s.bind for s in together) for _, together in regions(branched))
        assert merges == paying == len(branched.steps) - len(plain.steps)


def test_kernels_in_lanes_write_coefficients_and_scalars_only() -> None:
    """What lanes.ADDS says of them, read off their source; and what it leaves out writes something else."""
    steps = {s.kernel: s for name in NETS for _, p in programs(name) for s in p.steps if isinstance(s, Launch)}
    for kernel, step in steps.items():
        how = accesses(kernel)
        written = {p for p, kinds in how.items() if WRITTEN in kinds}
        if step.function in lanes.ADDS:
            assert written <= {"out_ptr", "constant_ptr", "error_ptr"} and READ not in how.get("out_ptr", ())
            assert ("constant_ptr" in written) == ("error_ptr" in written)
        else:
            assert written - {"out_ptr", "constant_ptr", "error_ptr"}


# ---- planted faults -------------------------------------------------------------------------------------------------


def planted(candidates: str = "input") -> Launches:
    return programs("projections", candidates)[-1][1]


def found_in(launches: Launches) -> list[str]:
    return faults(launches, places(launches, lay_out(launches)))


def changed(launches: Launches, change: Callable[[Launch], Launch | None]) -> Launches:
    made = [change(s) if isinstance(s, Launch) else s for s in launches.steps]
    return replace(launches, steps=[s for s in made if s is not None])


def test_the_checker_sees_shared_scalars() -> None:
    launches = planted()
    back = {own: f"{row}:0" for row, own in lanes.OWN.items()}
    shared = changed(launches, lambda s: replace(s, bind=tuple(back.get(b, b) for b in s.bind)) if s.lane else s)
    assert any("constant:0, constant:0" in fault for fault in found_in(shared))


def test_the_checker_sees_a_life_that_ends_inside_a_region() -> None:
    """Laid out as if launches came in the list's order: a buffer of one lane lies where the other lane still reads."""
    launches = planted()
    in_order = lay_out(changed(launches, lambda s: replace(s, lane=0, region=0)))
    assert in_order.size <= lay_out(launches).size
    seen = faults(launches, places(launches, in_order))
    assert seen and all("buf:" in fault for fault in seen)


@pytest.mark.parametrize("candidates", ["all", "input"])
def test_the_checker_sees_a_launch_on_the_wrong_lane(candidates: str) -> None:
    """Every launch of a region but one that hangs on nothing is tied to its lane."""
    seen = 0
    for _, launches in programs("twins", candidates):
        for _, together in regions(launches):
            for moved in together:
                others = [s for s in together if s is not moved and s.lane == moved.lane]
                other = changed(launches, lambda s, moved=moved: replace(s, lane=1 - s.lane) if s is moved else s)  # type: ignore[misc]
                seen += bool(found_in(other)) and bool(others)
    assert seen >= 2


def test_the_checker_sees_scalars_that_are_not_merged() -> None:
    unmerged = changed(planted(), lambda s: None if s.function == "merge_scalars" else s)
    assert any("outside a region" in fault for fault in found_in(unmerged))


def test_the_checker_sees_a_check_inside_a_region() -> None:
    launches = planted("all")
    first, together = next(regions(launches))
    behind = launches.steps[first + len(together) + 1]
    assert isinstance(behind, Launch) and behind.function == "concretize_rows"
    for lane in (0, 1):
        inside = changed(launches, lambda s, lane=lane: replace(s, region=together[0].region, lane=lane) if s is behind else s)  # type: ignore[misc]
        assert found_in(inside)
    merge = launches.steps[first + len(together)]
    inside = changed(launches, lambda s: replace(s, region=together[0].region) if s is merge else s)
    assert any("lane_constant" in fault for fault in found_in(inside))
