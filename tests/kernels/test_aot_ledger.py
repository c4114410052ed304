"""The ledger of compiled kernels: what it is asked, what it answers, and that a line that lies is found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import zoo
from polytriton.errors import KernelError, UsageError
from polytriton.frontend.onnx import load_onnx
from polytriton.ir.launches import Kernel
from polytriton.kernels.build import Built, Failed, compile_all
from polytriton.kernels.closure import plain
from polytriton.kernels.sass import occupancy
from polytriton.kernels.spec import Report
from tests.kernels import aot_ledger as ledger
from tests.kernels.aot_ledger import COMMAND, DIGITS, FIGURES, HERE, SAMPLE, SETS, TARGETS, TYPES, Ledger, Line
from tests.kernels.small_kernels import COPY, compiles, copy, spilling

HOPPER = "cuda:90"
ROOT = Path(__file__).parents[2]
GOOD = Report("", HOPPER, 32, 0, 0, 0, 0, {"DMMA": 0, "HGMMA": 0, "HMMA": 0, "FFMA": 0, "DFMA": 0}, 64, 0, 0.0, True)


pytestmark = compiles  # a digest is of the Triton that is installed


def kernel(n: int, **changes: Any) -> Kernel:
    return replace(copy(f"copy_{n}", c=n), **changes)


def tile() -> Kernel:
    """It spills."""
    return spilling("tile_2")


def book(kernels: Sequence[Kernel], **changes: Any) -> Ledger:
    lines = [Line.of(k, replace(GOOD, name=k.name, **changes)) for k in kernels]
    return Ledger(ledger.triton_version(), {n.digest: n for n in lines})


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what it was asked for; a kernel whose name ends in 13 it refuses."""
    heard: list[str] = []

    def compile_each(kernels: Sequence[Kernel], target: str, **_: Any) -> list[Built | Failed]:
        heard.extend(k.name for k in kernels)
        made = [Built(k, replace(GOOD, name=k.name, target=target), b"") for k in kernels]
        return [Failed(m.kernel, "refused") if m.kernel.name.endswith("_13") else m for m in made]

    monkeypatch.setattr(ledger, "compile_each", compile_each)
    monkeypatch.setattr(ledger, "compile_all", compile_each)
    return heard


# ---- the files ------------------------------------------------------------------------------------------------------


