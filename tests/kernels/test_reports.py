"""What is known of compiled kernels without a compiler: the store's entries, cuobjdump's text, and the verdict on a report."""

from __future__ import annotations

import errno
import io
import json
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from polytriton import knobs
from polytriton.errors import KernelError
from polytriton.ir.launches import Kernel
from polytriton.kernels import sass, store
from polytriton.kernels.build import check
from polytriton.kernels.report import report_json, report_table
from polytriton.kernels.spec import Report

# ---- the store -------------------------------------------------------------------------------------------------------

KERNEL = Kernel("copy", "count_staying", (("B", 1024),), ("a_ptr", "out_ptr"), ("*fp32", "*fp32"), warps=1)
REPORT = Report("k", "cuda:80", 32, 0, 0, 0, 0, {"DMMA": 3}, 64, 4, 0.5, False)


def test_cache_key_tells_apart_what_compiles_differently() -> None:
    base = KERNEL
    others = [
        replace(base, name="other"),
        replace(base, family="measure_boxes"),
        replace(base, constants=(("B", 2048),)),
        replace(base, types=("*fp64", "*fp32")),
        replace(base, parameters=("out_ptr", "a_ptr")),
        replace(base, warps=2),
        replace(base, stages=2),
    ]
    keys = [store.key(k, "cuda:80", "3.7.1", {}) for k in (base, *others)]
    keys += [store.key(base, "cuda:90", "3.7.1", {}), store.key(base, "cuda:80", "3.6.0", {})]
    assert len(set(keys)) == len(keys)
    assert store.key(replace(base, instruction="FFMA"), "cuda:80", "3.7.1", {}) == keys[0]


def test_a_folder_that_cannot_be_written_costs_one_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")

    def full(path: Path, data: bytes) -> None:
        path.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with knobs.scope(debug=1):
        in_the_way = store.Store(tmp_path / "file" / "cache")
        in_the_way.put("one", REPORT, b"")
        in_the_way.put("two", REPORT, b"")
        assert in_the_way.get("one") is None
        monkeypatch.setattr(Path, "write_bytes", full)
        crowded = store.Store(tmp_path / "cache")
        crowded.put("one", REPORT, b"")
        crowded.put("two", REPORT, b"")
        crowded.trim()
    told = capsys.readouterr().err.splitlines()
    assert told == [
        f"polytriton: kernels are not cached in {tmp_path / 'file' / 'cache'}: Not a directory",
        f"polytriton: kernels are not cached in {tmp_path / 'cache'}: No space left on device",
    ]
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_oldest_entries_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "ENTRIES", 2)
    kept = store.Store(tmp_path)
    for k, name in enumerate("abc"):
        kept.put(name, REPORT, name.encode())
        os.utime(tmp_path / f"{name}.cubin", (k, k))
    assert kept.get("a") == (replace(REPORT, cached=True), b"a")  # used just now
    kept.trim()
    assert sorted(p.stem for p in tmp_path.iterdir()) == ["a", "c"]


# ---- reading and judging ---------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["", "@P0 ", "@!P1 ", "@UP2 ", "@!UPT "]), st.sampled_from(["LDL", "STL.64", "DMMA.16x8x16", "FFMA", "FFMA2"])
        )
    )
)
def test_every_instruction_is_counted_once(code: list[tuple[str, str]]) -> None:
    lines = [
        "\tcode for sm_90a",
        "\t\tFunction : k",
        '\t.headerflags\t@"EF_CUDA_SM90"',
        "        /*0000*/                   LDC R1, c[0x0][0x28] ;   /* 0x00ff */",
    ]
    for k, (guard, name) in enumerate(code, 1):
        lines.append(f"        /*{16 * k:04x}*/              {guard:>5}{name} R0, [R1+0x10] ;      /* 0x00000a00ff017b82 */")
        lines.append(" " * 60 + "/* 0x000e220000000800 */")
    counts = sass.opcodes("\n".join(lines))
    assert counts.pop("LDC") == 1
    assert sum(counts.values()) == len(code)
    for name in ("LDL", "STL", "DMMA", "FFMA", "FFMA2"):
        assert counts[name] == sum(full.split(".")[0] == name for _, full in code)


