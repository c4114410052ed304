"""What a command loads before it can answer: modules are counted, since time is the machine's."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import time
from inspect import isfunction, signature
from pathlib import Path
from typing import Optional, get_type_hints

import pytest

from polytriton.commands.options import Odd, option, read
from polytriton.errors import UsageError
from tests.cli import tiny
from tests.cli.conftest import Cli
from tests.processes import plain_environment

ROOT = Path(__file__).parents[2]
HEAVY = {"sympy", "networkx", "numba", "scipy", "typer", "click", "pydantic", "rich", "pandas", "ray", "triton", "matplotlib"}
COUNT = """
import sys
from polytriton.cli import main
code = main(sys.argv[1:])
found = sorted({name.partition(".")[0] for name in sys.modules})
print(code, len(sys.modules), *found, sep=",", file=sys.stderr)
"""


def loaded(*args: object, cwd: Path, code: str = "0") -> tuple[int, set[str]]:
    """How many modules a command has loaded at its end, and which packages."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT), "POLYTRITON_CACHE": str(cwd / "cache")}
    done = subprocess.run([sys.executable, "-c", COUNT, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    ended, count, *found = done.stderr.splitlines()[-1].split(",")
    assert ended == code, done.stderr
    return int(count), set(found)


@pytest.mark.parametrize(
    "args, most, allowed",
    [
        (["--version"], 160, set()),
        (["--name"], 160, set()),
        (["--help"], 330, {"typer", "click"}),
        (["verify", "--help"], 420, {"typer", "click", "pydantic"}),
        (["supports", "--vnnlib-versions"], 420, {"onnx", "numpy"}),
    ],
)
def test_what_asks_nothing_of_a_network_loads_little(here: Path, args: list[str], most: int, allowed: set[str]) -> None:
    count, found = loaded(*args, cwd=here)
    assert not found & ({"torch", "onnxruntime", "numpy", "onnx", "msgspec", *HEAVY} - allowed)
    assert count < most


@pytest.mark.parametrize(
    "line",
    [
        "verify net.onnx", "verify safe.vnnlib net.onnx", "verify net.onnx lost.vnnlib", "verify net.onnx safe.vnnlib --timeout=-1", "run",
        "run net.onnx --images ok.npz", "run --instances lost.csv", "compile .", "reach net.onnx", "reach net.onnx --box=0,1 -o reach.png",
        "tune net.onnx",
    ],
)  # fmt: skip
def test_wrong_usage_is_told_before_the_engine_is_loaded(here: Path, line: str) -> None:
    count, found = loaded(*line.split(), cwd=here, code="2")
    assert not found & {"torch", "onnx", "onnxruntime", *HEAVY}
    assert count < 450


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits_resnet_normal_7_0.01", "digits_conv_normal_14_0.01"])
def test_a_warm_verify_loads_what_it_uses(name: str, cli: Cli, here: Path) -> None:
    """Undecided neurons are bounded here, so what bounding needs is loaded too."""
    prop = ROOT / "examples" / "specs" / f"{name}.vnnlib"
    net = f"{name.rpartition('_')[0].rpartition('_')[0]}.onnx"
    (here / net).write_bytes((ROOT / "examples" / net).read_bytes())
    assert cli("verify", net, prop).out == "unsat\n"  # into the cache
    torch, theirs = loaded_by("import torch")
    count, found = loaded("verify", net, prop, cwd=here)
    assert not found & {"onnxruntime", *HEAVY} - theirs
    assert count < torch + 450


def loaded_by(code: str) -> tuple[int, set[str]]:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    code += "; import sys; print(len(sys.modules), *{n.partition('.')[0] for n in sys.modules}, sep=',')"
    count, *found = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.split(",")
    return int(count), {f.strip() for f in found}


def test_checking_and_reporting_need_no_torch(cli: Cli, here: Path) -> None:
    certificate = ("verify", "net.onnx", "safe.vnnlib", "--semantics", "real", "--certificate", "net.cert", "--json", "r.jsonl")
    assert cli(*certificate).out == "unsat\n"
    count, found = loaded("check", "net.onnx", "safe.vnnlib", "net.cert", cwd=here)
    assert not found & {"torch", "onnxruntime", "onnx", "ml_dtypes", "msgspec", *HEAVY}
    assert count < 370
    for options in ((), ("--text",), ("--json",)):
        count, found = loaded("report", "r.jsonl", *options, cwd=here)
        assert not found & {"torch", "onnx", "onnxruntime", *HEAVY}
        assert count < 340


# ---- lines that are read without the parser's library -----------------------------------------------------------


def test_options_are_read_as_written_on_every_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.10 wraps an annotation whose default is None in a union with None, under which no description was found."""
    from polytriton.commands import flatten, run

    plain = get_type_hints

    def older(thing: object, **how: bool) -> dict[str, object]:
        none = {k for k, p in signature(thing).parameters.items() if p.default is None} if isfunction(thing) else set()
        return {k: Optional[v] if k in none else v for k, v in plain(thing, **how).items()}  # noqa: UP045  # X | None is another type

    wanted = signature(flatten.flatten_groups(run.run))
    monkeypatch.setattr(flatten, "get_type_hints", older)
    open_ = {p.name for p in signature(run.run).parameters.values() if p.default is None}
    assert open_ == {"network", "vnnlib", "instances", "certificates"}
    assert signature(flatten.flatten_groups(run.run)) == wanted
    assert read(flatten.flatten_groups(run.run), ["--instances", "list.csv"])["instances"] == Path("list.csv")


def words(file: object, many: object, epsilon: object, keep: object, count: object, seconds: object) -> int:
    return 0


@pytest.fixture
def command() -> object:
    from inspect import Parameter, signature
    from typing import Annotated

    from polytriton.commands.options import argument

    own = {
        "file": (Annotated[Path, argument("FILE", "")], Parameter.empty),
        "many": (Annotated[list[str] | None, option("--many", help="")], None),
        "epsilon": (Annotated[str | None, option("-e", "--epsilon", help="")], None),
        "keep": (Annotated[bool, option("--keep/--no-keep", help="")], True),
        "count": (Annotated[int, option("--count", help="")], 3),
        "seconds": (Annotated[float | None, option("--seconds", help="")], None),
    }
    seen = [Parameter(n, Parameter.KEYWORD_ONLY, default=d, annotation=a) for n, (a, d) in own.items()]
    words.__signature__ = signature(words).replace(parameters=seen)  # type: ignore[attr-defined]
    return words


@pytest.mark.parametrize(
    "line, wanted",
    [
        ("a", {}),
        ("a --many x --many=y", {"many": ["x", "y"]}),
        ("--epsilon 2/255 a", {"epsilon": "2/255"}),
        ("-e 1 a --no-keep --count 7", {"epsilon": "1", "keep": False, "count": 7}),
        ("a --keep --no-keep --keep", {"keep": True}),
        ("a --seconds 1e-3", {"seconds": 1e-3}),
        ("--epsilon= -- a", {"epsilon": ""}),
    ],
)
def test_plain_lines(command: object, line: str, wanted: dict[str, object]) -> None:
    default = {"file": Path("a"), "many": None, "epsilon": None, "keep": True, "count": 3, "seconds": None}
    assert read(command, line.split()) == {**default, **wanted}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "line", ["", "a b", "a --help", "a --count x", "a --count", "a --keep=1", "a -e=1", "a --epsilon -1", "a --seconds nan", "a --epsilo 1"]
)
def test_other_lines_are_the_librarys(command: object, line: str) -> None:
    with pytest.raises(Odd):
        read(command, line.split())  # type: ignore[arg-type]


def test_a_value_given_twice_is_a_mistake(command: object, cli: Cli, poly: Path) -> None:
    with pytest.raises(UsageError, match="--epsilon is given twice"):
        read(command, ["a", "--epsilon", "1", "--epsilon", "2"])  # type: ignore[arg-type]
    said = cli("run", poly, "--images", "none.npz", "--epsilon", "1/255", "--seed", "1", "--seed", "2")
    assert (said.code, "--seed is given twice" in said.err) == (2, True)


# ---- the clock, and threads that wait -----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_clock_starts_with_the_program(here: Path) -> None:
    code = "import time; time.sleep(1.5); from polytriton.commands.clock import process_start; print(time.monotonic() - process_start())"
    env = plain_environment()
    said = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert float(said) >= (1.5 if sys.platform.startswith("linux") else 0)
    tiny.zero(here / "zero.onnx")
    tiny.hard(here / "hard.vnnlib")
    env |= {"POLYTRITON_CACHE": str(here / "cache")}
    begun = time.monotonic()
    line = [sys.executable, "-m", "polytriton.cli", "verify", "zero.onnx", "hard.vnnlib", "--timeout", "0.01", "--json", "r.jsonl"]
    done = subprocess.run(line, cwd=here, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "timeout\n"
    assert json.loads((here / "r.jsonl").read_text())["seconds"] < min(0.5, time.monotonic() - begun)  # imports alone were longer


def test_threads_without_work_sleep(here: Path) -> None:
    code = "import os, sys; from polytriton.cli import main; main(['--version'])"
    code += "; print(*map(os.environ.get, ('OMP_WAIT_POLICY', 'OPENBLAS_THREAD_TIMEOUT')), bool({'torch', 'numpy'} & {*sys.modules}))"
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "KMP_", "GOMP_", "OPENBLAS_"))} | {"PYTHONPATH": str(ROOT)}
    for more, policy in (
        ({}, "PASSIVE 4"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE 4"), ({"GOMP_SPINCOUNT": "9"}, "None 4"),
        ({"OPENBLAS_THREAD_TIMEOUT": "20"}, "PASSIVE 20"),
    ):  # fmt: skip
        said = subprocess.run([sys.executable, "-c", code], env={**env, **more}, capture_output=True, text=True, check=True).stdout
        assert said.splitlines()[-1] == f"{policy} False"


def test_the_package_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["polytriton", "--version"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module("polytriton", run_name="__main__")
    assert not ended.value.code
    assert capsys.readouterr().out.startswith("polytriton ")
