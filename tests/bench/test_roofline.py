"""Estimates without a GPU: the loop of a kernel, what it costs an SM, bytes, rows, and the command that prints them."""

from __future__ import annotations

import csv
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench.core.command import FAILED
from bench.core.table import slug
from bench.gpu.micro import MicroCase
from bench.gpu.stage import Note
from bench.nets import grow
from bench.roofline import __main__ as roofline
from bench.roofline import ascent as roofline_ascent
from bench.roofline import kernels as roofline_kernels
from bench.roofline import zoo as roofline_zoo
from bench.roofline.kernels import launches_of
from bench.roofline.model import Code, estimate, peak, traffic
from polytriton.arithmetic import ARITHMETICS
from polytriton.ir.plan import Step
from polytriton.kernels.choose import GPU
from polytriton.kernels.sass import occupancy
from polytriton.kernels.sass_loop import LANES, MATRIX, inner_loop, mix, pipe_cycles, read
from polytriton.kernels.spec import Report
from polytriton.tuning.device import SHEETS

H100 = SHEETS["cuda:90"]
SASS = """
        Function : conv_step_0
        /*0000*/                   LDC R1, c[0x0][0x28] ;                /* 0x00000a00ff017b82 */
        /*0010*/                   DMMA.16x8x16 R8, R4, R6, R8 ;         /* 0x0 */
        /*0020*/                   IMAD R2, R2, 0x4, RZ ;
        /*0030*/              @!PT LDS RZ, [RZ] ;
        /*0040*/                   LDS.64 R4, [R2] ;
        /*0050*/                   LDGSTS.E.BYPASS.128 [R25], desc[UR8][R16.64], P3 ;
        /*0060*/                   DMMA.16x8x16 R8, R4, R6, R8 ;
        /*0070*/                   UIADD3 UR4, UR4, 0x1, URZ ;
        /*0080*/              @!P0 BRA 0x20 ;
        /*0090*/                   DADD R8, R8, R10 ;
        /*00a0*/               @P1 BRA 0x10 ;
        /*00b0*/               @P1 BRA.U 0xd0 ;
        /*00c0*/                   EXIT ;
        /*00d0*/                   BRA 0xd0;
"""


def needs_triton() -> None:
    if find_spec("triton") is None:
        pytest.skip("Triton is not installed")


# ---- machine code -----------------------------------------------------------------------------------------------------


def test_the_loop_around_the_matrix_instructions_is_found() -> None:
    code = read(SASS)
    assert len(code) == 14
    assert mix(code)["DMMA"] == 2
    outer = inner_loop(code, MATRIX)  # it holds both, the loop inside only one
    assert (outer[0].address, outer[-1].address) == (0x10, 0xA0)
    inner = inner_loop([i for i in code if i.address != 0x10], MATRIX)
    assert (inner[0].address, inner[-1].address) == (0x20, 0x80)
    assert inner_loop(code, ("HGMMA",)) == []
    assert inner_loop([i for i in code if i.base != "BRA"], MATRIX) == []


@pytest.mark.parametrize(
    "line, flops",
    [
        ("DMMA.8x8x4 R4, R2", 2 * 8 * 8 * 4),
        ("DMMA.16x8x16 R4, R2", 2 * 16 * 8 * 16),
        ("HGMMA.64x32x8.F32.TF32 R40, R72", 2 * 64 * 32 * 8 / 4),
        ("HMMA.1688.F32.TF32 R4, R2", 2 * 16 * 8 * 8),
        ("HMMA.16816.F32.BF16 R4, R2", 2 * 16 * 8 * 16),
        ("FFMA R1, R2, R3, R4", 0),
    ],
)
def test_a_matrix_instruction_tells_its_operations(line: str, flops: float) -> None:
    (found,) = read(f"        /*0000*/    {line} ;")
    assert found.flops == flops


def test_a_matrix_instruction_of_unknown_shape_is_refused() -> None:
    (found,) = read("        /*0000*/    HMMA.99.F32 R4, R2 ;")
    with pytest.raises(ValueError, match=r"HMMA\.99"):
        _ = found.flops


