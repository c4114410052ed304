"""Results from Python as files: what `polytriton report` shows of them, and what a run that resumes need not ask again."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import polytriton
from polytriton.errors import UsageError
from polytriton.runs.records import read_records
from tests.cli import tiny
from tests.cli.conftest import Cli

PIXELS = np.array([tiny.BRIGHT, (0.55, 0.5, 0.2, 0.4), (0.9, 0.1, 0.1, 0.1)], np.float32).reshape(-1, 1, 2, 2)
LABELS = [0, 0, 2]  # the last is wrong
BALLS = ("--images", "images.npz", "--epsilon", "0.1", "--clip", "0,1", "--engine", "local")


@pytest.fixture
def images(here: Path) -> Path:
    np.savez(here / "images.npz", images=PIXELS, labels=np.array(LABELS))
    return here / "images.npz"


@pytest.fixture
def net(here: Path) -> polytriton.Verifier:
    return polytriton.compile("net.onnx")


def test_a_saved_list_is_what_a_run_writes(cli: Cli, images: Path, net: polytriton.Verifier) -> None:
    results = net.verify("images.npz", "0.1", clip=(0, 1))
    assert results.save("own.jsonl") == Path("own.jsonl")
    assert cli("run", "net.onnx", *BALLS, "--json", "run.jsonl").code == 0
    own, run = read_records(Path("own.jsonl")), read_records(Path("run.jsonl"))
    for a, b in zip(own, run, strict=True):
        plain = ("network", "property", "verdict", "label", "epsilon", "note", "semantics", "dtype", "sha256", "key", "rivals", "onnx")
        for name in (*plain, "image"):
            assert getattr(a, name) == getattr(b, name), name
    assert own[2].note == "misclassified as 0"


def test_a_run_goes_on_with_what_was_saved(cli: Cli, images: Path, net: polytriton.Verifier) -> None:
    net.verify("images.npz", "0.1", clip=(0, 1))[:2].save("r.jsonl")
    said = cli("run", "net.onnx", *BALLS, "--json", "r.jsonl", "--resume")
    assert said.code == 0 and "2 from an earlier run" in said.out
    assert "from an earlier run" not in cli("run", "net.onnx", *BALLS, "--semantics", "real", "--json", "r.jsonl", "--resume").out
    other = cli("run", "net.onnx", *BALLS[:2], "--epsilon", "0.2", *BALLS[4:], "--json", "r.jsonl", "--resume")
    assert other.code == 0 and "from an earlier run" not in other.out


def test_properties_are_known_again_by_their_file(cli: Cli, here: Path, net: polytriton.Verifier) -> None:
    files = ["safe.vnnlib", "unsafe.vnnlib"]
    polytriton.ResultList(net.verify(f) for f in files).save("r.jsonl")
    asked = ("run", "net.onnx", "--vnnlib", *files, "--json", "r.jsonl", "--resume")
    assert "2 from an earlier run" in cli(*asked, "--search", "auto").out
    assert "from an earlier run" not in cli(*asked).out, "another search is another question"
    tiny.robust(here / "unsafe.vnnlib", 0.4)
    assert "1 from an earlier run" in cli(*asked, "--search", "auto").out


def test_a_property_without_a_file_is_saved_and_never_taken_for_another(here: Path, net: polytriton.Verifier) -> None:
    texts = [Path(f).read_text() for f in ("safe.vnnlib", "unsafe.vnnlib")]
    polytriton.ResultList(net.verify_property(t) for t in texts).save("r.jsonl")
    assert [(r.verdict, r.key, r.vnnlib) for r in read_records(Path("r.jsonl"))] == [("unsat", "", ""), ("sat", "", "")]


def test_the_same_question_twice_is_two_lines(here: Path, net: polytriton.Verifier) -> None:
    one = net.verify(PIXELS[:1], "0.1", clip=(0, 1))
    (one + one).save("r.jsonl")
    assert len({r.key for r in read_records(Path("r.jsonl"))}) == 2


def test_arrays_of_several_calls_are_several_images(cli: Cli, here: Path, net: polytriton.Verifier) -> None:
    lists = [net.verify(PIXELS[k : k + 1], e, LABELS[k], clip=(0, 1)) for k in range(3) for e in ("0.01", "0.1")]
    polytriton.ResultList(r for one in lists for r in one).save("r.jsonl")
    assert cli("report", "r.jsonl").code == 0
    page = Path("report.html").read_text()
    assert "<h1>Robustness of net.onnx: 3 images at 2 radii</h1>" in page
    assert "66.6 %</b>verified accuracy<br><small>2 of 3 at epsilon 0.01" in page and "1 image misclassified" in page


def test_radii_come_along(cli: Cli, images: Path, net: polytriton.Verifier) -> None:
    results = net.verify("images.npz", "0.1", clip=(0, 1))
    radii = net.radius("images.npz", clip=(0, 1))
    assert all(isinstance(r, polytriton.Radius) for r in radii)
    joined = results.with_radii(radii)
    assert [r.radius for r in joined] == radii and [r.radius for r in results] == [None] * 3
    joined.save("r.jsonl")
    records = read_records(Path("r.jsonl"))
    assert [r.radius is not None and r.radius.proved for r in records] == [None if r.proved is None else str(r.proved) for r in radii]
    said = cli("report", "r.jsonl", "--text").out.splitlines()[-1]
    assert f"for {sum(r.queries for r in radii)} queries of radii" in said
    with pytest.raises(UsageError, match="2 radii for 3 results"):
        results.with_radii(radii[:2])


def test_what_is_there_stays_unless_it_may_go(cli: Cli, here: Path, net: polytriton.Verifier) -> None:
    results = net.verify(PIXELS, "0.1", clip=(0, 1))
    results.save("r.jsonl")
    with pytest.raises(UsageError, match="there already"):
        results.save("r.jsonl")
    results[:1].save("r.jsonl", overwrite=True)
    assert len(read_records(Path("r.jsonl"))) == 1
    for name in ("none/r.jsonl", "r.csv", "page.html"):
        with pytest.raises(UsageError):
            results.save(name)
    assert sorted(p.name for p in Path().glob("r.*")) == ["r.jsonl"]


# ---- a page from Python ----


def test_a_page_is_the_one_a_file_makes(cli: Cli, images: Path, net: polytriton.Verifier) -> None:
    results = net.verify("images.npz", "0.1", clip=(0, 1))
    assert polytriton.report(results, "own.html") == Path("own.html")
    results.save("r.jsonl")
    assert cli("report", "r.jsonl", "-o", "file.html").code == 0
    own, file = (Path(p).read_text().partition("<footer>")[0] for p in ("own.html", "file.html"))
    assert own == file and "Robustness of net.onnx" in own
    polytriton.report(results[0], "own.html", title="One <image>", pictures=0)
    page = Path("own.html").read_text()
    assert "<title>One &lt;image&gt;</title>" in page and "<article" not in page


def test_a_page_shows_images_too_large_for_a_record(here: Path) -> None:
    pixels = np.random.default_rng(0).random((3, 3, 64, 64))
    net = polytriton.Verifier.from_net(flat(3 * 64 * 64))
    results = net.verify(pixels.reshape(3, -1), "0.001", falsifier=False)
    polytriton.report(results, "r.html")
    assert Path("r.html").read_text().count('width="64" height="64"') == 3


def test_nothing_but_a_page_is_replaced(here: Path, net: polytriton.Verifier) -> None:
    results = net.verify(PIXELS, "0.1", clip=(0, 1))
    before = Path("net.onnx").read_bytes()
    for where, given in (("net.onnx", results), ("none/r.html", results), ("r.html", []), ("r.html", ["unsat"])):
        with pytest.raises(UsageError):
            polytriton.report(given, where)
    assert Path("net.onnx").read_bytes() == before and not Path("r.html").exists()


def flat(inputs: int) -> polytriton.ir.net.Net:
    from polytriton.ir.net import Builder

    b = Builder("flat")
    x = b.input((inputs,))
    w = np.zeros((2, inputs))
    w[0, :] = 1 / inputs
    return b.build(b.add("linear", (x,), w=b.constant(w), b=b.constant(np.zeros(2))))


def test_results_of_any_verifier_can_be_saved(here: Path) -> None:
    net = polytriton.Verifier.from_net(flat(4))
    results = net.verify(PIXELS.reshape(3, 4), Fraction(1, 100))
    results.save("r.jsonl")
    assert [(r.network, r.property, r.key) for r in read_records(Path("r.jsonl"))] == [("flat", f"image[{k}]", "") for k in range(3)]
    polytriton.ResultList([polytriton.Result("unknown", np.zeros(0), 0.0)]).save("bare.jsonl")
    assert read_records(Path("bare.jsonl"))[0].network == "unnamed"
