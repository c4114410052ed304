"""Ahead-of-time compilation: what comes out is what was asked for, and nothing a kernel does to its compiler costs another kernel."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from polytriton import knobs
from polytriton.errors import UNSUPPORTED, KernelError, UsageError
from polytriton.ir.launches import COUNTED, Kernel
from polytriton.kernels import build, identity, pool, store, worker
from polytriton.kernels.build import Built, Failed, check, compile_all, compile_each
from polytriton.kernels.spec import Report
from polytriton.workers import far, process
from tests.kernels.small_kernels import COPY, compiles, copy, dot, library, spilling

# ---- what comes out -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@compiles
@pytest.mark.parametrize("target", ["cuda:80", "cuda:90"])
def test_instructions_and_spills(target: str, tmp_path: Path) -> None:
    heard: list[tuple[int, int, str]] = []
    split = "HGMMA" if target == "cuda:90" else "HMMA"
    kernels = [
        dot("double", "fp64", instruction="DMMA"),
        dot("split", "fp32", "tf32x3", instruction="HGMMA"),
        dot("single", "fp32", instruction="FFMA"),
        spilling(),
    ]
    made = compile_all(kernels, target, cache=tmp_path, jobs=2, progress=lambda *told: heard.append(told))
    assert [m.kernel for m in made] == kernels
    assert sorted(h[2] for h in heard) == sorted(k.name for k in kernels)
    assert [h[:2] for h in heard] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    double, matrix, single, spill = (m.report for m in made)
    for m in made:
        assert m.cubin.startswith(b"\x7fELF") and m.kernel.name.encode() in m.cubin
        r = m.report
        assert r.name == m.kernel.name and r.target == target and r.cubin_bytes == len(m.cubin) and not r.cached and r.seconds > 0
        assert 16 <= r.registers <= 255
    assert double.instructions["DMMA"] > 0 and double.instructions["FFMA"] == 0
    assert matrix.instructions[split] > 0 and matrix.instructions["DMMA"] == 0
    assert single.instructions["FFMA"] > 100 and single.instructions["HGMMA"] == single.instructions["HMMA"] == 0
    assert all(r.spills == 0 and r.stack == 0 for r in (double, matrix, single))
    assert double.shared >= 2 * 8 * (64 * 32)  # at least one stage of both tiles
    assert spill.spill_loads > 4 and spill.spill_stores > 4 and spill.stack > 30
    assert spill.shared == 0 and 0 < spill.occupancy <= 64

    check([m.report for m in made[:3]], kernels[:3])
    check([spill], kernels[3:], limit_spills=spill.spills)
    with pytest.raises(KernelError, match=r"spill: \d+ loads and \d+ stores") as caught:
        check([m.report for m in made], kernels, limit_spills=spill.spills - 1)
    assert caught.value.exit_code == UNSUPPORTED and f"--max-spills {spill.spills} " in caught.value.remedy
    with pytest.raises(KernelError, match=rf"double: no {split}, but \d+ DMMA"):
        check([double], [replace(kernels[0], instruction="HGMMA")])


@pytest.mark.slow
@compiles
def test_same_bytes_again(tmp_path: Path) -> None:
    """A kernel's cubin does not tell when or where it was made."""
    kernel = dot("double", "fp64")
    first, second = compile_all([kernel, replace(kernel, stages=1)], "cuda:90", cache=None, jobs=1)
    again = compile_all([kernel], "cuda:90", cache=tmp_path)[0]
    assert again.cubin == first.cubin != second.cubin and not again.report.cached
    assert str(tmp_path).encode() not in first.cubin and b"polytriton-" not in first.cubin


@compiles
def test_interpreter_switch_does_not_reach_the_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("TRITON_INTERPRET", "DISABLE_PTXAS_OPT", "TRITON_KERNEL_DUMP"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("TRITON_PTXAS_PATH", "")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "triton.py").write_text("raise ImportError('a file of the current folder')")
    seen = "import os, sys\nassert not {'TRITON_INTERPRET', 'DISABLE_PTXAS_OPT', 'TRITON_KERNEL_DUMP'} & set(os.environ)"
    assert compile_all([copy(before=seen)], "cuda:80", cache=None)[0].report.registers < 64


