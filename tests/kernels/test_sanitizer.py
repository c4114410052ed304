"""Whole runs on a GPU that is not there (fake_cuda.py): nothing that a GPU would do wrong, and right to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch

from polytriton.ir.net import Net
from polytriton.kernels import load
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.load import prepare
from polytriton.kernels.spec import FUSION
from polytriton.passes.pipeline import compile_net
from tests.kernels.branches import dense_branches
from tests.kernels.fake_cuda import CUDA, FakeCuda
from tests.kernels.launch_faults import FAULTS
from tests.kernels.sanitized import Device, bits, forgotten, fork, whole_run
from tests.kernels.test_device_runs import small_net
from tests.kernels.test_kernel_runs import small

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy tells of every overflow and NaN
NETS: dict[str, Callable[[], Net]] = {
    "fork": fork, "residual": small_net, "branches": dense_branches,
    "pool": lambda: small(pool=True),
}  # fmt: skip
CASES = [("fork", {"dtype": "float32", "semantics": "float32"})]
MORE: list[tuple[str, dict[str, Any]]] = [
    ("fork", {"dtype": "float64", "semantics": "real", "tiles": True}),
    ("residual", {"dtype": "float32", "semantics": "real"}),
    ("branches", {"dtype": "float32", "semantics": "float32", "tiles": True}),
    ("pool", {"dtype": "float32", "semantics": "float32"}),
    ("fork", {"dtype": "float32", "semantics": "float32", "numerics": "interval"}),
]
every = pytest.mark.parametrize("name, options", [*CASES, *(pytest.param(*case, marks=pytest.mark.slow) for case in MORE)])


@pytest.fixture(autouse=True)
def interpreted() -> None:
    prepare(interpret=True)


def told(cuda: FakeCuda) -> str:
    return "\n".join(map(str, cuda.faults[:12]))


@pytest.mark.slow
@every
def test_a_whole_run_is_clean_and_right(name: str, options: dict[str, Any]) -> None:
    """Stretches are played, captured and replayed; lanes run beside each other; a batch of another size comes in between."""
    compiled, cuda = compile_net(NETS[name]()), FakeCuda()
    with cuda.present():
        found = whole_run(on := Device(compiled, cuda, **options))
        cuda.fix(list(on.backend._weights.values()))  # a network's numbers: from here on nobody writes them
        again = whole_run(on, ((1, 2),))
    assert not cuda.faults, told(cuda)
    want = Device(compiled, None, **options)
    assert bits(found) == bits(whole_run(want)) and bits(again) == bits(whole_run(want, ((1, 2),)))
    assert sum(g.replays for g in cuda.graphs) > len(cuda.graphs) > 0
    forks = {node.stream.name for g in cuda.graphs for node in g.nodes}
    assert len(forks) == 1 + (name in ("fork", "residual", "branches") and options.get("numerics") != "interval")
    launched = {"open_neurons", "close_neurons", "open_forms", "move_rows"} | ({"climb_rows"} if name != "pool" else set())
    assert launched <= cuda.launched.keys()


@pytest.mark.parametrize("options", [CASES[0][1], pytest.param(MORE[0][1], marks=pytest.mark.slow)])
def test_programs_read_what_they_have_written(options: dict[str, Any]) -> None:
    """What an earlier block left in the arena and in row arrays is nobody's."""
    cuda = FakeCuda()
    with cuda.present():
        on = Device(fork(), cuda, **options)
        with forgotten(on) as blocks:
            for seed, batch in ((1, 2), (2, 2), (3, 2)):
                on.batch(seed, batch)
    assert not cuda.faults, told(cuda)
    assert blocks[0] > 6


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_told_by_its_name(name: str) -> None:
    """Whatever else may come of it."""
    fault, cuda = FAULTS[name], FakeCuda()
    with cuda.present():
        on = Device(fork(), cuda, dtype="float32", semantics="float32")
        with fault.at_work(on), suppress(Exception):
            for _ in range(3):
                on.batch(1, 2)  # the same: it is soon known what goes ahead, and the third is captured
                cuda.fix(list(on.backend._weights.values()))
                fault.between(on)
    assert fault.kind in cuda.kinds, told(cuda)


# ---- memory that runs out, graphs that are counted --------------------------------------------------------------------