def test_committed_files_are_of_the_pinned_triton() -> None:
    pinned = re.search(r"^triton==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    files = {ledger.book_path(name, numerics, target) for name in SETS for numerics in TYPES for target in TARGETS}
    assert pinned and set(ledger.FOLDER.iterdir()) == files
    for file in files:
        found = ledger.read(file)
        assert found.triton == pinned[1], f"{file.name} is of Triton {found.triton}, constraints.txt has {pinned[1]}: {ledger.REFRESH}"
        assert len(found.lines) > 100 and all(len(digest) == DIGITS for digest in found.lines)
        assert {"conv_step", "relax_rows", "concretize_rows"} < {line.function for line in found.lines.values()}


def test_a_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    kernels = [kernel(n) for n in range(9)]
    counts = {**GOOD.instructions, "HGMMA": 10, "FFMA": 3}
    written, path = book(kernels, registers=77, spill_stores=3, instructions=counts), tmp_path / "a.csv"
    path.write_text(written.text())
    assert ledger.read(path) == written
    assert path.read_text().splitlines()[2:] == sorted(path.read_text().splitlines()[2:])
    line = written.find(kernels[4], HOPPER)
    assert line and line.report("copy_4", HOPPER) == replace(GOOD, name="copy_4", registers=77, spill_stores=3, instructions=counts)
    assert written.find(kernels[4], "cuda:80") is None


EDITS = {
    "a figure that is none": (",32,", ",x,"), "a figure too many": (",32,", ",32,32,"), "a figure less": (",32,", ","),
    "another head": ("# Triton", "Triton"), "a column less": (",blocks", ""), "an empty line": ("\ncopy", "\n\ncopy"),
    "not sorted": ("copy", "move"), "no end of line": (",\ncopy", ", copy"), "an instruction without its count": (",\n", ",DMMA\n"),
    "an instruction nobody counts": (",\n", ",IADD 3\n"), "nothing": (None, ""),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS)
def test_a_file_that_was_edited_is_refused(edit: str, tmp_path: Path) -> None:
    text, path = book([kernel(n) for n in range(3)]).text(), tmp_path / "a.csv"
    old, new = EDITS[edit]
    path.write_text(text.replace(old or text, new, 1))
    assert path.read_text() != text
    with pytest.raises(UsageError, match=r"a\.csv is not as it was written") as caught:
        ledger.read(path)
    assert COMMAND in caught.value.remedy
    with pytest.raises(UsageError, match="there is no ledger"):
        ledger.read(tmp_path / "b.csv")


# ---- which line is a kernel's ---------------------------------------------------------------------------------------


def test_a_digest_is_of_what_is_compiled() -> None:
    """Names, docstrings and comments are not; every token of code, the options and the types are."""
    one = kernel(1)
    body, load = "    at = tl.arange(0, 128)\n", "tl.load(a_ptr + at)"
    same = [
        replace(one, name="copy_9"),
        copy(text=COPY.replace(body, f'    """Says "so",\n\n    # in two lines."""\n{body}')),
        copy(text=COPY.replace(body, f"    # first\n\n{body.rstrip()}  # 128\n")),
    ]
    other = [
        replace(one, constants=(("C", 2),)),
        copy(text=COPY.replace("128", "256")),
        copy(text=COPY.replace(body, f'{body}    tl.device_assert(at < 9, "#1")\n')),
        copy(text=COPY.replace(body, f'{body}    tl.device_assert(at < 9, "#2")\n')),
        copy(text=COPY.replace(load, f"twice({load})"), before="@triton.jit\ndef twice(x):\n    return 2 * x"),
        copy(text=COPY.replace(load, f"twice({load})"), before="@triton.jit\ndef twice(x):\n    return x + x"),
        copy(text=COPY.replace(load, f"{load} * SCALE"), before="SCALE = tl.constexpr(2.0)"),
        copy(text=COPY.replace(load, f"{load} * SCALE"), before="SCALE = tl.constexpr(3.0)"),
        replace(one, warps=2),
        replace(one, stages=1),
        replace(one, types=("*fp64", "*fp64")),
        spilling(),
    ]
    digests = [ledger.digest(k, HOPPER) for k in other]
    assert {ledger.digest(k, HOPPER) for k in same} == {ledger.digest(one, HOPPER)}
    assert len({*digests, ledger.digest(one, HOPPER), ledger.digest(one, "cuda:80")}) == len(other) + 2


STRINGS = """a = '''x # y'''  # z
b = "\\"#", '#'

# "
c = g(
    '''asm;'''
    , 1)
""".replace("'''", '"""')
KEPT = """a = '''x # y'''
b = "\\"#", '#'
c = g(
    '''asm;'''
    , 1)""".replace("'''", '"""')


def test_strings_are_kept() -> None:
    assert plain(STRINGS) == KEPT


@pytest.mark.parametrize("name", ["mnist-6x500", "mnist-convbig"])
def test_kernels_are_the_same_whatever_the_weights(name: str) -> None:
    """So the ledger holds those of the robust networks too."""
    normal, robust = ([*ledger.needed([load_onnx(zoo.build(name, kind)).net], "float64")] for kind in zoo.KINDS)
    assert len(normal) > 10 and {k.name: k for k in normal} == {k.name: k for k in robust}


# ---- what the test of all networks does with it ---------------------------------------------------------------------


def test_missing_kernels_are_compiled_and_old_lines_counted(compiler: list[str], tmp_path: Path) -> None:
    kernels = [kernel(n) for n in range(5)]
    books = {target: Ledger(ledger.triton_version()) for target in TARGETS}
    books[HOPPER] = book([*kernels[:3], kernel(7), kernel(8)])
    assert ledger.prove(books, kernels, tmp_path) == (5 + 2, 2)
    assert sorted(compiler) == sorted([k.name for k in kernels] + ["copy_3", "copy_4"])
    assert ledger.prove({HOPPER: book(kernels)}, kernels, tmp_path) == (0, 0)


def test_too_many_missing_are_one_message(compiler: list[str], tmp_path: Path) -> None:
    kernels = [kernel(n) for n in range(HERE + 10)]
    assert ledger.prove({HOPPER: book(kernels[10:])}, kernels, tmp_path) == (10, 0)
    compiler.clear()
    with pytest.raises(KernelError, match=f"the ledger lacks {HERE + 1} of {HERE + 10} kernels") as caught:
        ledger.prove({HOPPER: book(kernels[:9])}, kernels, tmp_path)
    assert COMMAND in caught.value.remedy and not compiler


@pytest.mark.parametrize(
    "what, said",
    [
        ({"spill_loads": 2}, "copy_1: 2 loads and 0 stores"),
        ({"spill_stores": 1}, "copy_1: 0 loads and 1 stores"),
        ({"occupancy": 0}, "too large"),
    ],
)
def test_a_line_of_an_unfit_kernel_fails(what: dict[str, int], said: str, compiler: list[str], tmp_path: Path) -> None:
    kernels = [kernel(0), kernel(1)]
    found = book(kernels)
    bad = book(kernels[1:], **what)
    with pytest.raises(KernelError, match=said):
        ledger.prove({HOPPER: Ledger(found.triton, found.lines | bad.lines)}, kernels, tmp_path)
    assert not compiler


@pytest.mark.parametrize("target, wanted", [("cuda:80", "HMMA"), (HOPPER, "HGMMA")])
def test_a_line_without_the_instruction_fails(target: str, wanted: str, compiler: list[str], tmp_path: Path) -> None:
    asked = kernel(1, instruction="HGMMA")
    other = "HMMA" if wanted == "HGMMA" else "HGMMA"
    for counts, right in (({**GOOD.instructions, wanted: 3}, True), ({**GOOD.instructions, other: 3}, False)):
        line = Line.of(asked, replace(GOOD, target=target, instructions=counts))
        books = {target: Ledger(ledger.triton_version(), {line.digest: line})}
        if right:
            assert ledger.prove(books, [asked], tmp_path) == (0, 0)
        else:
            with pytest.raises(KernelError, match=f"copy_1: no {wanted}, but 3 {other}"):
                ledger.prove(books, [asked], tmp_path)
    assert not compiler


def test_another_triton_or_other_tools_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    here = ledger.triton_version()
    assert not ledger.unusable({HOPPER: Ledger(here)})
    assert f"Triton 3.0.0, {here}, here is {here}" in ledger.unusable({"cuda:80": Ledger("3.0.0"), HOPPER: Ledger(here)})
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/bin/true")
    assert "TRITON_PTXAS_PATH" in ledger.unusable({HOPPER: Ledger(here)})


def test_every_day_draws_other_lines(compiler: list[str]) -> None:
    kernels, drawn = [kernel(n) for n in range(100)], []
    for day in ("2020-01-01", "2020-01-01", "2020-01-02"):
        compiler.clear()
        assert not ledger.compiled_again(book(kernels), kernels, HOPPER, day)
        assert len(set(compiler)) == SAMPLE
        drawn.append(list(compiler))
    assert drawn[0] == drawn[1] != drawn[2]
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", ledger.today())


@pytest.fixture(scope="module")
def cubins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cubins")


@pytest.mark.slow
def test_a_line_that_lies_is_found(cubins: Path) -> None:
    """Against the compiler itself: every figure of a line counts."""
    kernels = [kernel(1), tile()]
    made = [m.report for m in compile_all(kernels, HOPPER, cache=cubins / "90")]
    right, true = (Line.of(k, r) for k, r in zip(kernels, made, strict=True))
    assert true.report("tile_2", HOPPER).spills == made[1].spills > 0
    assert true.report("tile_2", HOPPER).occupancy == occupancy(HOPPER, made[1].registers, made[1].shared, kernels[1].warps)
    spills = FIGURES.index("spill_loads")
    hidden = replace(true, figures=(*true.figures[:spills], 0, 0, *true.figures[spills + 2 :]), instructions=(("DMMA", 3),))
    assert hidden.digest == true.digest
    (text,) = ledger.compiled_again(Ledger(ledger.triton_version(), {n.digest: n for n in (right, hidden)}), kernels, HOPPER, "a day")
    assert text == (  # the figures that differ, of this kernel alone
        f"tile_2 for {HOPPER}: spill_loads 0, compiled now {made[1].spill_loads}, spill_stores 0, compiled now {made[1].spill_stores}, "
        "instructions DMMA 3, compiled now none"
    )
    assert COMMAND in ledger.lying("zoo", [text]) and text in ledger.lying("zoo", [text])


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Kernel]:
    """The networks are these kernels, the ledger is empty, and there is no data."""
    kernels = [kernel(n) for n in range(4)]
    monkeypatch.setattr(ledger, "FOLDER", tmp_path / "aot")
    monkeypatch.setattr(ledger, "needed", lambda nets, numerics: list(kernels))
    monkeypatch.setattr(ledger, "found_data", lambda: None)
    return kernels