@pytest.mark.parametrize(
    "line, size",
    [
        ("LDS R1, [R2]", 128),
        ("LDS.U.128 R1, [R2]", 512),
        ("LDG.E.64 R1, [R2]", 256),
        ("LDS.U16 R1, [R2]", 64),
        ("STS.128 [R2], R4", 512),
        ("LDSM.16.M88.4 R4, [R2]", 512),
        ("LDSM.16.MT88.2 R4, [R2]", 256),
        ("LDGSTS.E.BYPASS.LTC128B.128 [R2], [R4.64]", 512),
        ("DADD R1, R2, R3", 0),
    ],
)
def test_a_load_tells_the_bytes_of_a_warp(line: str, size: int) -> None:
    (found,) = read(f"        /*0000*/    {line} ;")
    assert found.moved == size


def test_cycles_of_a_turn_by_hand() -> None:
    loop = inner_loop([i for i in read(SASS) if i.address != 0x10], MATRIX)
    cycles = pipe_cycles(loop, 8, LANES["cuda:90"], 256.0)
    assert cycles == {
        "issue": 8 * 7 / 4,  # seven instructions, four schedulers
        "float32": 8 * 32 / 64,  # one IMAD
        "port": 8 * (256 + 512) / 128,  # LDS.64 and LDGSTS.128; the LDS that never runs takes a slot alone
        "matrix": 8 * 4096 / 256,
    }


@pytest.mark.parametrize(
    "registers, shared, warps, live",
    [(32, 0, 8, 64), (64, 0, 4, 32), (105, 65536, 8, 16), (128, 0, 8, 16), (255, 0, 8, 8), (32, 100 << 10, 4, 8), (32, 228 << 10, 4, 0)],
)
def test_warps_that_live_on_an_h100(registers: int, shared: int, warps: int, live: int) -> None:
    """Values of NVIDIA's occupancy calculator."""
    assert occupancy("cuda:90", registers, shared, warps) == live


# ---- the model --------------------------------------------------------------------------------------------------------

TILES = replace(GPU, columns=64).product(ARITHMETICS["float64"], 0, 512, 512)
DENSE = Note("dense_step", {"K": 512, "N": 512, **TILES.constants}, {}, Step("linear", "f"), 0)
REPORT = Report("k", "cuda:90", 64, 0, 0, 0, 0, {}, 32, 1, 0.0, False)


def turn(**times: int) -> str:
    """A loop of these instructions."""
    lines = [f"        /*{16 * k:04x}*/    {name} R1, R2 ;" for k, name in enumerate(n for n, count in times.items() for _ in range(count))]
    return "\n".join([*lines, f"        /*{16 * len(lines):04x}*/    BRA 0x0 ;"]).replace("DMMA", "DMMA.16x8x16")


def test_peaks_are_the_data_sheets() -> None:
    peaks = [peak(H100, n) / 1e12 for n in ("float64", "float32", "tf32x3", "bf16x6")]
    assert peaks == pytest.approx([67, 67, 494 / 3, 2 * 494 / 6])


def test_a_loop_slows_a_product_by_what_its_busiest_pipe_takes() -> None:
    rows, perfect = 1 << 17, turn(DMMA=4)
    assert {k: DENSE.constants[k] for k in ("BM", "BN", "BK")} == {"BM": 64, "BN": 64, "BK": 16}

    def made(text: str, spill_loads: int = 0) -> float:
        code = Code(replace(REPORT, spill_loads=spill_loads), read(text))
        found = estimate(DENSE, 8, 0, "float64", rows, H100, "cuda:90", code)
        assert found.ops == 2 * rows * 512 * 512
        assert found.repeated == 1  # 8 warps times 4 instructions of 4096 operations are a tile of 64 x 64 x 16
        return found.seconds

    bare = estimate(DENSE, 8, 0, "float64", rows, H100, "cuda:90", None)
    assert bare.limit == "cache"  # 8 operations a byte at 7 TB/s
    assert bare.seconds == pytest.approx(2 * rows * 512 * 512 / 8 / 7e12, rel=0.05)
    assert made(perfect) == bare.seconds
    # 512 cycles of tensor cores a turn: 8 warps x 128 integer instructions at 64 lanes take as many, 256 twice as many
    slow = turn(DMMA=4, IADD3=256)
    found = estimate(DENSE, 8, 0, "float64", rows, H100, "cuda:90", Code(REPORT, read(slow)))
    assert found.pipes["integer"] == pytest.approx(0.5, rel=0.01)
    assert found.limit == "integer"
    assert found.seconds == pytest.approx(2 * (2 * rows * 512 * 512) / 67e12, rel=0.03)
    assert made(slow, spill_loads=4) > found.seconds