@pytest.mark.slow
def test_a_batch_that_begins_anew_is_clean_and_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else takes memory that was said to be free: what the batch held goes, graphs too, and it begins again."""
    compiled, options = compile_net(fork()), CASES[0][1]
    with (cuda := FakeCuda()).present():
        Device(compiled, cuda, **options).batch(5, 60, groups=0)
        enough = cuda.memory.peak
    with (cuda := FakeCuda(limit=int(0.97 * enough))).present():
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device=None: (enough, enough))
        on = Device(compiled, cuda, **options)
        found = [on.batch(seed, batch, groups=0) for seed, batch in ((0, 1), (5, 60), (5, 60))]
        assert cuda.memory.lost, "memory sufficed"
    assert not cuda.faults, told(cuda)
    assert bits(found[1]) == bits(found[2])
    *boxes, best, raw = found[1]
    *wanted, want_best, want_raw = Device(compiled, None, **options).batch(5, 60, groups=0)
    assert bits(boxes) == bits(wanted)
    # the interpreter's products of a whole block round otherwise than those of half a block: by no more than both have charged
    assert ((raw - want_raw).abs() <= (raw - best) + (want_raw - want_best)).all()


@pytest.mark.slow
def test_every_stretch_is_captured_once() -> None:
    """However many batches there are: habits change what goes ahead, and what has been captured is replayed when it comes back."""
    cuda = FakeCuda()
    with cuda.present():
        on, graphs = Device(fork(), cuda, dtype="float32", semantics="float32"), list[int]()
        for _ in range(4):
            for seed in range(3):
                on.batch(seed, 2)
            graphs.append(len(cuda.graphs))
    parts = [*on.backend.player.parts.values(), *(p for b in on.backend._bound.values() for p in b.parts)]
    assert graphs[-1] == graphs[-2] <= len(parts)
    assert sum(p.graph is not None for p in parts) == len(cuda.graphs) == len({id(p.graph) for p in parts if p.graph is not None})
    assert max(g.replays for g in cuda.graphs) >= 8 and not cuda.faults, told(cuda)


# ---- the instrument itself --------------------------------------------------------------------------------------------


def test_tensors_of_the_device_are_told_from_the_hosts() -> None:
    cuda = FakeCuda()
    with cuda.present():
        here, there = torch.ones(4), torch.ones(4, device="cuda")
        assert there.device == CUDA and there[1:].device == CUDA and there.double().is_cuda and here.device.type == "cpu"
        assert (there + 1).device == CUDA and here.to("cuda").device == CUDA and not there.cpu().is_cuda
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert not cuda.faults and "tolist" not in cuda.waits
        there + here
    assert [str(f) for f in cuda.faults] == ["tensors of two devices meet: in aten::add"]


def test_new_memory_holds_nothing_and_says_so() -> None:
    cuda = FakeCuda()
    with cuda.present():
        new = torch.empty(4, device="cuda")
        assert bool(new.cpu().isnan().all())
    assert cuda.kinds == {"read before it was written"}
    with (cuda := FakeCuda()).present():
        new = torch.empty(4, device="cuda")
        new[1:3] = 1.0
        assert new[1:3].sum().item() == 2 and not cuda.faults
        new[:2].sum()
    assert cuda.kinds == {"read before it was written"}


def test_memory_has_an_end() -> None:
    with (cuda := FakeCuda(limit=1000)).present():
        first = torch.zeros(100, dtype=torch.float64, device="cuda")
        with pytest.raises(torch.OutOfMemoryError):
            torch.zeros(100, dtype=torch.float64, device="cuda")
        assert torch.cuda.mem_get_info() == (200, 1000) and cuda.memory.lost == 1
        del first
        torch.zeros(100, dtype=torch.float64, device="cuda")


@pytest.mark.parametrize("fork, join", [(True, True), (False, True), (True, False)])
def test_streams_see_what_they_have_waited_for(fork: bool, join: bool) -> None:
    with (cuda := FakeCuda()).present():
        a, side, main = torch.zeros(4, device="cuda"), torch.cuda.Stream(), torch.cuda.current_stream()
        if fork:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            a.add_(1)
        if join:
            main.wait_stream(side)
        a.mul_(2)
    assert cuda.kinds == (set() if fork and join else {"no wait between streams"})


def test_a_graph_runs_what_was_captured_and_misses_what_has_gone() -> None:
    with (cuda := FakeCuda()).present():
        a, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
        with torch.cuda.stream(torch.cuda.Stream()):
            graph.capture_begin(capture_error_mode="thread_local")
            a.add_(1)
            graph.capture_end()
        assert a.tolist() == [0, 0]
        torch.cuda.synchronize()
        graph.replay()
        graph.replay()
        assert a.tolist() == [2, 2] and not cuda.faults
        del a
        graph.replay()
    assert cuda.kinds == {"a graph has a stale pointer"}


def test_what_cuda_refuses_in_a_capture_is_told() -> None:
    with (cuda := FakeCuda()).present():
        a, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
        with pytest.raises(RuntimeError, match="non-default stream"):
            graph.capture_begin()
        side, beside, other = torch.cuda.Stream(), torch.cuda.Stream(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            graph.capture_begin()
            a.add(1)
            a.tolist()
            side.wait_stream(other)
            beside.wait_stream(side)
            with torch.cuda.stream(other):
                a.mul_(2)
            graph.capture_end()
    assert cuda.kinds == {
        "memory is allocated in a capture", "the host waits in a capture", "a capture waits for what is no part of it",
        "a launch beside the capture", "a capture ends unjoined",
    }  # fmt: skip


def test_launches_take_what_their_machine_code_takes() -> None:
    from triton.runtime.errors import InterpreterError

    with (cuda := FakeCuda()).present():
        run, tensors = a_kernel()
        run(*tensors.values())
        assert not cuda.faults
        for parameter, wrong in {
            "index_ptr": torch.arange(64), "group_ptr": tensors["group_ptr"].double(), "count_ptr": torch.full((3,), 40, device="cuda")[1:],
        }.items():  # fmt: skip
            with suppress(InterpreterError):
                run(*{**tensors, parameter: wrong}.values())
        run(*{**tensors, "blocks_ptr": torch.zeros(2, dtype=torch.int64, device="cuda")}.values())
    assert cuda.kinds == {
        "a tensor of another device", "a tensor of another type", "begins at no multiple of 16 bytes", "outside of its tensors",
    }  # fmt: skip


def a_kernel() -> tuple[Any, dict[str, Any]]:
    kernel = make_kernel("count_staying", (("B", 16),), "float64", 4, 1)
    made = {
        "index_ptr": torch.arange(64, device="cuda"), "group_ptr": torch.arange(64, device="cuda"),
        "done_ptr": torch.zeros(64, dtype=torch.int8, device="cuda"), "count_ptr": torch.full((1,), 40, device="cuda"),
        "blocks_ptr": torch.zeros(4, dtype=torch.int64, device="cuda"),
    }  # fmt: skip
    run = load.function(kernel)[(4, 1)]
    return lambda *tensors: run(*tensors, **kernel.options, **FUSION), {p: made[p] for p in kernel.parameters}