def test_the_command_compiles_what_is_new_and_drops_what_is_old(
    small: list[Kernel], compiler: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--target", HOPPER, "--numerics", "float64", "--cubins", str(tmp_path / "cubins")]
    assert ledger.main(command) == 0
    out, err = capsys.readouterr()
    assert out == "zoo-float64-90: 4 kernels, 4 new, 0 gone\n" and "POLYTRITON_DATA" in err
    (path,) = ledger.FOLDER.iterdir()
    assert path == ledger.book_path("zoo", "float64", HOPPER) and ledger.read(path) == book(small)
    small[:] = [*small[1:], kernel(5), kernel(13)]
    compiler.clear()
    assert ledger.main(command) == 1
    out, err = capsys.readouterr()
    assert out == "zoo-float64-90: 4 kernels, 1 new, 1 gone\n" and f"copy_13 for {HOPPER} does not compile: refused" in err
    assert compiler == ["copy_5", "copy_13"] and ledger.read(path) == book(small[:-1])


@pytest.mark.slow
def test_the_command_tells_of_a_kernel_that_spills(small: list[Kernel], cubins: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the real compiler, whose cubins are kept and used again."""
    small[:] = [kernel(1), tile()]
    command = ["--target", HOPPER, "--numerics", "float32", "--set", "zoo", "--cubins", str(cubins)]
    assert ledger.main(command) == 1
    assert re.search(r"tile_2: \d+ loads and \d+ stores", capsys.readouterr().err)
    assert len(list((cubins / "90").glob("*.cubin"))) == 2
    path = ledger.book_path("zoo", "float32", HOPPER)
    before = path.read_text()
    path.unlink()
    assert ledger.main(command) == 1 and path.read_text() == before


def test_a_stopped_command_leaves_the_ledger(
    small: list[Kernel], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: Any, **__: Any) -> list[Built | Failed]:
        raise KeyboardInterrupt

    path = ledger.book_path("zoo", "float64", "cuda:80")
    path.parent.mkdir()
    path.write_text(book(small[:2]).text())
    before = path.read_text()
    monkeypatch.setattr(ledger, "compile_each", stopped)
    assert ledger.main(["--cubins", str(tmp_path / "cubins")]) == 130
    assert path.read_text() == before and list(path.parent.iterdir()) == [path] and "goes on" in capsys.readouterr().err


def test_wrong_arguments_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        ledger.main(["--target", "cuda:75"])
    assert "cuda:80" in capsys.readouterr().err
    assert ledger.main(["--jobs", "0"]) == 2
    monkeypatch.setenv("TRITON_PTXAS_PATH", "/bin/true")
    assert ledger.main([]) == 2 and "TRITON_PTXAS_PATH" in capsys.readouterr().err