def test_tools_a_user_chose_are_kept_and_known_to_the_cache(tmp_path: Path) -> None:
    env = {"TRITON_PTXAS_PATH": "/opt/ptxas", "TRITON_DEBUG": "1", "HOME": "/home/x", "LLVM_IR_ENABLE_DUMP": "1"}
    given_env = pool.environment(env, tmp_path)
    assert given_env["TRITON_PTXAS_PATH"] == "/opt/ptxas" and given_env["HOME"] == "/home/x"
    assert not {"TRITON_DEBUG", "LLVM_IR_ENABLE_DUMP"} & set(given_env)
    assert store.key(copy(), "cuda:80", "3.7.1", identity.tools(env)) != store.key(copy(), "cuda:80", "3.7.1", {})


# ---- what goes wrong in a worker -------------------------------------------------------------------------------------

NOISE = r"""import os, subprocess, sys
print('{"error": "a line that looks like an answer"}', flush=True)
os.write(1, b'ready\n' * 5000)
subprocess.run(['echo', 'ready'])
sys.stdin.read()"""
CRASH = "import os, sys\nsys.stderr.write('ptx.cpp:17: Assertion `rank > 0` failed.\\n')\nsys.stderr.flush()\nos.abort()"


@pytest.mark.slow
@compiles
def test_one_bad_kernel_costs_itself(tmp_path: Path) -> None:
    hang = (
        f"import subprocess, time\nopen({str(tmp_path / 'pid')!r}, 'w').write(str(subprocess.Popen(['sleep', '900']).pid))\ntime.sleep(900)"
    )
    wrong = copy("wrong", text=COPY.replace("tl.load(a_ptr + at)", "tl.load(a_ptr + at, masc=1)"))
    kernels = [
        copy("first"),
        copy("noisy", NOISE),
        copy("crashes", CRASH),
        copy("exits", "import os\nos._exit(7)"),
        copy("hangs", hang),
        copy("raises", "raise SystemError('not today')"),
        wrong,
        replace(copy("strange"), constants=(("C", 1), ("D", 2))),
        replace(copy("swapped"), parameters=("out_ptr", "a_ptr")),
        copy("last"),
    ]
    began = time.monotonic()
    made = compile_each(kernels, "cuda:80", cache=tmp_path / "cache", jobs=2, timeout=6)
    assert time.monotonic() - began < 60
    assert [m.kernel.name for m in made if isinstance(m, Built)] == ["first", "noisy", "last"]
    reasons = {m.kernel.name: m.reason for m in made if isinstance(m, Failed)}
    assert reasons["crashes"] == "the compiler was killed by SIGABRT: ptx.cpp:17: Assertion `rank > 0` failed."
    assert reasons["exits"] == "the compiler ended with exit code 7"
    assert reasons["hangs"] == "it took longer than 6 s"
    assert reasons["raises"] == "SystemError: not today"
    assert "masc" in reasons["wrong"]
    assert "is told (C), not (C, D)" in reasons["strange"]
    assert "takes (a_ptr, out_ptr), not (out_ptr, a_ptr)" in reasons["swapped"]
    assert not alive(int((tmp_path / "pid").read_text()))
    with pytest.raises(KernelError) as caught:
        compile_all([copy("first"), copy("exits", "import os\nos._exit(7)")], "cuda:80", cache=tmp_path / "cache")
    assert "exits: the compiler ended with exit code 7" in caught.value.message and "first" not in caught.value.message


ASM = """b = tl.inline_asm_elementwise("{code}", "{constraints}", [tl.load(a_ptr + at)], dtype=tl.float32, is_pure=True, pack={pack})
    tl.store(out_ptr + at, b)"""


@compiles
def test_what_llvm_and_ptxas_said_is_passed_on() -> None:
    def asm(name: str, **parts: object) -> Kernel:
        return copy(name, text=re.sub(r"tl\.store.*", lambda _: ASM.format(**parts), COPY))

    kernels = [
        asm("fine", code="add.f32 $0, $1, $1;", constraints="=f,f", pack=1),
        asm("llvm", code="add.f32 $0, $1, $1;", constraints="=f,f,f,f", pack=3),
        asm("ptxas", code="bogus.f32 $0, $1;", constraints="=f,f", pack=1),
    ]
    fine, llvm, ptxas = compile_each(kernels, "cuda:90", cache=None, jobs=1)
    assert isinstance(fine, Built) and isinstance(llvm, Failed) and isinstance(ptxas, Failed)
    assert re.match(r"RuntimeError: .*\(.*error: number of input elements 128 must be a multiple", llvm.reason)
    assert "Not a name of any known instruction: 'bogus'" in ptxas.reason and "Repro" not in ptxas.reason