def test_a_loop_that_multiplies_twice_is_not_one_that_was_unrolled() -> None:
    split = ARITHMETICS["tf32x3"]
    note = replace(DENSE, constants={"K": 512, "N": 512, **GPU.product(split, 0, 512, 512).constants, "BM": 64})
    text = "\n".join(f"        /*{16 * k:04x}*/    HGMMA.64x32x8.F32.TF32 R1, R2 ;" for k in range(20)) + "\n        /*0140*/    BRA 0x0 ;"
    found = estimate(note, 8, 0, "tf32x3", 4096, H100, "cuda:90", Code(REPORT, read(text)))
    assert found.repeated == pytest.approx(5 / 3)  # 20 of 12 that a tile of 64 x 64 x 32 in three parts takes from two groups of warps
    unrolled = estimate(DENSE, 8, 0, "float64", 4096, H100, "cuda:90", Code(REPORT, read(turn(DMMA=8))))
    assert unrolled.repeated == 1


def test_a_pass_is_bound_by_memory_by_its_instructions_or_by_its_launch() -> None:
    note = Note("relax_rows", {"SIZE": 512, "BR": 1, "BQ": 512}, {}, Step("relu", "r"), 0)

    def made(moved: int, integers: int, occupancy: int = 32) -> tuple[float, str]:
        text = turn(LDG=1, IADD3=integers)
        code = Code(replace(REPORT, occupancy=occupancy), read(text))
        found = estimate(note, 4, moved, "float64", 1 << 16, H100, "cuda:90", code)
        return found.seconds, found.limit

    assert estimate(note, 4, 1 << 10, "float64", 8, H100, "cuda:90", None).limit == "launch"
    seconds, limit = made(10**9, 1)
    assert (limit, seconds) == ("memory", pytest.approx(1e9 / H100.bandwidth + H100.launch))
    assert made(10**9, 1, occupancy=8)[0] == pytest.approx(2e9 / H100.bandwidth + H100.launch)  # half the warps that hide latency
    assert made(10**8, 2000)[1] == "integer"
    assert made(10**9, 1, occupancy=0) == (float("inf"), "too large")


def test_bytes_of_a_launch_by_hand() -> None:
    case = MicroCase("dense", lambda: grow.dense_net(6, 5), 8, ("float64",), ("dense_step",))
    (timed,) = launches_of(case)
    assert set(timed.launch.bind) >= {"buf:0", "buf:1", "count:1"}
    rows, batch = 8, 2
    flat = sum(s.partition(":")[0] in ("image", "row_h", "row_w", "constant", "error", "index", "slot", "from") for s in timed.launch.bind)
    layer = 8 * (6 * 5 + 6)  # weights and bias of the step's layer
    tables = sum(s.partition(":")[0] in ("below", "above", "cut", "t") for s in timed.launch.bind)
    floors = sum(s.startswith("floor:") for s in timed.launch.bind)
    want = 8 * rows * (6 + 5) + 8 * rows * flat + layer + 8 * batch * 6 * tables + 8 * batch * floors + 8
    assert traffic(timed.launch, timed.launches, timed.frames, rows, batch, ARITHMETICS["float64"]) == want
    one = traffic(timed.launch, timed.launches, timed.frames, 1, 100, ARITHMETICS["float64"])
    assert one == 8 * (6 + 5) + 8 * flat + layer + 8 * 6 * tables + 8 * 100 * floors + 8  # a row reads its own image's tables


@pytest.mark.slow
@pytest.mark.parametrize("group", roofline_kernels.groups())
def test_every_case_of_the_microbenchmarks_becomes_launches(group: str) -> None:
    """The dry run on small sizes leaves most of them out."""
    for case in roofline_kernels.cases()[group]:
        found = launches_of(case)
        assert {t.numerics for t in found} == set(case.numerics), case.name
        assert {t.note.function for t in found} <= set(case.functions)


def test_goals_are_those_of_wide_convolutions_and_of_passes_over_many_rows() -> None:
    conv = Note("conv_step", {"CI": 64}, {}, Step("conv", "c"), 0)
    assert roofline_kernels.goal_of(conv, "float64", 4096) == 0.6
    assert roofline_kernels.goal_of(conv, "tf32x3", 4096) == 0.5
    assert roofline_kernels.goal_of(conv, "float32", 4096) is None
    assert roofline_kernels.goal_of(conv, "float64", 4095) is None
    assert roofline_kernels.goal_of(replace(conv, constants={"CI": 32}), "float64", 4096) is None
    assert roofline_kernels.goal_of(replace(conv, function="join_rows"), "float32", 4096) == 0.8