def test_text_that_says_nothing_is_refused() -> None:
    text = "Common:\n  GLOBAL:0\n Function other:\n  REG:64 STACK:3296 SHARED:0 LOCAL:0\n Function k:\n  REG:9 STACK:8 SHARED:0"
    assert sass.usage(text, "k") == (9, 8)
    with pytest.raises(ValueError, match="nothing about the resources of absent"):
        sass.usage(text, "absent")
    with pytest.raises(ValueError, match="no instruction"):
        sass.opcodes(text)


@pytest.mark.parametrize(
    "target, registers, shared, warps, lives",
    [  # worked out by hand from the CUDA programming guide
        ("cuda:80", 32, 0, 4, 64),
        ("cuda:80", 33, 0, 4, 48),  # 40 registers once rounded: 12 warps a scheduler
        ("cuda:80", 128, 0, 4, 16),
        ("cuda:80", 168, 0, 4, 12),
        ("cuda:80", 255, 0, 8, 8),
        ("cuda:80", 255, 0, 16, 0),
        ("cuda:80", 16, 0, 1, 32),  # 32 blocks of one warp
        ("cuda:80", 128, 65536, 4, 8),
        ("cuda:90", 128, 65536, 4, 12),
        ("cuda:80", 32, 163 * 1024, 4, 4),
        ("cuda:80", 32, 163 * 1024 + 1, 4, 0),
        ("cuda:90", 32, 227 * 1024, 4, 4),
        ("cuda:86", 32, 0, 4, 48),
        ("cuda:89", 32, 50 * 1024, 4, 4),
    ],
)
def test_occupancy(target: str, registers: int, shared: int, warps: int, lives: int) -> None:
    assert sass.occupancy(target, registers, shared, warps) == lives


def test_a_kernel_that_fits_no_sm_is_refused() -> None:
    kernels = [replace(KERNEL, name=f"k{n}") for n in range(20)]
    reports = [replace(REPORT, name=k.name, occupancy=0, shared=200_000, spill_loads=3) for k in kernels]
    with pytest.raises(KernelError, match=r"too large for cuda:80:\n  k0: 1 warps of 32 registers, 200000 bytes") as caught:
        check(reports, kernels, limit_spills=9)
    assert len(caught.value.message.splitlines()) == 10 and "and 12 more" in caught.value.message
    with pytest.raises(ValueError):
        check(reports, kernels[:3])
    check([], [])


@pytest.mark.parametrize(
    "change, message",
    [
        ({"name": "../k"}, "identifier"),
        ({"types": ("*fp32",)}, "2 parameters and 1 types"),
        ({"instruction": "IMMA"}, "asks for IMMA"),
    ],
)
def test_a_kernel_that_makes_no_sense_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(KERNEL, **change)


def test_reports_are_shown() -> None:
    reports = [REPORT, replace(REPORT, name="spills", spill_loads=3, spill_stores=4, cached=True, instructions={"DMMA": 0})]
    told = [{name: value for name, value in asdict(r).items() if name != "launch"} for r in reports]
    assert json.loads(json.dumps(report_json(reports))) == told
    out = io.StringIO()
    Console(file=out, width=100).print(report_table(reports))
    head, first, second = (line.split() for line in out.getvalue().splitlines())
    assert head == ["kernel", "registers", "shared", "stack", "spills", "warps", "arithmetic", "bytes", "seconds"]
    assert first == ["k", "32", "0", "0", "0", "64", "3", "DMMA", "4", "0.50"]
    assert second == ["spills", "32", "0", "0", "3+4", "64", "-", "4", "cached"]
