"""What a command loads before it can answer: modules are counted, since time is the machine's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polytriton.commands.options import Odd, option, read
from polytriton.errors import UsageError
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]
HEAVY = {"sympy", "networkx", "numba", "scipy", "typer", "click", "pydantic", "rich", "pandas", "ray", "triton", "matplotlib"}
COUNT = """
import sys
from polytriton.cli import main
code = main(sys.argv[1:])
found = sorted({name.partition(".")[0] for name in sys.modules})
print(code, len(sys.modules), *found, sep=",", file=sys.stderr)
"""


def loaded(*args: object, cwd: Path) -> tuple[int, set[str]]:
    """How many modules a command has loaded at its end, and which packages."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    env |= {"PYTHONPATH": str(ROOT), "POLYTRITON_CACHE": str(cwd / "cache")}
    done = subprocess.run([sys.executable, "-c", COUNT, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    code, count, *found = done.stderr.splitlines()[-1].split(",")
    assert code == "0", done.stderr
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


def test_a_warm_verify_loads_what_it_uses(cli: Cli, here: Path) -> None:
    """Undecided neurons are bounded here, so what bounding needs is loaded too."""
    for name in ("digits_conv_normal.onnx", "digits_resnet_normal.onnx"):
        (here / name).write_bytes((ROOT / "examples" / name).read_bytes())
    for name in ("digits_conv_normal_14_0.01", "digits_resnet_normal_7_0.01"):
        prop = ROOT / "examples" / "specs" / f"{name}.vnnlib"
        net = f"{name.rpartition('_')[0].rpartition('_')[0]}.onnx"
        assert cli("verify", net, prop).out == "unsat\n"  # into the cache
        torch, _ = loaded_by("import torch")
        count, found = loaded("verify", net, prop, cwd=here)
        assert not found & {"onnxruntime", *HEAVY} - loaded_by("import torch")[1]
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
    assert not found & {"torch", "onnxruntime", "msgspec", *HEAVY}
    assert count < 480
    for options in ((), ("--text",), ("--json",)):
        count, found = loaded("report", "r.jsonl", *options, cwd=here)
        assert not found & {"torch", "onnx", "onnxruntime", *HEAVY}
        assert count < 340


# ---- lines that are read without the parser's library -----------------------------------------------------------


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
    said = cli("run", poly, "--images", "none.npz", "--epsilon", "1/255", "--epsilon", "2/255")
    assert (said.code, "--epsilon is given twice" in said.err) == (2, True)