def alive(pid: int) -> bool:
    """Whether the process runs: killed orphans may wait a moment for whoever inherits them."""
    for _ in range(50):
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


def test_a_system_without_process_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Windows has neither groups nor SIGKILL: the worker alone is ended, and its log is not read."""
    ended = []
    one = pool.Compiler(tmp_path, 1.0)
    one._process = SimpleNamespace(pid=0, kill=lambda: ended.append(True), wait=lambda: 0, returncode=None)  # type: ignore[assignment]
    for owner, name in ((os, "killpg"), (os, "pread"), (process.signal, "SIGKILL")):
        monkeypatch.delattr(owner, name)
    one.stop()
    assert (ended, one.telling_line()) == ([True], "")
    one.log.close()


@pytest.mark.slow
@compiles
def test_interrupted_in_the_middle_no_process_is_left(tmp_path: Path) -> None:
    def interrupt(done: int, total: int, name: str) -> None:
        raise KeyboardInterrupt

    note_pid = f"import os\nopen({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w')"
    stay = f"{note_pid}\nimport time\ntime.sleep(900)"
    both = f"{note_pid}\nimport time\nwhile len(os.listdir({str(tmp_path)!r})) < 2:\n    time.sleep(0.05)"
    with pytest.raises(KeyboardInterrupt):
        compile_all([copy("slow", stay), copy("quick", both)], "cuda:80", cache=None, jobs=2, progress=interrupt)
    pids = [int(p.name) for p in tmp_path.iterdir()]
    assert len(pids) == 2 and not any(alive(pid) for pid in pids)


@pytest.mark.slow
@compiles
def test_an_answer_that_crosses_its_workers_end_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is over just as the answer comes: it is taken, and the next kernel gets a worker that lives."""
    receive, ends = far.receive, []

    def receive_late(file: Any) -> Any:
        answer = receive(file)
        if not ends:
            ends.append(timers[-1].function())
        return answer

    timers: list[Any] = []
    monkeypatch.setattr(process, "Timer", lambda *given: timers.append(Timer(*given)) or timers[-1])
    monkeypatch.setattr(far, "receive", receive_late)
    made = compile_each([copy("crossing"), copy("next")], "cuda:80", cache=None, jobs=1)
    assert [m.kernel.name for m in made if isinstance(m, Built)] == ["crossing", "next"]


