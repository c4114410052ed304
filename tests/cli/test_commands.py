"""The other commands, and one clear message for every plausible mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from safetensors.numpy import save_file

import polytriton
from polytriton.cli import main, spread
from polytriton.commands.groups import parse_size
from polytriton.errors import UsageError
from polytriton.ir.plan_text import parse_plan
from polytriton.ir.text import parse_net
from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.processes import plain_environment

ROOT = str(Path(__file__).parents[2])


# ---- compile ----------------------------------------------------------------------------------------------------


def test_compile(cli: Cli, here: Path) -> None:
    said = cli("compile", "net.onnx")
    assert (said.code, said.out) == (0, "net.poly\n")
    first = {p.name: p.read_bytes() for p in (here / "net.poly").iterdir()}
    assert cli("compile", "net.onnx", "--no-check").code == 0
    assert {p.name: p.read_bytes() for p in (here / "net.poly").iterdir()} == first


def test_compile_one_of_several_outputs(cli: Cli, here: Path) -> None:
    model = onnx.load(here / "net.onnx")
    model.graph.output.append(onnx.helper.make_tensor_value_info("h", onnx.TensorProto.FLOAT, [1, 4]))
    onnx.save(model, here / "two.onnx")
    assert cli("compile", "two.onnx", "--output", "h", "-o", "h.poly").code == 0
    assert json.loads(cli("inspect", "h.poly", "--json").out)["output"]["shape"] == [1, 4]
    assert cli("compile", "two.onnx", "--output", "z").code == 2


def test_dump_ir(cli: Cli, here: Path) -> None:
    (here / "net.ir").mkdir()
    (here / "net.ir" / "99-old.ptir").write_text("an earlier compiler's")
    (here / "net.ir" / "notes.txt").write_text("mine")
    said = cli("compile", "--dump-ir", "net.onnx")
    assert said.code == 0
    names = sorted(p.name for p in (here / "net.ir").iterdir())
    stages = ["import", "fold", "layout", "fold", "lower", "schedule", "charge", "memory"]
    assert names == [*(f"{k:02d}-{s}.ptir" for k, s in enumerate(stages)), "notes.txt"]
    assert parse_net((here / "net.ir" / "00-import.ptir").read_text()).nodes
    assert parse_plan((here / "net.ir" / "07-memory.ptir").read_text()).programs
    assert cli("compile", "net.onnx", "--dump-ir=all", "--dump-dir", "deep/er").code == 0
    assert len(list((here / "deep" / "er").iterdir())) == 8


def test_dump_one_pass(cli: Cli) -> None:
    said = cli("compile", "net.onnx", "--dump-ir=layout")
    assert parse_net(said.out).output
    assert "net.poly" in said.err
    assert parse_plan(cli("compile", "net.onnx", "--dump-ir=04-lower").out).programs


def test_debug_levels(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    for level in range(6):
        monkeypatch.setenv("POLYTRITON_DEBUG", str(level))
        said = cli("compile", "net.onnx")
        assert said.out == "net.poly\n"
        seen.append(said.err)
    assert seen[0] == ""
    assert "layers" in seen[1]
    assert "01-fold" in seen[2]
    assert "%x" in seen[3]
    assert "differs from onnxruntime" in seen[5]
    assert len(seen[1]) < len(seen[2]) < len(seen[3]) < len(seen[5])


# ---- inspect ----------------------------------------------------------------------------------------------------


def test_inspect(cli: Cli, poly: Path, here: Path) -> None:
    text = cli("inspect", poly).out
    assert cli("inspect", here / "net.onnx").out == text
    assert "1x1x2x2 -> 1x3, 35 parameters" in text
    assert "bytes a row" in text
    held = json.loads(cli("inspect", poly, "--json").out)
    assert [x["op"] for x in held["layers"]] == ["input", "linear", "relu", "linear"]
    assert held["programs"][-1]["kind"] == "query"
    assert held["programs"][-1]["bytes_per_row"] > 0
    net, plan = cli("inspect", poly, "--ir").out.split("\n\n")
    assert parse_net(net).nodes
    assert parse_plan(plan).programs


def test_operators(cli: Cli) -> None:
    text = cli("inspect", "--operators").out
    assert "Conv " in text
    assert {r["operator"] for r in json.loads(cli("inspect", "--operators", "--json").out)} >= {"Gemm", "Conv", "Relu", "MaxPool"}


# ---- opt --------------------------------------------------------------------------------------------------------


def test_opt_repeats_the_compiler(cli: Cli, poly: Path) -> None:
    text = (poly / "net.ptir").read_text()
    assert cli("opt", poly / "net.ptir").out == text
    assert cli("opt", poly / "net.ptir", "-p", "fold,layout,fold").out == text
    said = cli("opt", poly / "net.ptir", "-p", "lower,schedule,charge,memory")
    assert said.out == (poly / "plan.ptir").read_text()
    assert said.err == ""


EVERY = """net @every(%x: f32[2x6x6]) -> f32[5] {
  %c = conv %x {w=@cw, b=@cb, k=3x3, p=1,1,1,1, g=2} : f32[4x6x6]
  %s = scale %c {a=@sa, c=@sc} : f32[4x6x6]
  %r = relu %s : f32[4x6x6]
  %d = conv %r {w=@dw, b=@db, k=1x1, babs=@dm, slack=1} : f32[4x6x6]
  %a = add %d, %r : f32[4x6x6]
  %t = transpose %a {perm=1,2,0} : f32[6x6x4]
  %f = reshape %t {to=144} : f32[144]
  %l = linear %f {w=@lw, b=@lb} : f32[5]
  return %l
}
"""


def test_opt_makes_weights_up(cli: Cli, here: Path) -> None:
    (here / "every.ptir").write_text(EVERY)
    said = cli("opt", "every.ptir", "-p", "fold, layout, fold, lower, schedule, charge, memory")
    assert "random numbers" in said.err
    assert parse_plan(said.out).query.target == "l"
    assert cli("opt", "every.ptir", "-p", "fold,layout,fold").out.startswith("net @every")
    shown = cli("opt", "every.ptir")
    assert cli("opt", "every.ptir").out == shown.out
    assert parse_net(shown.out) == parse_net(EVERY)


def test_opt_mistakes(cli: Cli, here: Path) -> None:
    (here / "every.ptir").write_text(EVERY)
    (here / "bad.ptir").write_text("net")
    (here / "bytes.ptir").write_bytes(b"\xff\xfe")
    save_file({"cw": np.zeros(3, np.float32)}, here / "w.safetensors")
    (here / "no.safetensors").write_bytes(b"?")
    for args, code, word in [
        (["none.ptir"], 2, "cannot read"),
        (["bad.ptir"], 3, "not a net"),
        (["bytes.ptir"], 2, "no text"),
        (["every.ptir", "-p", "lower"], 2, "cannot run"),
        (["every.ptir", "-p", "tidy"], 2, "no pass 'tidy'"),
        (["every.ptir", "-p", "memory"], 2, "works on a plan"),
        (["every.ptir", "-p", "fold,layout,fold,lower,fold"], 2, "works on a network"),
        (["every.ptir", "-p", "fold,layout,fold,lower,schedule", "--candidates", "some"], 2, "unknown"),
        (["every.ptir", "--weights", "w.safetensors"], 3, "does not fit kernel"),
        (["every.ptir", "--weights", "no.safetensors"], 2, "no safetensors"),
        (["every.ptir", "--weights", "none.safetensors"], 2, "cannot read"),
    ]:
        said = cli("opt", *args)
        assert (said.code, word in said.err) == (code, True), (args, said)


# ---- mistakes ---------------------------------------------------------------------------------------------------


def _prepare(here: Path) -> None:
    tiny.unsupported(here / "cosh.onnx")
    tiny.vnnlib(here / "five.vnnlib", [(0, 1)] * 5, "(<= Y_0 Y_1)")
    tiny.vnnlib(here / "inverted.vnnlib", [(1, 0)] * 4, "(<= Y_0 Y_1)")
    tiny.vnnlib(here / "square.vnnlib", [(0, 1)] * 4, "(<= (* Y_0 Y_0) Y_1)")
    (here / "broken.vnnlib").write_text("(declare-const X_0")
    (here / "broken.onnx").write_bytes((here / "net.onnx").read_bytes()[:-40])
    (here / "empty.csv").write_text("\n")
    (here / "lost.csv").write_text("net.onnx,lost.vnnlib,5\n")
    (here / "slow.csv").write_text("net.onnx,safe.vnnlib,soon\n")
    pixels = np.full((2, 1, 2, 2), 0.5)
    np.savez(here / "ok.npz", images=pixels, labels=[0, 1])
    np.savez(here / "label.npz", images=pixels, labels=[0, 7])
    np.savez(here / "bytes.npz", images=pixels * 255, labels=[0, 1])
    np.savez(here / "big.npz", images=np.zeros((2, 3, 4, 4)), labels=[0, 1])
    np.savez(here / "none.npz", images=np.zeros((0, 1, 2, 2)))
    (here / "torn.npz").write_bytes((here / "ok.npz").read_bytes()[:100])
    (here / "folder").mkdir()


BALL = ["run", "net.poly", "--epsilon", "0.1", "--images"]
PROP = ["run", "net.poly", "--vnnlib", "safe.vnnlib"]
MISTAKES = [
    (["compile"], 2, "NET.onnx"),
    (["compile", "none.onnx"], 2, "none.onnx"),
    (["compile", "broken.onnx"], 2, "not an ONNX model"),
    (["compile", "folder"], 2, "not a file"),
    (["compile", "cosh.onnx"], 3, "Cosh"),
    (["compile", "net.onnx", "-o", "folder/x/net.poly"], 2, "no folder"),
    (["compile", "net.onnx", "-o", "ok.npz"], 2, "not overwritten"),
    (["compile", "net.onnx", "-o", "net.onnx"], 2, "looks like a model"),
    (["compile", "net.onnx", "--candidates", "best"], 2, "all, input"),
    (["compile", "net.onnx", "--dump-ir=tidy"], 2, "no such pass"),
    (["compile", "net.onnx", "--dump-ir", "--dump-dir", "ok.npz"], 2, "cannot write the IR"),
    (["compile", "net.onnx", "--dump-dir", "d"], 2, "--dump-ir"),
    (["compile", "net.onnx", "--output", "q"], 2, "'y'"),
    (["compile", "net.onnx", "--frobnicate"], 2, "--frobnicate"),
    (["frobnicate"], 2, "frobnicate"),
    (["inspect"], 2, "which network"),
    (["inspect", "none.poly"], 2, "no artifact"),
    (["inspect", "none.onnx"], 2, "no network"),
    (["inspect", "folder"], 2, "not an artifact"),
    (["inspect", "cosh.onnx"], 3, "Cosh"),
    (["verify", "net.onnx"], 2, "PROP.vnnlib"),
    (["verify", "net.onnx", "none.vnnlib"], 2, "none.vnnlib"),
    (["verify", "none.onnx", "safe.vnnlib"], 2, "none.onnx"),
    (["verify", "cosh.onnx", "safe.vnnlib"], 3, "Cosh"),
    (["verify", "net.onnx", "five.vnnlib"], 3, "another network"),
    (["verify", "net.onnx", "inverted.vnnlib"], 3, "inverted box"),
    (["verify", "net.onnx", "square.vnnlib"], 3, "square"),
    (["verify", "net.onnx", "broken.vnnlib"], 3, "broken"),
    (["verify", "safe.vnnlib", "net.onnx"], 2, "verify net.onnx safe.vnnlib"),
    (["run"], 2, "one kind of queries"),
    (["run", "net.poly"], 2, "one kind of queries"),
    (["run", "--vnnlib", "safe.vnnlib"], 2, "which network"),
    ([*PROP, "--images", "ok.npz", "--epsilon", "1"], 2, "one kind of queries"),
    (["run", "net.poly", "--vnnlib", "none.vnnlib"], 2, "none.vnnlib"),
    (["run", "none.poly", "--vnnlib", "safe.vnnlib"], 2, "no artifact"),
    (["run", "net.poly", "--instances", "empty.csv"], 2, "lists no instances"),
    (["run", "net.poly", "--instances", "none.csv"], 2, "none.csv"),
    (["run", "--instances", "lost.csv"], 2, "lost.vnnlib"),
    (["run", "--instances", "slow.csv"], 2, "no timeout"),
    ([*PROP, "--device", "abacus"], 2, "use cpu, cuda"),
    ([*PROP, "--device", "cuda"], 2, "no CUDA GPU"),
    ([*PROP, "--semantics", "float8"], 2, "bf16"),
    ([*PROP, "--dtype", "float16"], 2, "auto, float32, float64"),
    ([*PROP, "--candidates", "best"], 2, "all, input"),
    ([*PROP, "--memory", "lots"], 2, "no size"),
    ([*PROP, "--memory", "5"], 2, "too small"),
    ([*PROP, "--threads", "0"], 2, "--threads"),
    ([*PROP, "--threads", "many"], 2, "--threads"),
    ([*PROP, "--timeout", "0"], 2, "--timeout"),
    ([*PROP, "--timeout", "nan"], 2, "--timeout"),
    ([*PROP, "--seed", "-1"], 2, "--seed"),
    ([*PROP, "--resume"], 2, "results file"),
    ([*PROP, "--resume", "--json", "-"], 2, "results file"),
    ([*PROP, "--json", "a", "--resume", "--overwrite"], 2, "exclude"),
    ([*PROP, "--json", "a", "--csv", "a"], 2, "same file"),
    ([*PROP, "--json", "nowhere/a"], 2, "cannot write results"),
    ([*PROP, "--csv", "folder"], 2, "cannot write results"),
    ([*PROP, "--mean", "0.5"], 2, "--mean belongs to --images"),
    (["run", "net.poly", "--images", "ok.npz"], 2, "--epsilon"),
    (["run", "net.poly", "--images", "ok.npz", "--epsilon", "2"], 2, "2/255"),
    (["run", "net.poly", "--images", "ok.npz", "--epsilon", "2%"], 2, "no epsilon"),
    (["run", "net.poly", "--images", "ok.npz", "--epsilon", "-0.1"], 2, "negative"),
    (["run", "--images", "ok.npz", "--epsilon", "0.1"], 2, "which network"),
    ([*BALL, "lost.npz"], 2, "lost.npz"),
    ([*BALL, "torn.npz"], 2, "torn.npz"),
    ([*BALL, "none.npz"], 2, "no images"),
    ([*BALL, "big.npz"], 2, "48 pixels"),
    ([*BALL, "label.npz"], 2, "label 7"),
    ([*BALL, "bytes.npz"], 2, "--scale 1/255"),
    ([*BALL, "net.onnx"], 2, "no image file"),
    ([*BALL, "ok.npz", "--label", "3"], 2, "label 3"),
    ([*BALL, "ok.npz", "--label", "-1"], 2, "label -1"),
    ([*BALL, "ok.npz", "--targets", "3"], 2, "target 3"),
    ([*BALL, "ok.npz", "--targets", "one"], 2, "no label"),
    ([*BALL, "ok.npz", "--start", "2"], 2, "holds 0 to 2"),
    ([*BALL, "ok.npz", "--end", "9"], 2, "holds 0 to 2"),
    ([*BALL, "ok.npz", "--clip", "1,0"], 2, "no range"),
    ([*BALL, "ok.npz", "--clip", "0"], 2, "no range"),
    ([*BALL, "ok.npz", "--clip", "0.6,1"], 2, "clip"),
    ([*BALL, "ok.npz", "--mean", "0.5,0.5", "--std", "1,1"], 2, "1 channel"),
    ([*BALL, "ok.npz", "--std", "0"], 2, "above 0"),
    ([*BALL, "ok.npz", "--mean", "x"], 2, "no number"),
    ([*BALL, "ok.npz", "--layout", "whc"], 2, "chw or hwc"),
]  # fmt: skip


def test_every_mistake_is_one_clear_message(cli: Cli, poly: Path, here: Path) -> None:
    _prepare(here)
    files = sorted(p.name for p in here.iterdir())
    wrong = []
    for args, code, word in MISTAKES:
        if "cuda" in args and torch.cuda.is_available():
            continue
        said = cli(*args)
        if said.code != code or word not in said.err or said.out or said.err.count("remedy: ") != 1:
            wrong.append((args, code, word, said))
    assert not wrong, "\n".join(map(str, wrong))
    assert [p for p in sorted(p.name for p in here.iterdir()) if p not in files] in ([], ["cache"])


def test_a_wrong_debug_level(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTRITON_DEBUG", "loud")
    said = cli("--version")
    assert said.code == 2
    assert "POLYTRITON_DEBUG" in said.err


def test_damaged_artifacts(cli: Cli, poly: Path) -> None:
    data = (poly / "weights.safetensors").read_bytes()
    (poly / "weights.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for args in (["inspect", poly], ["run", poly, "--vnnlib", "safe.vnnlib"], ["verify", poly, "safe.vnnlib"]):
        said = cli(*args)
        assert said.code == 2
        assert "weights.safetensors is damaged" in said.err
        assert "polytriton compile" in said.err


# ---- the whole program ------------------------------------------------------------------------------------------


def program(*args: str, **more: object) -> subprocess.CompletedProcess[str]:
    env = plain_environment()
    return subprocess.run([sys.executable, "-m", "polytriton.cli", *args], capture_output=True, text=True, env=env, timeout=60, **more)  # type: ignore[call-overload,no-any-return]


def test_help_needs_no_torch() -> None:
    code = (
        "import sys; from polytriton.cli import main\n"
        "for args in ([], ['--help'], ['run', '--help'], ['--version'], ['compile']): main(args)\n"
        "print('torch' in sys.modules or 'onnx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain_environment(), check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "Usage: polytriton" in done.stdout


def test_version_and_exit_code(here: Path) -> None:
    done = program("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"polytriton {polytriton.__version__}\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written() -> None:
    with open("/dev/full", "w") as full:
        env = plain_environment()
        args = [sys.executable, "-m", "polytriton.cli", "supports", "--vnnlib-versions"]
        done = subprocess.run(args, stdout=full, stderr=subprocess.PIPE, text=True, env=env, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("polytriton: no space left")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_option_lists() -> None:
    assert spread(["run", "--vnnlib", "a.vnnlib", "b.vnnlib.gz", "net.poly"]) == [
        "run",
        "--vnnlib",
        "a.vnnlib",
        "--vnnlib",
        "b.vnnlib.gz",
        "net.poly",
    ]
    assert spread(["run", "net.poly", "--vnnlib", "odd", "b.vnnlib", "--json", "c.vnnlib"]) == [
        "run", "net.poly", "--vnnlib", "odd", "--vnnlib", "b.vnnlib", "--json", "c.vnnlib"
    ]  # fmt: skip
    assert spread(["run", "--vnnlib=a", "b.vnnlib"]) == ["run", "--vnnlib=a", "--vnnlib", "b.vnnlib"]
    assert spread(["compile", "--dump-ir", "net.onnx"]) == ["compile", "--dump-ir=all", "net.onnx"]
    assert spread(["verify", "net.onnx", "a.vnnlib"]) == ["verify", "net.onnx", "a.vnnlib"]
    assert spread(["verify", "--", "--dump-ir"]) == ["verify", "--", "--dump-ir"]


def test_sizes() -> None:
    for text, size in (
        ("500M", 500 << 20),
        ("2G", 2 << 30),
        ("1.5g", 3 << 29),
        ("64 MiB", 64 << 20),
        ("4096", 4096),
        ("10kb", 10240),
        ("1B", 1),
    ):
        assert parse_size(text) == size
    for bad in ("", "G", "2X", "-1G", "1e9", "2 G G"):
        with pytest.raises(UsageError):
            parse_size(bad)


def test_main_without_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "Usage" in capsys.readouterr().out