def test_a_turn_of_the_ascent_adds_up() -> None:
    """Launch by launch, its way back and its way forward have the same products, and its bytes by hand for one pass."""
    needs_triton()
    net, turn, kernels = roofline_ascent.turn_of(grow.tiny())
    assert {k.name for k in kernels} == {s.kernel.name for s in turn.steps}
    rows = list(roofline_ascent.rows("tiny", net, turn, {}, "cuda:90", domains=1000))
    *each, whole = rows
    assert whole["step"] == roofline_ascent.WHOLE and len(each) == len(turn.steps)
    for name in ("gflop", "mb", "microseconds"):
        assert whole[name] == pytest.approx(sum(float(r[name]) for r in each))
    back = sum(float(r["gflop"]) for r in each if r["step"] in ("dense_step", "conv_step"))
    forward = sum(float(r["gflop"]) for r in each if str(r["step"]).startswith("forward_"))
    assert back == pytest.approx(forward) and back > 0
    relu = next(n for n in net if n.op == "relu")
    climb = next(r for r in each if r["step"] == "climb_rows" and r["node"] == relu.name)
    floats = 2 + 2 + 2 * 3 + 2  # coefficients and points, boxes; slopes and moments, twice; what is kept
    assert float(climb["mb"]) * 1e6 == 1000 * (relu.size * (4 * floats + 1) + 1)
    assert 0 < float(whole["of_peak"]) < float(whole["of_roof"]) <= 1 and whole["goal"] == 0.5


# ---- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given, word", [(["kernel"], "no part 'kernel'"), (["zoo", "--only", "conv"], "no group 'conv'")])
def test_what_does_not_exist_is_refused(
    given: list[str], word: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.roofline", *given])
    with pytest.raises(SystemExit) as stop:
        roofline.main()
    assert stop.value.code == 2
    assert word in capsys.readouterr().err


def test_a_group_that_fails_leaves_a_row_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*given: object, **options: object) -> object:
        raise RuntimeError("broken")

    needs_triton()
    monkeypatch.setattr(roofline_zoo, "work", broken)
    monkeypatch.setattr("sys.argv", ["bench.roofline", "zoo", "--only", "resnet18-robust", "--out", str(tmp_path)])
    assert roofline.main() == FAILED
    with (tmp_path / "roofline_h100_estimate_zoo.csv").open(newline="") as f:
        (row,) = csv.DictReader(f)
    assert (row["network"], row["note"]) == ("resnet18-robust", "RuntimeError: broken")
    assert "estimated, not measured" in row["device"]
    assert "nothing was measured" in capsys.readouterr().out


@pytest.mark.slow
def test_one_case_from_its_cubin_to_its_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needs_triton()
    case = MicroCase("conv 64", lambda: grow.conv_net(64, 2, 3, 1), 4096, ("float64", "tf32x3"), ("conv_step", "relax_rows"), (False,))
    monkeypatch.setattr(roofline_kernels, "cases", lambda: {"conv": [case]})
    monkeypatch.setenv("POLYTRITON_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sys.argv", ["bench.roofline", "kernels", "--out", str(tmp_path)])
    assert roofline.main() == 0
    with (tmp_path / f"roofline_{slug('H100')}_estimate_kernels.csv").open(newline="") as f:
        rows = {(r["numerics"], r["step"]): r for r in csv.DictReader(f)}
    assert rows.keys() == {(n, s) for n in ("float64", "tf32x3") for s in ("conv_step", "relax_rows")}
    double, split, relax = (rows[k] for k in (("float64", "conv_step"), ("tf32x3", "conv_step"), ("float64", "relax_rows")))
    assert int(double["DMMA"]) > 0 and int(split["HGMMA"]) > 0
    for r in (double, split):
        assert 0 < float(r["of_code"]) < float(r["of_loop"]) < 1
        assert int(r["loop"]) > 0 and float(r["repeated"]) >= 1
        # a cell's tile goes through the taps that meet the window from there, no others; the Plan counts the ReLU on top
        assert float(r["useful"]) == pytest.approx(1, rel=0.02)
        assert 0 < float(r["of_peak"]) < 1 and r["reached"] == ("yes" if float(r["of_peak"]) >= float(r["goal"]) else "no")
    assert int(double["warps"]) == occupancy("cuda:90", int(double["registers"]), int(double["shared"]), 4)
    assert float(relax["of_memory"]) > 0.5 and float(relax["goal"]) == 0.8
