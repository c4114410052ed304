"""The first minutes: what must work before anything else is worth its time. Each check says in one row what it tried, and what failed.

driver   memory, copies, streams that wait for each other, a graph
triton   a kernel of the library compiled, launched, captured and replayed; products in full precision
rows     a kernel of every family that rows of a program go through, against the oracle
runs     boxes, tables, queries and replayed batches of a small network, against torch
ascent   slopes and multipliers, against torch
directed rounding up and down, against exact rationals
interval the paper's interval arithmetic: layers against exact products, a small network against folded bounds
filed    machine code of an artifact, loaded as Triton loads its own: the same bits as by Triton's own launches
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from itertools import product

import torch

from bench import interval
from bench.core.table import Row, first_line
from bench.gpu import ascent
from bench.gpu import kernels as whole
from bench.gpu.setting import Setting, is_lost
from bench.gpu.stage import Stage
from bench.gpu.warm import warm
from bench.nets.grow import NETWORKS
from polytriton.kernels import load
from polytriton.kernels.catalogue import make_kernel
from polytriton.kernels.spec import FUSION
from polytriton.passes.pipeline import compile_net
from polytriton.runtime.settings import plain_products

COLUMNS = SHOWN = ("check", "what", "fraction", "seconds", "verdict", "note")
PART_SECONDS = 150.0  # for all of it
LEAST = 15.0
NEEDED = ("driver", "triton")  # without these nothing else can run
INFINITE = float("inf")
SIZE = 1000
NUMERICS = "float32"
Check = Callable[[Setting], tuple[bool, str]]  # whether it came right, and what it saw


def groups(dry: bool) -> list[str]:
    return ["driver", "triton", "rows", "runs", "ascent", "directed", "interval", "filed"]


def work(group: str, setting: Setting) -> Iterator[Row]:
    """A check that fails leaves the others of its group their turn, but where the device is lost."""
    if group in CHECKS:
        for what, check in CHECKS[group].items():
            yield _row(group, what, setting, check)
        return
    begun = time.perf_counter()
    try:
        for found in FAMILIES[group](setting):
            now = time.perf_counter()
            verdict = "pass" if found["fraction"] <= 1 else "FAIL"
            yield {"check": group, "seconds": now - begun, "verdict": verdict, **found}
            begun = now
    except Exception as error:
        if is_lost(error):
            raise
        yield {"check": group, "what": "all", "fraction": INFINITE, "verdict": "FAIL", "note": first_line(error)}


def _row(group: str, what: str, setting: Setting, check: Check) -> Row:
    begun = time.perf_counter()
    try:
        right, note = check(setting)
    except Exception as error:
        if is_lost(error):
            raise
        right, note = False, first_line(error)
    about = {"check": group, "what": what, "seconds": time.perf_counter() - begun}
    return {**about, "fraction": 0.0 if right else INFINITE, "verdict": "pass" if right else "FAIL", "note": note}


# ---- the driver ---------------------------------------------------------------------------------------------


def _device(setting: Setting) -> tuple[bool, str]:
    """Kernels are compiled for sm_80 and later."""
    if setting.device.type != "cuda":
        return True, "the interpreter"
    free, total = torch.cuda.mem_get_info()
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    return major >= 8, f"{name}, sm_{major}{minor}, {free / 2**30:.1f} of {total / 2**30:.1f} GiB free, CUDA {torch.version.cuda}"


def _copies(setting: Setting) -> tuple[bool, str]:
    sent = torch.arange(SIZE, dtype=torch.float64)
    return torch.equal(sent.to(setting.device).cpu(), sent), f"{SIZE} numbers there and back"


def _streams(setting: Setting) -> tuple[bool, str]:
    """Lane 1 of a program: forked off by an event and joined by another."""
    if setting.device.type != "cuda":
        return True, "none in the interpreter"
    a, side = torch.ones(SIZE, device=setting.device), torch.cuda.Stream(setting.device)
    side.wait_stream(torch.cuda.current_stream(setting.device))
    with torch.cuda.stream(side):
        a.add_(1)
    torch.cuda.current_stream(setting.device).wait_stream(side)
    return bool((a.mul_(2).cpu() == 4).all()), "a stream beside, forked and joined"


def _graph(setting: Setting) -> tuple[bool, str]:
    a = torch.ones(SIZE, device=setting.device)
    replayed = _capture(setting, lambda: a.add_(1))
    return bool(
        (a.cpu() == 1 + replayed).all()
    ), f"replayed {replayed} times" if setting.device.type == "cuda" else "none in the interpreter"


def _capture(setting: Setting, call: Callable[[], object]) -> int:
    """Captures what is asked for as the backend does, and replays it; how often it has run then."""
    if setting.device.type != "cuda":
        return call() is None or 1
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(setting.device)
    torch.cuda.synchronize(setting.device)
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        call()
        graph.capture_end()
    for _ in range(2):
        graph.replay()
    torch.cuda.synchronize(setting.device)
    return 2


# ---- Triton -------------------------------------------------------------------------------------------------


def _version(setting: Setting) -> tuple[bool, str]:
    return True, f"Triton {load.version()}, torch {torch.__version__}"


def _kernel(setting: Setting) -> tuple[bool, str]:
    """How many rows of a block stay: compiled, launched, captured."""
    kernel, block = make_kernel("count_staying", (("B", 64),), "float64", 4, 1), 64
    staying = torch.arange(SIZE) % 3 == 0
    given = {
        "index_ptr": torch.arange(SIZE), "group_ptr": torch.arange(SIZE), "done_ptr": (~staying).to(torch.int8),
        "count_ptr": torch.tensor([SIZE]), "blocks_ptr": torch.zeros(16, dtype=torch.int64),
    }  # fmt: skip
    tensors = {p: v.to(setting.device) for p, v in given.items()}
    run = load.function(kernel)[-(-SIZE // block), 1]
    want = torch.stack([part.sum() for part in staying.split(block)])
    for how, launch in (("launched", lambda call: call()), ("captured", lambda call: _capture(setting, call))):
        tensors["blocks_ptr"].fill_(-1)
        launch(lambda: run(*(tensors[p] for p in kernel.parameters), **kernel.options, **FUSION))
        if not torch.equal(tensors["blocks_ptr"].cpu(), want):
            return False, f"wrong numbers where it is {how}"
    return True, "compiled, launched, captured"


def _products(setting: Setting) -> tuple[bool, str]:
    right = setting.device.type != "cuda" or plain_products(setting.device)
    return (
        right,
        "full precision" if right else "torch's float32 products are of reduced precision: unset TF32 overrides in the environment",
    )


CHECKS: dict[str, dict[str, Check]] = {
    "driver": {"device": _device, "copies": _copies, "streams": _streams, "graph": _graph},
    "triton": {"version": _version, "kernel": _kernel, "products": _products},
}


# ---- kernels of every family ----------------------------------------------------------------------------------


def _rows(setting: Setting) -> Iterator[Row]:
    """The worst of each family's launches, in the last program of neurons and the query of networks that have them all."""
    worst: dict[str, tuple[float, str, str]] = {}
    for name in ("tiny",) if setting.dry else ("tiny", "operators"):
        compiled = compile_net(NETWORKS[name]())
        warm([whole.engine_of(compiled, NUMERICS, setting)], replace(setting, end=time.time() + setting.left / 2))
        for program in list(compiled.plan)[-2:]:
            if setting.left < 0:
                break
            for row in whole.launches(Stage(compiled, program, NUMERICS, setting, rows=12 if setting.dry else 200)):
                found = row["fraction"], row["what"], name
                if row["step"] not in worst or not found[0] <= worst[row["step"]][0]:
                    worst[row["step"]] = found
    for step, (fraction, what, network) in worst.items():
        yield {"what": step, "fraction": fraction, "note": f"{what}, {network}"}


