"""Launches as text and back, and what their checker refuses."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from polytriton.arithmetic import ARITHMETICS, INTERVAL
from polytriton.errors import InvalidIR
from polytriton.ir.launch_check import check_launches
from polytriton.ir.launch_text import parse_launches, print_launches
from polytriton.ir.launches import Launches
from polytriton.ir.net import Net
from polytriton.kernels import network
from polytriton.kernels.choose import GPU, INTERPRETER, Sizes
from polytriton.kernels.emitter import Emitter
from polytriton.kernels.interval_launches import IntervalLowering
from polytriton.kernels.lanes import add_lanes
from polytriton.kernels.launches import Lowering
from polytriton.kernels.sequence import Frames
from polytriton.kernels.stock import program_key
from polytriton.passes.pipeline import compile_net
from tests.kernels.branches import projections
from tests.oracle.nets import toy_residual


def lower(net: Net, numerics: str, emitter: Emitter, sizes: Sizes = GPU) -> None:
    """The launches of a network's query and of its last bound, into the emitter."""
    compiled, arithmetic = compile_net(net), ARITHMETICS[numerics]
    frames, interval = Frames(compiled.net, compiled.plan), arithmetic.form == INTERVAL
    for program in list(compiled.plan)[-2:]:
        made = (IntervalLowering if interval else Lowering)(emitter, frames, arithmetic, program, sizes).run()
        key = program_key(numerics, sizes.emulate, program)
        emitter.programs[key] = made if interval else add_lanes(made, emitter, arithmetic)


@pytest.fixture(scope="module")
def emitter() -> Emitter:
    made = Emitter()
    lower(toy_residual(), "float32", made)
    lower(projections(blocks=1), "float64", made)
    return made


def test_text_and_back(emitter: Emitter) -> None:
    made = Emitter(dict(emitter.kernels), programs=dict(emitter.programs))
    lower(toy_residual(), "interval32", made, INTERPRETER)
    assert any(step.lane for launches in made.programs.values() for step in launches.steps)
    for launches in made.programs.values():
        check_launches(launches)
        text = print_launches(launches)
        assert parse_launches(text, launches.program, made.kernels) == launches
        assert parse_launches(re.sub("$", "  // a remark", text, flags=re.M), launches.program, made.kernels) == launches


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("^query", "bound", "line 1: not the launches of query"),
        (r"^  lives (\d+)\.\.", r"  lives \1-", "line 3: cannot read lives"),
        ("^  buffers [0-9]+", "  buffers many", "line 2: cannot read buffers"),
        ("  state 1 ", "  state 2 ", "cannot read 'state 2"),
        ("(    count_staying)_[0-9a-f]+", r"\1_0000000000", "there is no kernel count_staying_0000000000"),
        ("index_ptr=index:0 group_ptr=group", "group_ptr=group index_ptr=index:0", "bind each of its parameters once"),
        (" blocks_ptr=blocks", "", "bind each of its parameters once"),
        ("block=1024", "block=1024 rows=3", "bind each of its parameters once"),
        ("block=1024", "block=-4", "cannot read 'count_staying"),
        (r"\n}\n$", "\n", "the launches are not closed"),
        (r"  }\n}\n$", "", "the state is not closed"),
        (r"\n}\n$", "\n}\nstate 9 {\n", "text after the launches"),
    ],
)
def test_text_that_cannot_be_read(emitter: Emitter, old: str, new: str, said: str) -> None:
    launches = query(emitter)
    text, times = re.subn(old, new, print_launches(launches), count=1, flags=re.M if old.startswith("^") else 0)
    assert times == 1
    with pytest.raises(InvalidIR, match=re.escape(said)):
        parse_launches(text, launches.program, emitter.kernels)


def query(emitter: Emitter, branches: bool = False) -> Launches:
    """A query's launches, of a network without lanes or with them."""
    wanted = "float64 gpu query" if branches else "float32 gpu query"
    (key,) = (k for k in emitter.programs if k.startswith(wanted) and any(s.lane for s in emitter.programs[k].steps) == branches)
    return copy.deepcopy(emitter.programs[key])


def rebind(launches: Launches, k: int, old: str, new: str) -> None:
    step = launches.steps[k]
    assert old in step.bind
    launches.steps[k] = replace(step, bind=tuple(new if s == old else s for s in step.bind))


