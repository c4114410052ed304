"""Results files are read back as they were written, by this version and by earlier ones."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from polytriton.errors import UsageError
from polytriton.results import ENDS
from polytriton.runs.records import CsvSink, JsonSink, Record, read_records
from polytriton.show.pixels import MOST, pack, unpack
from tests.pages.made import mixed, record

EARLIER = (  # a line as version 0.1.0 wrote it before records held statistics, images and radii
    '{"network":"net.onnx","property":"digits[0]","verdict":"sat","margin":-1.5,"seconds":0.25,"label":3,"epsilon":"1/20","note":"",'
    '"semantics":"float32","dtype":"auto","candidates":"all","timeout":null,"sha256":"ab","version":"0.1.0","key":"k0",'
    '"margins":[-1.5,null],"rivals":[0,1],"counterexample":{"x":[0.5,0.25],"y":[1.0,2.0]}}'
)


def written(path: Path, records: list[Record]) -> Path:
    sink = (CsvSink if path.suffix == ".csv" else JsonSink)(path, resume=False, overwrite=True)
    for r in records:
        sink.write(r)
    sink.close()
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read_records(written(tmp_path / "r.jsonl", mixed())) == mixed()


def test_csv_holds_the_flat_fields(tmp_path: Path) -> None:
    for got, want in zip(read_records(written(tmp_path / "r.csv", mixed())), mixed(), strict=True):
        assert (got.network, got.property, got.verdict, got.margin, got.seconds) == (
            want.network, want.property, want.verdict, want.margin, want.seconds
        )  # fmt: skip
        assert got.image is None and got.statistics == ()


def test_records_of_earlier_versions_load(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text(EARLIER + "\n")
    (r,) = read_records(tmp_path / "r.jsonl")
    assert (r.verdict, r.margins, r.statistics, r.image, r.radius, r.ended_by) == ("sat", [-1.5, None], (), None, None, "")
    sink = JsonSink(tmp_path / "r.jsonl", resume=True, overwrite=False)
    sink.close()
    assert list(sink.held) == ["k0"]


def test_what_ended_a_query_is_written_and_read(tmp_path: Path) -> None:
    given = [record(k, "timeout" if "time" in end else "unknown", ended_by=end) for k, end in enumerate(ENDS)]
    for name in ("r.jsonl", "r.csv"):
        assert [r.ended_by for r in read_records(written(tmp_path / name, given))] == list(ENDS)
    assert Record(network="n", property="p", verdict="unknown").ended_by == ""  # earlier versions did not say
    with pytest.raises(ValueError, match="ends a query"):
        Record(network="n", property="p", verdict="unknown", ended_by="boredom")


def test_a_later_line_wins_and_what_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    later = EARLIER.replace('"sat"', '"unsat"')
    path.write_text(f"{EARLIER}\n{later}\n{EARLIER.replace('k0', 'k1')[:80]}")
    assert [(r.key, r.verdict) for r in read_records(path)] == [("k0", "unsat")]
    path.write_text(f"{EARLIER}\n{EARLIER.replace('k0', 'k1')}")  # whole, though its last line does not end
    assert [r.key for r in read_records(path)] == ["k0", "k1"]


@pytest.mark.parametrize(
    "text", ["{}\n", "no json\n", "[1]\n", '{"network":1}\n', EARLIER.replace("0.25", "1e999") + "\n", "[" * 9999 + "\n"]
)
@pytest.mark.parametrize("name", ["r.jsonl", "r.csv"])
def test_foreign_files_are_refused(tmp_path: Path, text: str, name: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as told:
        read_records(tmp_path / name)
    assert "line 1" in told.value.message and "--json" in told.value.remedy


def test_a_missing_file_is_one_message(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(UsageError):
            read_records(path)


def test_a_record_is_one_line_of_json() -> None:
    for r in mixed():
        line = msgspec.json.encode(r)
        assert b"\n" not in line
        assert set(json.loads(line)) == set(Record.__struct_fields__)


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 7), (6, 6)])
def test_pixels_travel(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, shape, dtype=np.uint8)
    got = unpack(pack(levels), shape)
    assert got is not None and (got == levels / 255).all()
    values = rng.random(shape)
    got = unpack(pack(values), shape)
    assert got is not None and np.abs(got - values).max() <= 2**-12


def test_large_images_stay_in_their_file() -> None:
    assert pack(np.random.default_rng(0).random((3, 64, 64))) == ""
    assert len(pack(np.zeros((3, 224, 224), np.uint8))) < MOST


@pytest.mark.parametrize(
    "text",
    ["", "u1:", "u1:!!!", "f8:AAAA", "u1:AAAA", pack(np.zeros((1, 5, 5))), pack(np.zeros((200, 4, 4), np.uint8)), "u1:" + "A" * 9000],
)
def test_pixels_that_do_not_fit_are_none(text: str) -> None:
    assert unpack(text, (1, 4, 4)) is None


def test_pixels_that_are_no_numbers_are_drawn_as_zero() -> None:
    got = unpack(pack(np.full((4, 4), np.nan)), (4, 4))
    assert got is not None and (got == 0).all()