def _runs(setting: Setting) -> Iterator[Row]:
    compiled = compile_net(NETWORKS["tiny"]())
    for part in (whole.compare, whole.replay):
        for row in part(compiled, NUMERICS, setting):
            yield {"what": row["what"], "fraction": row["fraction"], "note": row.get("note", "")}


def _ascent(setting: Setting) -> Iterator[Row]:
    for row in ascent.compare("tiny", setting):
        yield {"what": row["what"], "fraction": row["fraction"], "note": row["note"]}


def _rounding(setting: Setting) -> Iterator[Row]:
    from bench.gpu import directed  # imports Triton, whose mode is chosen by then

    yield from directed.compare(setting)


def _interval(setting: Setting) -> Iterator[Row]:
    for layer, dtype in product(interval.SMALL if setting.dry else (*interval.SMALL, *interval.LARGE), interval.TYPES):
        fraction = interval.escape_share(layer, dtype, 8 if setting.dry else 512, setting.device)
        yield {"what": f"{layer.name} {str(dtype)[6:]}", "fraction": fraction}
    compiled = compile_net(NETWORKS["tiny"]())
    for numerics in whole.INTERVALS:
        for row in whole.compare_interval(compiled, numerics, setting):
            yield {"what": f"{row['what']} {numerics}", "fraction": row["fraction"], "note": row.get("note", "")}


def _machine_code(setting: Setting) -> Iterator[Row]:
    if setting.dry:
        yield {"what": "bits", "fraction": 0.0, "note": "there is no machine code in a dry run"}
    elif find_spec("msgspec") is None:  # a bare machine has what launches kernels, not what files them
        yield {"what": "bits", "fraction": 0.0, "verdict": "not run", "note": "artifacts need msgspec: pip install msgspec"}
    else:
        from bench.gpu import filed

        yield from filed.compare(setting, NUMERICS)


FAMILIES: dict[str, Callable[[Setting], Iterator[Row]]] = {
    "rows": _rows, "runs": _runs, "ascent": _ascent, "directed": _rounding, "interval": _interval, "filed": _machine_code,
}  # fmt: skip