def first(launches: Launches, function: str) -> int:
    return next(k for k, s in enumerate(launches.steps) if s.function == function)


def _unwritten(x: Launches) -> None:
    """A product reads the buffer that the next launch writes."""
    k = first(x, "relax_rows")
    out = x.steps[k].bind[x.steps[k].kernel.parameters.index("out_ptr")]
    before = x.steps[k].bind[x.steps[k].kernel.parameters.index("m_ptr")]
    x.lives = [[first, len(x.steps)] for first, _ in x.lives]
    x.lives[int(out[4:]) + 1][0] = 1
    rebind(x, k, before, f"buf:{int(out[4:]) + 1}")


def _short(x: Launches) -> None:
    x.lives[-1][1] -= 1


def _states(x: Launches) -> None:
    rebind(x, x.begins[1], "constant:1", "constant:0")


def _early(x: Launches) -> None:
    rebind(x, first(x, "count_staying"), "index:0", "index:1")


def _stay(x: Launches) -> None:
    k = first(x, "move_rows")
    other = x.steps[first(x, "count_staying")]
    x.steps[k] = replace(other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.begins.insert(1, 0), "states begin at"),
        (lambda x: x.begins.append(len(x.steps) + 1), "states begin at"),
        (lambda x: x.ops.update({99: 1}), "state 99, which no row reaches"),
        (lambda x: x.steps.__setitem__(2, replace(x.steps[2], bind=x.steps[2].bind[1:])), "launch 2 binds"),
        (lambda x: x.steps.__setitem__(2, replace(x.steps[2], columns=0)), "launch 2 has a size below 1"),
        (lambda x: x.lives.pop(), "lives"),
        (lambda x: rebind(x, 0, "buf:0", "buf:99"), "launch 0 binds buf:99"),
        (_unwritten, "before a launch has written it"),
        (_short, "which lives from"),
        (_states, "binds constant:0 in state 1"),
        (_early, "binds index:1 in state 0"),
        (_stay, "state 0 ends without rows that move"),
        (lambda x: x.steps.__setitem__(1, replace(x.steps[1], lane=1)), "launch 1 has lane 1 in region 0"),
    ],
)
def test_what_breaks_a_rule_is_refused(emitter: Emitter, change: Callable[[Launches], object], said: str) -> None:
    launches = query(emitter)
    check_launches(launches)
    change(launches)
    with pytest.raises(InvalidIR, match=said):
        check_launches(launches)


def test_lanes_that_meet_are_refused(emitter: Emitter) -> None:
    launches = query(emitter, branches=True)
    check_launches(launches)
    k = next(k for k, s in enumerate(launches.steps) if s.lane and "lane_error" in s.bind)
    shared, torn = copy.deepcopy(launches), copy.deepcopy(launches)
    beside = next(s for s in launches.steps if s.region == launches.steps[k].region and not s.lane)
    rebind(shared, k, "lane_error", next(s for s in beside.bind if s.startswith("error:")))
    with pytest.raises(InvalidIR, match="both lanes of region"):
        check_launches(shared)
    begin = min(i for i, s in enumerate(launches.steps) if s.region == launches.steps[k].region)
    torn.steps[begin - 1] = replace(torn.steps[begin - 1], region=torn.steps[begin].region)
    torn.steps[begin] = replace(torn.steps[begin], region=0, lane=0)
    with pytest.raises(InvalidIR, match="is in pieces"):
        check_launches(torn)


def test_an_order_of_a_query_is_kept(emitter: Emitter) -> None:
    """Buffers of a query's rows are given; those of a bound are written by its own launches."""
    launches = query(emitter)
    bound = replace(launches, program=replace(launches.program, kind="bound"))
    with pytest.raises(InvalidIR, match="reads buf:0 before"):
        check_launches(bound)


def test_kernels_of_one_name_are_one(emitter: Emitter) -> None:
    for launches in emitter.programs.values():
        for step in launches.steps:
            assert step.kernel == emitter.kernels[step.kernel.name]


def test_nothing_is_filed_that_breaks_a_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(launches: Launches, *_: object) -> Launches:
        launches.lives[0][1] = 0
        return launches

    monkeypatch.setattr(network, "add_lanes", broken)
    with pytest.raises(InvalidIR, match="which lives from"):
        network.network_kernels(compile_net(toy_residual()), ("float32",))