@compiles
@pytest.mark.parametrize(
    "script, reason",
    [
        (
            "echo one; echo 'ImportError: no libtriton' >&2; echo two >&2; exit 5",
            "the compiler ended with exit code 5: ImportError: no libtriton",
        ),
        ("sleep 900", "it took longer than 1 s"),
    ],
)
def test_a_worker_that_does_not_start_is_no_kernels_fault(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(process, "START", 1.0)
    with pytest.raises(KernelError, match=f"no kernel can be compiled: {reason}"):
        compile_all([copy()], "cuda:80", cache=None)


# ---- the cache -------------------------------------------------------------------------------------------------------


@compiles
def test_cache_is_used_and_its_damage_is_repaired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    kernels = [copy("one"), copy("two", c=2), copy("one")]
    fresh = compile_all(kernels, "cuda:80", cache=tmp_path, jobs=1)
    assert fresh[0].cubin == fresh[2].cubin != fresh[1].cubin
    entries = sorted(tmp_path.iterdir())
    assert len(entries) == 2 and all(e.suffix == ".cubin" for e in entries)

    with monkeypatch.context() as m:
        m.setattr(build, "work", None)  # whoever compiles now fails
        again = compile_all(kernels, "cuda:80", cache=tmp_path)
    assert [a.cubin for a in again] == [f.cubin for f in fresh]
    assert [a.report for a in again] == [replace(f.report, cached=True) for f in fresh]

    whole = [e.read_bytes() for e in entries]
    swapped = [whole[1], whole[0]]
    flipped = [w[:-9] + bytes([w[-9] ^ 1]) + w[-8:] for w in whole]
    cut = [w[: len(w) // 2] for w in whole]
    empty, text = [b"", b""], [b"no newline", b"one\nline"]
    for damage in (swapped, flipped, cut, empty, text):
        for entry, data in zip(entries, damage, strict=True):
            entry.write_bytes(data)
        with knobs.scope(debug=1):
            mended = [store.Store(tmp_path).get(e.stem) for e in entries]
        assert mended == [None, None] and capsys.readouterr().err.count("is not used") == 2
    repaired = compile_all(kernels, "cuda:80", cache=tmp_path, jobs=1)
    assert [r.cubin for r in repaired] == [f.cubin for f in fresh] and not any(r.report.cached for r in repaired)
    assert sorted(tmp_path.iterdir()) == entries
    assert all(m.report.cached for m in compile_all(kernels, "cuda:80", cache=tmp_path))


# ---- before anything is compiled ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "system, found, message",
    [
        ("Linux", None, "not installed"),
        ("Darwin", "__version__ = '3.7.1'", "not installed"),
        ("Linux", "__version__ = '3.5.1'", "Triton 3.5.1 is too old"),
        ("Linux", "version = 4", "does not tell its version"),
        ("Linux", "import os\n__version__ = '3.6.0+git12ab'\n", ""),
        ("Linux", '__version__ = "3.10.0"', ""),
    ],
)
def test_triton_missing_or_old(system: str, found: str | None, message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "__init__.py"
    file.write_text(found or "")
    monkeypatch.setattr(build, "find_spec", lambda name: found and SimpleNamespace(origin=str(file)))
    monkeypatch.setattr(platform, "system", lambda: system)
    build.triton_version.cache_clear()
    try:
        if not message:
            assert build.triton_version() == re.split("['\"]", found or "")[1]
            return
        with pytest.raises(KernelError, match=message) as caught:
            compile_all([], "cuda:90", cache=None)
        assert "pip install triton" in caught.value.remedy and caught.value.exit_code == UNSUPPORTED
    finally:
        build.triton_version.cache_clear()


def test_a_strange_target_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="'cuda:1' is no target"):
        compile_all([], "cuda:1", cache=None)


@pytest.mark.parametrize(
    "clean, wanted, tried", [({1, 2}, 2, [0, 4, 3, 2]), (set(), 0, [0, 4, 3, 2, 1]), ({0}, 0, [0])], ids=["some", "none", "first"]
)
def test_room_is_made_until_nothing_spills(
    clean: set[int], wanted: int, tried: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The most blocks that need no spill; the first choice where spills never end, or where there are none."""
    asked: list[int] = []

    def compiled(kernel: Kernel, target: str, stem: Path, blocks: int) -> tuple[Report, bytes]:
        asked.append(blocks)
        spills = 0 if blocks in clean else 2
        return Report(kernel.name, target, 40, 0, spills, spills, 8, dict.fromkeys(COUNTED, 1), 4, 9, 0.0, False, blocks), bytes([blocks])

    monkeypatch.setattr(worker, "_compile", compiled)
    reply = worker.build(copy(), "cuda:90", tmp_path / "k")
    assert reply.report is not None and reply.report.seconds > 0
    assert (reply.report.blocks, reply.cubin, asked) == (wanted, bytes([wanted]), tried)


ROOM = """
import sys
from pathlib import Path
import msgspec
from polytriton.kernels import worker
from polytriton.ir.launches import Kernel
kernel = msgspec.json.decode(sys.stdin.read(), type=Kernel)
print(*(worker._compile(kernel, "cuda:90", Path("double"), blocks)[0].registers for blocks in (8, 1)))
"""


@compiles
def test_ptxas_makes_room(tmp_path: Path) -> None:
    """Fewer blocks on an SM leave a thread more registers."""
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    kernel = msgspec.json.encode(dot("double", "fp64")).decode()
    env["PYTHONPATH"] = os.pathsep.join([str(library()), str(Path(build.__file__).parents[2])])
    ran = subprocess.run([sys.executable, "-c", ROOM], input=kernel, cwd=tmp_path, env=env, capture_output=True, text=True, check=True)
    many, one = map(int, ran.stdout.split())
    assert many <= 64 < one
